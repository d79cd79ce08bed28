"""What an Iceberg table holds, partition by partition, from its manifests alone: rows, files, and bounds of columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, Transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from lake_assets.base.hours import hour_key, hour_text, time_text
from lake_assets.errors import UsageError
from lake_assets.incremental.engine.iceberg import entries
from lake_assets.incremental.engine.publish import main_id

Stored = TypeVar("Stored")

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


@dataclass
class _Bounds:
    """Collects the bounds of one column, file by file."""

    column: NestedField
    name: str
    truncated_to: int | None
    lower: Any = None
    upper: Any = None
    nulls: int | None = 0
    is_known: bool = True

    def add(self, file: DataFile) -> None:
        nulls = _stored(file.null_value_counts, self.column)
        self.nulls = None if nulls is None or self.nulls is None else self.nulls + nulls
        lower, upper = _stored(file.lower_bounds, self.column), _stored(file.upper_bounds, self.column)
        if lower is not None and upper is not None:
            self._widen(_decoded(self.column.field_type, lower), _decoded(self.column.field_type, upper))
        elif file.record_count != (nulls or 0):
            self.is_known = False

    def _widen(self, first: Any, last: Any) -> None:
        self.lower = first if self.lower is None else min(self.lower, first)
        self.upper = last if self.upper is None else max(self.upper, last)

    def result(self) -> ColumnBounds:
        if not self.is_known or self.lower is None:
            return ColumnBounds(self.name, None, None, self.nulls)
        return ColumnBounds(
            column=self.name,
            lower=_text(IdentityTransform(), self.column.field_type, self.lower),
            upper=_text(IdentityTransform(), self.column.field_type, self.upper),
            nulls=self.nulls,
            may_be_truncated=self._may_be_truncated(),
        )

    def _may_be_truncated(self) -> bool:
        if self.truncated_to is None or not isinstance(self.column.field_type, (StringType, BinaryType)):
            return False
        return max(len(self.lower), len(self.upper)) >= self.truncated_to


@dataclass
class _Partition:
    """Collects the files of one partition."""

    values: Mapping[str, str | None]
    bounds: list[_Bounds]
    rows: int = 0
    files: int = 0
    bytes: int = 0
    delete_files: int = 0

    def add(self, file: DataFile) -> None:
        if file.content is not DataFileContent.DATA:
            self.delete_files += 1
            return
        self.rows += file.record_count
        self.files += 1
        self.bytes += file.file_size_in_bytes
        for bounds in self.bounds:
            bounds.add(file)

    def result(self) -> PartitionContents:
        columns = tuple(bounds.result() for bounds in self.bounds)
        return PartitionContents(self.values, self.rows, self.files, self.bytes, self.delete_files, columns)


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
    head = main_id(table)
    snapshot = table.snapshot_by_id(head) if head is not None else None
    found: dict[tuple[tuple[str, str | None], ...], _Partition] = {}
    for file in _live_files(table, snapshot):
        values = _partition_values(table, file)
        key = tuple(values.items())
        if key not in found:
            found[key] = _Partition(values, _empty_bounds(table, fields, columns))
        found[key].add(file)
    partitions = tuple(found[key].result() for key in sorted(found, key=_null_first))
    has_deletes = any(partition.delete_files for partition in partitions)
    return TableContents(name, head, has_deletes, partitions)


def _null_first(key: tuple[tuple[str, str | None], ...]) -> list[tuple[bool, str]]:
    return [(value is not None, value or "") for _, value in key]


def _stored(values: Mapping[int, Stored] | None, column: NestedField) -> Stored | None:
    """Return what a file's metadata store of a column; None if they store nothing."""
    return (values or {}).get(column.field_id)


def _live_files(table: Table, snapshot: Snapshot | None) -> Iterator[DataFile]:
    """Yield the live data and delete files of a snapshot."""
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    for manifest in manifests:
        for entry in entries(manifest, table.io, discard_deleted=True):
            yield entry.data_file


def _field(table: Table, name: str, column: str) -> NestedField:
    try:
        found = table.schema().find_field(column)
    except ValueError:
        names = ", ".join(table.schema().column_names)
        raise UsageError(f"{name} has no column {column!r}.", remedy=f"Name one of: {names}.") from None
    if not isinstance(found.field_type, PrimitiveType):
        raise UsageError(
            f"{column!r} of {name} is a {found.field_type}, which has no bounds.",
            remedy="Name a column of a simple type; a field of a struct is named struct.field.",
        )
    return found


def _empty_bounds(table: Table, fields: Sequence[NestedField], columns: Sequence[str]) -> list[_Bounds]:
    found = []
    for column, name in zip(fields, columns, strict=True):
        found.append(_Bounds(column, name, _truncated_to(table, name)))
    return found


def _truncated_to(table: Table, column: str) -> int | None:
    """Return the length that bounds of a column are cut to; None if they are whole."""
    properties = table.metadata.properties
    default = properties.get(f"{METRICS_MODE}.default", DEFAULT_METRICS_MODE)
    mode = properties.get(f"{METRICS_MODE}.column.{column}", default).strip().lower()
    if not mode.startswith("truncate("):
        return None
    return int(mode.removeprefix("truncate(").removesuffix(")"))


def _decoded(column_type: IcebergType, value: bytes) -> Any:
    """Return a bound. One that was written before its column became wider has the length of the former type."""
    assert isinstance(column_type, PrimitiveType)
    if isinstance(column_type, LongType) and len(value) == 4:
        return from_bytes(IntegerType(), value)
    if isinstance(column_type, DoubleType) and len(value) == 4:
        return from_bytes(FloatType(), value)
    return from_bytes(column_type, value)


def _partition_values(table: Table, file: DataFile) -> dict[str, str | None]:
    """Return partition field → value, by the spec that the file was written with."""
    schema = table.schema()
    values: dict[str, str | None] = {}
    for position, partition_field in enumerate(table.specs()[file.spec_id].fields):
        value = file.partition[position]
        source = schema.find_column_name(partition_field.source_id)
        if value is None:
            values[partition_field.name] = None
        elif source is None:  # the column was dropped
            values[partition_field.name] = str(value)
        else:
            source_type = schema.find_type(source)
            values[partition_field.name] = _text(partition_field.transform, source_type, value)
    return values


def _text(transform: Transform[Any, Any], column_type: IcebergType, value: Any) -> str:
    """Return a value for people. A time beyond the years 1 to 9999, which Python cannot show, has its year, too."""
    try:
        return transform.to_human_string(column_type, value)
    except (OverflowError, ValueError):
        if isinstance(transform, HourTransform):
            return hour_key(value)
        if isinstance(transform, DayTransform) or isinstance(column_type, DateType):
            return hour_text(value * 24, "%Y-%m-%d")
        if isinstance(transform, IdentityTransform) and isinstance(column_type, (TimestampType, TimestamptzType)):
            return time_text(value)
        return str(value)
