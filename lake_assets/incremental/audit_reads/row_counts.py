"""The number of rows of a source, without Spark: by the metadata of its snapshots, and the times of a few files.

Spark may read a file wrongly, and an audit that counted by the same reader would not see it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import NestedField, PrimitiveType

from lake_assets.base.hours import HOUR_MICROSECONDS
from lake_assets.incremental.metadata.arrow_scan import ArrowScan
from lake_assets.incremental.metadata.manifests import entries

MAX_FILES = 2_000
"""Most live data files whose entries are read. With more, a query that runs in parallel is cheaper."""

MAX_OPENED = 16
MAX_OPENED_BYTES = 64_000_000
"""Most files that are opened, and their size together."""


def rows_appended(table: Table, after: int | None, up_to: int | None) -> int | None:
    """Return the rows that the snapshots of a range appended, by the manifests that they wrote.

    Args:
        table: The source.
        after: The last snapshot before the range; None if every row is new.
        up_to: The last snapshot of the range; None if the table has none.

    Returns:
        None if a snapshot of the range is gone or changed rows, or if every row is new and some are deleted.
    """
    if up_to is None:
        return 0
    if after is None:
        return rows_at(table, up_to)
    rows = 0
    current = table.snapshot_by_id(up_to)
    while current is not None and current.snapshot_id != after:
        added = _rows_appended_by(table, current)
        if added is None:
            return None
        rows += added
        parent = current.parent_snapshot_id
        current = None if parent is None else table.snapshot_by_id(parent)
    return None if current is None else rows


def rows_at(table: Table, snapshot_id: int) -> int | None:
    """Return the rows of a snapshot; None if it is gone, or has delete files."""
    manifests = _data_manifests(table, snapshot_id)
    if manifests is None:
        return None
    rows = 0
    for manifest in manifests:
        rows += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
    return rows


def rows_in_hours(table: Table, snapshot_id: int, time_column: str, hours: Collection[int]) -> int | None:
    """Return the rows of a snapshot whose time lies in some hours, by the bounds of its data files.

    A file that has rows in some of the hours and may have others is opened, as its rows alone tell.

    Returns:
        None if the snapshot is gone or has delete files, or if there are too many data files to look at or to open.
    """
    manifests = _data_manifests(table, snapshot_id)
    if manifests is None or _number_of_files(manifests) > MAX_FILES:
        return None
    column = table.schema().find_field(time_column)
    ordered = sorted(set(hours))
    rows = 0
    to_open = []
    for file in _files(table, manifests):
        counted = _rows_of_file(file, column, ordered)
        if counted is None:
            to_open.append(file)
        else:
            rows += counted
    if len(to_open) > MAX_OPENED or sum(file.file_size_in_bytes for file in to_open) > MAX_OPENED_BYTES:
        return None
    return rows + _rows_read(table, time_column, to_open, ordered) if to_open else rows


def _rows_read(table: Table, time_column: str, files: Iterable[DataFile], hours: Sequence[int]) -> int:
    """Return the rows of some files whose time lies in some hours, by reading their times."""
    scan = ArrowScan(table.metadata, table.io, table.schema().select(time_column), ALWAYS_TRUE)
    rows = 0
    for batch in scan.to_record_batches([FileScanTask(file) for file in files]):
        times = batch.column(time_column)
        numbers = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).drop_null()
        found = np.floor_divide(numbers.to_numpy(zero_copy_only=False), HOUR_MICROSECONDS)
        rows += int(np.isin(found, hours).sum())
    return rows


def _rows_appended_by(table: Table, snapshot: Snapshot) -> int | None:
    """Return the rows that one snapshot appended: none if it compacted; None if it changed rows."""
    operation = snapshot.summary.operation if snapshot.summary else None
    if operation is Operation.REPLACE:
        return 0
    if operation is not Operation.APPEND:
        return None
    rows = 0
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.content is ManifestContent.DATA:
            rows += manifest.added_rows_count or 0
    return rows


def _data_manifests(table: Table, snapshot_id: int) -> list[ManifestFile] | None:
    """Return the manifests of a snapshot; None if it is gone, or if delete files hide some of its rows."""
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return None
    manifests = snapshot.manifests(table.io)
    if any(manifest.content is ManifestContent.DELETES for manifest in manifests):
        return None
    return manifests


def _number_of_files(manifests: Iterable[ManifestFile]) -> int:
    return sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)


def _files(table: Table, manifests: Iterable[ManifestFile]) -> Iterator[DataFile]:
    for manifest in manifests:
        for entry in entries(manifest, table.io, discard_deleted=True):
            yield entry.data_file


def _rows_of_file(file: DataFile, column: NestedField, hours: Sequence[int]) -> int | None:
    """Return the rows of a data file in some hours (ascending), if it has rows in all hours between its bounds or none.

    Rows without a time are in no hour.
    """
    nulls = (file.null_value_counts or {}).get(column.field_id)
    timed = None if nulls is None else file.record_count - nulls
    if timed == 0:
        return 0
    bounds = _bounds(file, column)
    if bounds is None:
        return None
    first, last = bounds
    wanted = bisect_right(hours, last) - bisect_left(hours, first)
    if wanted == 0:
        return 0
    return timed if wanted == last - first + 1 else None


def _bounds(file: DataFile, column: NestedField) -> tuple[int, int] | None:
    """Return the first and the last hour of a time column in a file; None if its metadata have none."""
    lower = (file.lower_bounds or {}).get(column.field_id)
    upper = (file.upper_bounds or {}).get(column.field_id)
    if lower is None or upper is None or not isinstance(column.field_type, PrimitiveType):
        return None
    first = int(from_bytes(column.field_type, lower))
    last = int(from_bytes(column.field_type, upper))
    return first // HOUR_MICROSECONDS, last // HOUR_MICROSECONDS
