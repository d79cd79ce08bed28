"""Data files of other programs: whether Spark reads them rightly, and how many rows it must read at least.

Some Parquet files are read wrongly by Spark's Iceberg reader, or not at all, though other programs read them rightly.
Iceberg and Spark write none of them. They come into a table when a program adds files that it has written before
(`add_files`). Only their footers tell. Seen with Iceberg 1.12 on Spark 4.1:

- times in milliseconds or nanoseconds: dictionary pages are read as microseconds, and a filter loses all rows;
- a decimal with another scale than its column: 1.00 of scale 2 is read as 0.01 in a column of scale 4;
- whole numbers without a sign, and times without an annotation: Spark fails.

INT96 times, and 32 and 64 bit decimals, are read rightly.

Whatever else Spark may misread, what it has read is compared with the metadata of data files whose rows all lie in the
hours of a session, before anything is staged.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile

from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import DecimalType, TimestampType, TimestamptzType

from lake_assets.base.hours import HOUR_MICROSECONDS
from lake_assets.base.recent import Recent
from lake_assets.errors import files_misread, rows_unread
from lake_assets.incremental.engine.iceberg import bounds, changed_entries, in_avro, live_entries, named_data_file
from lake_assets.incremental.engine.publish import ancestors, operation_of

NAME_MAPPING = "schema.name-mapping.default"
"""Table property that files without field ids need. Each program that adds files sets it."""

DATA_PATH = "write.data.path"

READ_AT_ONCE = 16
CHECKED_FILES = 100_000
"""Number of files whose footers are remembered."""

_SCHEME = re.compile(r"^[a-z0-9]+:/+")

FIELD_ID = b"PARQUET:field_id"

_checked: Recent[tuple[str, int], str] = Recent(CHECKED_FILES)


def check_files(table: Table, name: str, snapshot_id: int | None, among: Collection[str] | None = None) -> None:
    """Check that Spark reads the live data files of a snapshot rightly.

    The footers of those that others may have written are opened, once a process.

    Args:
        table: The table.
        name: Its name.
        snapshot_id: The snapshot.
        among: Only these files are checked, if they are live; None for all.

    Raises:
        SourceError: It does not, or one is in Avro: Spark reads it, pyiceberg does not.
    """
    snapshot = table.snapshot_by_id(snapshot_id or 0)
    live = (entry.data_file.file_path for entry in live_entries(table, snapshot))
    paths = list(live) if among is None else among
    avro = min((path for path in paths if path.endswith(".avro")), default=None)
    if avro:
        raise in_avro(name, avro)
    suspects = [path for path in paths if _may_be_foreign(table, path)]
    if not suspects:
        return
    with ThreadPoolExecutor(READ_AT_ONCE) as threads:
        found = list(threads.map(partial(_flaw, table), suspects))
    misread = {path: flaw for path, flaw in zip(suspects, found, strict=True) if flaw}
    if misread and among is not None:
        misread = {path: misread[path] for path in misread.keys() & set(live)}
    if misread:
        path = min(misread)
        raise files_misread(name, path, misread[path], files=len(misread))


def has_foreign_files(table: Table) -> bool:
    """Whether another program may have added files to a table that it had written before."""
    return NAME_MAPPING in table.properties


def _may_be_foreign(table: Table, path: str) -> bool:
    if not path.endswith((".parquet", ".parq")) and "." in path.rpartition("/")[2]:
        return False
    # Without their schemes: `s3` and `s3a`, or `file:/` and `file:///`, name the same place.
    folder, place = (_SCHEME.sub("/", each) for each in (table.properties.get(DATA_PATH, table.location()), path))
    return has_foreign_files(table) or not place.startswith(folder.rstrip("/") + "/")


def _flaw(table: Table, path: str) -> str:
    """Return what Spark reads wrongly in a file; empty for nothing, and for a file that is gone or is no Parquet."""
    from pyarrow import parquet as pq

    key = path, table.schema().schema_id
    known = _checked.find(key)
    if known is not None:
        return known
    try:
        with table.io.new_input(path).open() as opened:
            file = pq.ParquetFile(opened)
            columns, schema = file.metadata.schema, file.schema_arrow
    except (OSError, ValueError):  # reading its rows reports a missing or damaged file
        return ""
    # A column of a file is read as that of the table with its field id, which a name mapping may give it.
    mapping = table.name_mapping()
    ids = {name: each.field_id for each in (mapping.root if mapping else ()) for name in each.names}
    by_id = {column.field_id: column.field_type for column in table.schema().fields}
    types = {}
    for field in schema:
        stored_id = (field.metadata or {}).get(FIELD_ID)
        types[field.name] = by_id.get(int(stored_id or ids.get(field.name) or 0))
    flaw = ""
    for leaf in map(columns.column, range(len(columns))):
        column = types.get(leaf.path.partition(".")[0])
        stored = json.loads(leaf.logical_type.to_json()) if leaf.logical_type.type != "NONE" else {}
        kind, what = stored.get("Type"), ""
        unit = "nanoseconds" if str(column).endswith("_ns") else "microseconds"
        if kind == "Timestamp" and stored["timeUnit"] != unit:
            what = f"times in {stored['timeUnit']}"
        elif kind == "Int" and not stored["isSigned"]:
            what = "whole numbers without a sign"
        elif kind == "Decimal" and isinstance(column, DecimalType) and stored["scale"] != column.scale:
            what = f"decimals of scale {stored['scale']}, and is {column} in the table"
        elif kind is None and leaf.physical_type == "INT64" and isinstance(column, (TimestampType, TimestamptzType)):
            what = "whole numbers, and is a timestamp in the table"
        if column and what:
            flaw = f"the column {leaf.path} is stored as {what}"
            break
    _checked.keep(key, flaw)
    return flaw


MOST_FILES = 5_000
"""Most data files that are looked at; the bound of some of them is a bound, too."""


@dataclass(frozen=True)
class LeastRows:
    """A lower bound of what is read.

    Attributes:
        table: The source.
        rows: Rows, with a time or without.
        timed: Rows whose time lies between `first` and `last`.
        first: The earliest time of these rows, microseconds since 1970.
        last: The latest time, inclusive.
        path: One of the files.
    """

    table: str
    rows: int = 0
    timed: int = 0
    first: int = 0
    last: int = -1
    path: str = ""

    def check(self, *, read: int, timed: int) -> None:
        """Check what was read: all rows, and those with a time between `first` and `last`.

        Raises:
            SourceError: There are fewer.
        """
        if timed < self.timed:
            raise rows_unread(self.table, read=timed, least=self.timed, path=self.path)
        if read < self.rows:
            raise rows_unread(self.table, read=read, least=self.rows, path=self.path)


def least_rows(
    table: Table,
    name: str,
    column: str,
    *,
    up_to: int | None,
    after: int | None = None,
    hours: Collection[int] | None = None,
    left_out: Collection[int] = (),
) -> LeastRows:
    """Return the least rows of a snapshot, or of those that were appended.

    Args:
        table: The source.
        name: Its name.
        column: The time column.
        up_to: The snapshot; None if the table has none.
        after: The last snapshot before those whose appended rows are read; None if every row is.
        hours: The hours whose rows are read; None for all rows, with a time or without.
        left_out: Hours whose rows are not read.
    """
    snapshot = table.snapshot_by_id(up_to or 0)
    if snapshot is None:
        return LeastRows(name)
    field = table.schema().find_field(column)
    ordered = sorted(set(left_out if hours is None else hours))
    least = LeastRows(name)
    files = _undeleted_files(table, snapshot) if after is None else _appended_files(table, snapshot, after)
    for file in islice(files, MOST_FILES):
        times = bounds(file, field)
        is_read = hours is None and not ordered
        if ordered and times is not None:
            first, last = (each // HOUR_MICROSECONDS for each in times)
            named = bisect_right(ordered, last) - bisect_left(ordered, first)
            is_read = named == (0 if hours is None else last - first + 1)
        if not is_read:
            continue
        least = replace(least, rows=least.rows + file.record_count, path=least.path or file.file_path)
        nulls = 0 if field.required else (file.null_value_counts or {}).get(field.field_id)
        if times is not None and nulls is not None:
            first, last = times if least.last < least.first else (min(times[0], least.first), max(times[1], least.last))
            least = replace(least, timed=least.timed + file.record_count - nulls, first=first, last=last)
    return least if hours is None else replace(least, rows=least.timed)


def _undeleted_files(table: Table, snapshot: Snapshot) -> Iterator[DataFile]:
    """Yield live data files of a snapshot, at most `MOST_FILES`, without those that delete files may name rows of."""
    deletes = [entry.data_file for entry in live_entries(table, snapshot, ManifestContent.DELETES)]
    named = {named_data_file(delete) for delete in deletes}
    unnamed = [delete for delete in deletes if named_data_file(delete) is None]
    partitions = {(delete.spec_id, delete.partition) for delete in unnamed}
    if any(not delete.partition for delete in unnamed):
        return
    for entry in islice(live_entries(table, snapshot), MOST_FILES):
        file = entry.data_file
        if file.file_path not in named and (file.spec_id, file.partition) not in partitions:
            yield file


def _appended_files(table: Table, head: Snapshot, after: int) -> Iterator[DataFile]:
    """Yield the data files that the snapshots after one, up to the head, appended."""
    for snapshot in takewhile(lambda each: each.snapshot_id != after, ancestors(table, head.snapshot_id)):
        if operation_of(snapshot) is Operation.APPEND:
            for entry in changed_entries(snapshot, table.io):
                if entry.status is ManifestEntryStatus.ADDED and entry.data_file.content is DataFileContent.DATA:
                    yield entry.data_file
