"""What an Iceberg table holds, partition by partition, from its manifests alone: rows, files, and bounds of columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    NestedField,
    PrimitiveType,
    StringType,
)

from lake_assets.errors import UsageError, suggestion
from lake_assets.incremental.engine.iceberg import bounds, human_text, live_entries, partition_text

METRICS_MODE = "write.metadata.metrics"
"""Table properties that say how bounds are stored: `.default`, or `.column.NAME`."""

DEFAULT_METRICS_MODE = "truncate(16)"
"""The mode if the table has no such property (Iceberg documentation, write properties)."""


@dataclass(frozen=True)
class ColumnBounds:
    """One column in the data files of one partition.

    Attributes:
        column: Its name; a field of a struct has a dotted one.
        lower: Least value, as text; None if metadata do not tell it, or all values are null.
        upper: Greatest value, likewise.
        nulls: Number of nulls; None if metadata do not tell it.
        may_be_truncated: Whether text or bytes are as long as the table stores bounds, so that the true least value may
            be longer, and the true greatest value longer and lower.
    """

    column: str
    lower: str | None
    upper: str | None
    nulls: int | None
    may_be_truncated: bool = False


@dataclass(frozen=True)
class PartitionContents:
    """The live files of one partition.

    Attributes:
        partition: Partition field → value, as text; empty if the table is not partitioned.
        rows: Rows of the data files, before deletes.
        files: Number of data files.
        bytes: Size of the data files.
        delete_files: Number of delete files. If there are any, the partition has fewer rows.
        columns: The columns that were asked for, in that order.
    """

    partition: Mapping[str, str | None]
    rows: int
    files: int
    bytes: int
    delete_files: int
    columns: tuple[ColumnBounds, ...] = ()


@dataclass(frozen=True)
class TableContents:
    """What a table holds at its head.

    Attributes:
        table: The table.
        snapshot_id: The head; None for a table without a snapshot.
        rows_are_before_deletes: Whether there are delete files, so that `rows` count rows that are deleted.
        partitions: Ordered by their values.
        lineage: Of a target: column → source columns, as declared.
    """

    table: str
    snapshot_id: int | None
    rows_are_before_deletes: bool
    partitions: tuple[PartitionContents, ...]
    lineage: Mapping[str, Sequence[str]] = field(default_factory=dict)


def contents(table: Table, name: str, columns: Sequence[str] = ()) -> TableContents:
    """Return what a table holds at the head of main, from its manifests. No data file is opened.

    Args:
        table: The table, with any partition spec.
        name: Its name.
        columns: The columns to give bounds of.

    Raises:
        UsageError: The table does not have a column, or it is one without bounds.
    """
    fields = [_field(table, name, column) for column in columns]
    snapshot = table.current_snapshot()
    files: defaultdict[tuple[tuple[str, str | None], ...], list[DataFile]] = defaultdict(list)
    for content in ManifestContent:
        for entry in live_entries(table, snapshot, content):
            files[tuple(partition_text(table, entry.data_file).items())].append(entry.data_file)
    partitions = []
    for values in sorted(files, key=lambda each: [(value is not None, value or "") for _, value in each]):
        data = [file for file in files[values] if file.content is DataFileContent.DATA]
        partitions.append(
            PartitionContents(
                partition=dict(values),
                rows=sum(file.record_count for file in data),
                files=len(data),
                bytes=sum(file.file_size_in_bytes for file in data),
                delete_files=len(files[values]) - len(data),
                columns=tuple(_bounds(table, *column, data) for column in zip(columns, fields, strict=True)),
            )
        )
    has_deletes = any(partition.delete_files for partition in partitions)
    return TableContents(name, snapshot.snapshot_id if snapshot else None, has_deletes, tuple(partitions))


def _field(table: Table, name: str, column: str) -> NestedField:
    try:
        found = table.schema().find_field(column)
    except ValueError:
        remedy = suggestion(column, table.schema().column_names)
        raise UsageError(f"{name} has no column {column!r}.", remedy=remedy) from None
    if not isinstance(found.field_type, PrimitiveType):
        raise UsageError(
            f"{column!r} of {name} is a {found.field_type}, which has no bounds.",
            remedy="Name a column of a simple type; a field of a struct is named struct.field.",
        )
    return found


def _bounds(table: Table, name: str, column: NestedField, files: Sequence[DataFile]) -> ColumnBounds:
    """Return the bounds of a column in all of some data files."""
    nulls = [(file.null_value_counts or {}).get(column.field_id) for file in files]
    all_nulls = None if None in nulls else sum(each or 0 for each in nulls)
    limits = [bounds(file, column) for file in files]
    known = [each for each in limits if each is not None]
    of_files = zip(files, nulls, limits, strict=True)
    if not known or any(each is None and file.record_count != (of or 0) for file, of, each in of_files):
        return ColumnBounds(name, None, None, all_nulls)
    lower, upper = min(first for first, _ in known), max(last for _, last in known)
    properties = table.metadata.properties
    default = properties.get(f"{METRICS_MODE}.default", DEFAULT_METRICS_MODE)
    mode = properties.get(f"{METRICS_MODE}.column.{name}", default).strip().lower()
    may_be_truncated = False
    if mode.startswith("truncate(") and isinstance(column.field_type, (StringType, BinaryType)):
        stored = int(mode.removeprefix("truncate(").removesuffix(")"))
        may_be_truncated = max(len(lower), len(upper)) >= stored
    first, last = (human_text(IdentityTransform(), column.field_type, each) for each in (lower, upper))
    return ColumnBounds(name, first, last, all_nulls, may_be_truncated)
