"""The event hours in which earlier versions of the changed keys of a source stand, if its rows have versions.

A correction may move a row to another hour. Then the hour that the row leaves changes, too, and nothing in the new
files says which one it is. So the keys of the new files are looked up in the files before them: only the columns of
key, time and landing are read, and only of files whose bounds may include one of the keys. The hours found may be too
many, because an earlier version may be superseded already: such an hour comes out as it was published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression, In
from pyiceberg.manifest import DataFile
from pyiceberg.table import ALWAYS_TRUE, FileScanTask
from pyiceberg.types import PrimitiveType

from lake_assets.base.hours import ranges
from lake_assets.incremental.declaration import Source
from lake_assets.incremental.metadata.arrow_scan import ArrowScan
from lake_assets.incremental.planning.changes.row_hours import HourRange
from lake_assets.incremental.planning.changes.snapshot_reader import SnapshotReader, merge_ranges
from lake_assets.incremental.planning.changes.source_changes import EarlierVersions, SourceChanges

MAX_CHANGED_ROWS = 5_000_000
"""Up to this many new rows their keys are looked up, because they are held in memory. With more, all hours change."""

MAX_FILTERED_KEYS = 200
"""Up to this many keys are sought by the statistics of a file's row groups; above, Iceberg does not use them."""

FILES_AT_ONCE = 16
"""Number of files whose rows may be in memory at a time."""


def earlier_versions(reader: SnapshotReader, source: Source, changes: SourceChanges) -> EarlierVersions:
    """Return the earlier versions of the keys that changed after a watermark.

    If rows were removed, an earlier version may count again, and nothing says of which key: all hours are returned.
    So they are if the new rows are too many, or if a file is gone from the storage.

    Args:
        reader: Reads the source table.
        source: Its declaration, with versions.
        changes: What changed in it.
    """
    if not _had_rows(changes) or not changes.effective:
        return EarlierVersions()
    old_files = _old_files(reader, changes)
    if not changes.appends_only:
        return _all_hours(reader, changes, [*old_files, *_files(reader, changes.head.snapshot_id)])
    if changes.rows_added > MAX_CHANGED_ROWS:
        return _all_hours(reader, changes, old_files)
    lookup = _Lookup(reader, source)
    try:
        keys = lookup.keys([reader.files.file(file) for file in changes.added])
        return lookup.versions(old_files, keys)
    except FileNotFoundError:
        return _all_hours(reader, changes, old_files)


def _had_rows(changes: SourceChanges) -> bool:
    return changes.since is not None and changes.since.snapshot_id is not None


def _old_files(reader: SnapshotReader, changes: SourceChanges) -> list[DataFile]:
    """Return the files as of the watermark; those of the head, which has their rows, if its snapshot has expired."""
    assert changes.since is not None
    snapshot_id = changes.head.snapshot_id if changes.since_expired else changes.since.snapshot_id
    return _files(reader, snapshot_id)


class _Lookup:
    """Reads keys and times of a source's data files."""

    def __init__(self, reader: SnapshotReader, source: Source) -> None:
        assert source.key is not None, "a source with versions has a key"
        self.table = reader.table
        self.key = source.key
        self.row_hours = reader.files.row_hours

    def keys(self, files: Sequence[DataFile]) -> pa.Array:
        """Return the keys of the rows of some files, each once, without null."""
        found = []
        for batch in self._read(files, [self.key]):
            found.append(_plain(batch.column(self.key)).unique())
        if not found:
            return pa.array([])
        return pa.chunked_array(found).unique().drop_null()

    def versions(self, files: Sequence[DataFile], keys: pa.Array) -> EarlierVersions:
        """Return the rows of some files that have one of the keys. A row that quarantine rejects has no hour."""
        if not len(keys):
            return EarlierVersions()
        bounds = _bounds(keys)
        may_match = [file for file in files if self._may_have(file, bounds)]
        columns = list(dict.fromkeys([self.key, *self.row_hours.columns]))
        batches = self._read(may_match, columns, self._condition(keys))
        exist = False
        hours: set[int] = set()
        for batch in _with_keys(batches, self.key, keys):
            exist = exist or batch.num_rows > 0
            hours |= self.row_hours.accepted([batch])
        return EarlierVersions(exist, tuple(ranges(hours)))

    def _read(
        self, files: Sequence[DataFile], columns: Sequence[str], condition: BooleanExpression = ALWAYS_TRUE
    ) -> Iterator[pa.RecordBatch]:
        # Delete files are not applied: a deleted version adds an hour that comes out as it was published.
        schema = self.table.schema().select(*columns)
        scan = ArrowScan(self.table.metadata, self.table.io, schema, condition)
        for start in range(0, len(files), FILES_AT_ONCE):
            tasks = [FileScanTask(file) for file in files[start : start + FILES_AT_ONCE]]
            yield from scan.to_record_batches(tasks)

    def _condition(self, keys: pa.Array) -> BooleanExpression:
        if len(keys) > MAX_FILTERED_KEYS or _bounds(keys) is None:
            return ALWAYS_TRUE
        return In(self.key, set(keys.to_pylist()))  # type: ignore[call-arg, arg-type]

    def _may_have(self, file: DataFile, wanted: tuple[Any, Any] | None) -> bool:
        """Whether the bounds of a file may include one of the keys, of which `wanted` are the least and greatest."""
        field = self.table.schema().find_field(self.key)
        lower = (file.lower_bounds or {}).get(field.field_id)
        upper = (file.upper_bounds or {}).get(field.field_id)
        if wanted is None or lower is None or upper is None or not isinstance(field.field_type, PrimitiveType):
            return True
        least, greatest = wanted
        first, last = from_bytes(field.field_type, lower), from_bytes(field.field_type, upper)
        return bool(first <= greatest and least <= last)


def _plain(values: pa.Array) -> pa.Array:
    """Return values as they are stored: Arrow cannot compare those of an extension type, as a uuid is."""
    return values.storage if isinstance(values.type, pa.BaseExtensionType) else values


def _with_keys(batches: Iterable[pa.RecordBatch], column: str, keys: pa.Array) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = _plain(batch.column(column)).cast(keys.type)
        yield batch.filter(pc.is_in(found, value_set=keys))


def _bounds(keys: pa.Array) -> tuple[Any, Any] | None:
    """Return the least and the greatest key; None if they are of a type whose bounds are not compared."""
    if not (pa.types.is_integer(keys.type) or pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        return None
    values = pc.min_max(keys)
    return values["min"].as_py(), values["max"].as_py()


def _files(reader: SnapshotReader, snapshot_id: int | None) -> list[DataFile]:
    snapshot = reader.snapshot(snapshot_id)
    return [] if snapshot is None else reader.live_files(snapshot)


def _all_hours(reader: SnapshotReader, changes: SourceChanges, files: Sequence[DataFile]) -> EarlierVersions:
    """Return the hours of all rows of some files, by metadata."""
    head = reader.snapshot(changes.head.snapshot_id)
    if head is None:
        return EarlierVersions()
    found: list[HourRange] = []
    for file in files:
        described = reader.files.change(file, head)
        if described.row_hours:
            found += described.row_hours
        elif described.hours:
            found.append(described.hours)
    return EarlierVersions(exist=True, hours=merge_ranges(found))
