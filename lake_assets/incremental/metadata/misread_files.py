"""Parquet files that Spark's Iceberg reader reads wrongly, or not at all, though other programs read them rightly.

Iceberg and Spark write none of them. They come into a table when a program adds files that it has written before
(`add_files`). Only their footers tell. Seen with Iceberg 1.12 on Spark 4.1:

- times in milliseconds or nanoseconds: dictionary pages are read as microseconds, and a filter loses all rows;
- a decimal with another scale than its column: 1.00 of scale 2 is read as 0.01 in a column of scale 4;
- whole numbers without a sign, and times without an annotation: Spark fails.

INT96 times, and 32 and 64 bit decimals, are read rightly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import DecimalType, IcebergType, TimestampType, TimestamptzType

from lake_assets.base.recent import Recent
from lake_assets.errors import FilesMisread
from lake_assets.incremental.metadata.manifests import entries

if TYPE_CHECKING:
    from pyiceberg.table import Table

NAME_MAPPING = "schema.name-mapping.default"
"""Table property that files without field ids need. Each program that adds files sets it."""

DATA_PATH = "write.data.path"

READ_AT_ONCE = 16
CHECKED_FILES = 100_000
"""Number of files whose footers are remembered."""

_SCHEME = re.compile(r"^[a-z0-9]+:/+")

FIELD_ID = b"PARQUET:field_id"

_checked: Recent[tuple[str, int], str] = Recent(CHECKED_FILES)


def check_files(table: Table, name: str, paths: Iterable[str]) -> None:
    """Check that Spark reads data files of a table rightly. Opens the footers of those that others may have written.

    Args:
        table: The table.
        name: Its name.
        paths: Locations of the files.

    Raises:
        FilesMisread: It does not.
    """
    suspects = [path for path in paths if _may_be_foreign(table, path)]
    if not suspects:
        return
    with ThreadPoolExecutor(READ_AT_ONCE) as threads:
        found = list(threads.map(partial(_flaw, table), suspects))
    misread = {path: flaw for path, flaw in zip(suspects, found, strict=True) if flaw}
    if misread:
        path = min(misread)
        raise FilesMisread(name, path, misread[path], files=len(misread))


def check_head(table: Table, name: str) -> None:
    """Check that Spark reads the live data files of a table rightly. Raises `FilesMisread` if it does not."""
    check_files(table, name, live_paths(table, table.metadata.current_snapshot_id))


def check_new_files(table: Table, name: str, paths: Collection[str], snapshot_id: int | None) -> None:
    """Check files that were added up to a snapshot. Those that are removed again do not count.

    Raises:
        FilesMisread: Spark does not read one of them rightly, and it is a file of the snapshot.
    """
    try:
        check_files(table, name, paths)
    except FilesMisread:
        check_files(table, name, set(live_paths(table, snapshot_id)).intersection(paths))


def live_paths(table: Table, snapshot_id: int | None) -> Iterator[str]:
    """Yield the locations of the live data files of a snapshot."""
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    for manifest in snapshot.manifests(table.io) if snapshot else []:
        for entry in entries(manifest, table.io, discard_deleted=True):
            if entry.data_file.content.value == 0:
                yield entry.data_file.file_path


def has_foreign_files(table: Table) -> bool:
    """Whether another program may have added files to a table that it had written before."""
    return NAME_MAPPING in table.properties


def _may_be_foreign(table: Table, path: str) -> bool:
    if not path.endswith((".parquet", ".parq")) and "." in path.rpartition("/")[2]:
        return False
    folder = table.properties.get(DATA_PATH, table.location())
    return has_foreign_files(table) or not _place(path).startswith(_place(folder).rstrip("/") + "/")


def _place(location: str) -> str:
    """Return a location without its scheme: `s3` and `s3a`, or `file:/` and `file:///`, name the same place."""
    return _SCHEME.sub("/", location)


def _flaw(table: Table, path: str) -> str:
    """Return what Spark reads wrongly in a file; empty for nothing, and for a file that is gone or is no Parquet."""
    key = path, table.schema().schema_id
    known = _checked.find(key)
    if known is None:
        try:
            known = next(_flaws(table, path), "")
        except (OSError, ValueError):  # reading its rows reports a missing or damaged file
            return ""
        _checked.keep(key, known)
    return known


def _flaws(table: Table, path: str) -> Iterator[str]:
    from pyarrow import parquet as pq

    with table.io.new_input(path).open() as opened:
        file = pq.ParquetFile(opened)
        metadata, schema = file.metadata, file.schema_arrow
    types = _types_by_name(table, schema)
    for number in range(metadata.num_columns):
        leaf = metadata.schema.column(number)
        top_level = leaf.path.partition(".")[0]
        if top_level not in types:
            continue
        stored = json.loads(leaf.logical_type.to_json()) if leaf.logical_type.type != "NONE" else {}
        what = _what_is_misread(stored, leaf.physical_type, types[top_level])
        if what:
            yield f"the column {leaf.path} is stored as {what}"


def _what_is_misread(stored: dict[str, Any], physical: str, column: IcebergType) -> str | None:
    """Return how a Parquet column is stored, if Spark misreads it.

    Args:
        stored: Its logical type; empty if it has none.
        physical: Its physical type.
        column: The type of the table's column that contains it.
    """
    kind = stored.get("Type")
    if kind == "Timestamp" and stored["timeUnit"] != ("nanoseconds" if _is_nanoseconds(column) else "microseconds"):
        return f"times in {stored['timeUnit']}"
    if kind == "Int" and not stored["isSigned"]:
        return "whole numbers without a sign"
    if kind == "Decimal" and isinstance(column, DecimalType) and stored["scale"] != column.scale:
        return f"decimals of scale {stored['scale']}, and is {column} in the table"
    if kind is None and physical == "INT64" and isinstance(column, (TimestampType, TimestamptzType)):
        return "whole numbers, and is a timestamp in the table"
    return None


def _is_nanoseconds(column: IcebergType) -> bool:
    return str(column).endswith("_ns")


def _types_by_name(table: Table, schema: Any) -> dict[str, IcebergType]:
    """Return column of a file → type of the table's column that is read from it. schema: the file's, of Arrow."""
    mapping: NameMapping | None = table.name_mapping()
    ids: dict[str, int] = {}
    for field in mapping.root if mapping else []:
        if field.field_id is not None:
            ids.update(dict.fromkeys(field.names, field.field_id))
    by_id = {column.field_id: column.field_type for column in table.schema().fields}
    types = {}
    for field in schema:
        stored_id = (field.metadata or {}).get(FIELD_ID)
        field_id = ids.get(field.name) if stored_id is None else int(stored_id)
        if field_id in by_id:
            types[field.name] = by_id[field_id]
    return types
