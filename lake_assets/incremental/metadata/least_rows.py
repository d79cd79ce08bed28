"""How many rows of a source a session reads at least, by the metadata of data files whose rows all lie in its hours.

Spark does not read every file as it was written. What it has read is compared with this, before anything is staged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import NestedField, PrimitiveType

from lake_assets.base.hours import HOUR_MICROSECONDS
from lake_assets.errors import RowsUnread
from lake_assets.incremental.metadata.manifests import changed_entries, entries, named_data_file, own_manifests

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
            RowsUnread: There are fewer.
        """
        if timed < self.timed:
            raise RowsUnread(self.table, read=timed, least=self.timed, path=self.path)
        if read < self.rows:
            raise RowsUnread(self.table, read=read, least=self.rows, path=self.path)


def in_hours(table: Table, name: str, snapshot_id: int | None, column: str, hours: Collection[int]) -> LeastRows:
    """Return the least rows of a snapshot whose time lies in some hours."""
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    if snapshot is None or not hours:
        return LeastRows(name)
    ordered = sorted(set(hours))
    field = table.schema().find_field(column)
    found = []
    for file in _live_files(table, snapshot):
        times = _times(file, field)
        if times is not None and _are_all_in(times, ordered):
            found.append((file, times))
    least = _sum(name, field, found)
    return LeastRows(name, least.timed, least.timed, least.first, least.last, least.path)


def appended(
    table: Table, name: str, after: int | None, up_to: int | None, column: str, *, left_out: Collection[int] = ()
) -> LeastRows:
    """Return the least rows that the snapshots of a range appended.

    Args:
        table: The source.
        name: Its name.
        after: The last snapshot before the range; None if every row of the last snapshot is read.
        up_to: The last snapshot of the range; None if the table has none.
        column: The time column.
        left_out: Hours whose rows are not read.
    """
    snapshot = None if up_to is None else table.snapshot_by_id(up_to)
    if snapshot is None:
        return LeastRows(name)
    field = table.schema().find_field(column)
    files = _live_files(table, snapshot) if after is None else _appended_files(table, snapshot, after)
    ordered = sorted(set(left_out))
    found = []
    for file in islice(files, MOST_FILES):
        times = _times(file, field)
        if not ordered or (times is not None and _are_none_in(times, ordered)):
            found.append((file, times))
    return _sum(name, field, found)


def _sum(name: str, field: NestedField, files: Iterable[tuple[DataFile, tuple[int, int] | None]]) -> LeastRows:
    rows = timed = 0
    path = ""
    bounds: list[tuple[int, int]] = []
    for file, times in files:
        rows += file.record_count
        path = path or file.file_path
        nulls = 0 if field.required else (file.null_value_counts or {}).get(field.field_id)
        if times is not None and nulls is not None:
            timed += file.record_count - nulls
            bounds.append(times)
    if not bounds:
        return LeastRows(name, rows, path=path)
    return LeastRows(name, rows, timed, min(first for first, _ in bounds), max(last for _, last in bounds), path)


def _live_files(table: Table, snapshot: Snapshot) -> Iterator[DataFile]:
    """Yield live data files of a snapshot, at most `MOST_FILES`, without those that delete files may name rows of."""
    manifests = snapshot.manifests(table.io)
    deletes = []
    for manifest in manifests:
        if manifest.content is ManifestContent.DELETES:
            deletes += [entry.data_file for entry in entries(manifest, table.io, discard_deleted=True)]
    named = {named_data_file(delete) for delete in deletes}
    unnamed = [delete for delete in deletes if named_data_file(delete) is None]
    everywhere = any(not delete.partition for delete in unnamed)
    partitions = {(delete.spec_id, delete.partition) for delete in unnamed}
    left = MOST_FILES
    for manifest in manifests:
        if manifest.content is ManifestContent.DELETES or everywhere or not left:
            continue
        for entry in islice(entries(manifest, table.io, discard_deleted=True), left):
            left -= 1
            file = entry.data_file
            if file.file_path not in named and (file.spec_id, file.partition) not in partitions:
                yield file


def _appended_files(table: Table, head: Snapshot, after: int) -> Iterator[DataFile]:
    """Yield the data files that the snapshots after one, up to the head, appended."""
    current: Snapshot | None = head
    while current is not None and current.snapshot_id != after:
        if current.summary is not None and current.summary.operation is Operation.APPEND:
            for entry in changed_entries(own_manifests(current, table.io), table.io, current.snapshot_id):
                if entry.status is ManifestEntryStatus.ADDED and entry.data_file.content is DataFileContent.DATA:
                    yield entry.data_file
        parent = current.parent_snapshot_id
        current = None if parent is None else table.snapshot_by_id(parent)


def _times(file: DataFile, field: NestedField) -> tuple[int, int] | None:
    lower = (file.lower_bounds or {}).get(field.field_id)
    upper = (file.upper_bounds or {}).get(field.field_id)
    if lower is None or upper is None or not isinstance(field.field_type, PrimitiveType):
        return None
    return int(from_bytes(field.field_type, lower)), int(from_bytes(field.field_type, upper))


def _are_all_in(times: tuple[int, int], hours: list[int]) -> bool:
    """Whether each hour between two times is one of some hours, which are ascending."""
    first, last = (each // HOUR_MICROSECONDS for each in times)
    return _number_in(first, last, hours) == last - first + 1


def _are_none_in(times: tuple[int, int], hours: list[int]) -> bool:
    first, last = (each // HOUR_MICROSECONDS for each in times)
    return _number_in(first, last, hours) == 0


def _number_in(first: int, last: int, hours: list[int]) -> int:
    return bisect_right(hours, last) - bisect_left(hours, first)
