"""What each snapshot did to a raw table, by landing hour, and the lateness of the rows that it appended.

The first needs metadata only. The second reads the two time columns of the new files.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot

from lake_assets.base import columns
from lake_assets.base.hours import moment_at
from lake_assets.incremental.declaration import RawTable, Source
from lake_assets.incremental.metadata.arrow_scan import ArrowScan
from lake_assets.incremental.metadata.manifests import changed_entries, entries, own_manifests
from lake_assets.incremental.planning.changes import SnapshotChange, raw_history
from lake_assets.incremental.planning.changes.data_files import HOUR_MILLISECONDS, DataFiles, TimeRange
from lake_assets.incremental.planning.lateness import LOOKBACK_HOURS, ArrivalCounter, Lateness


@dataclass(frozen=True)
class RawSnapshot:
    """One snapshot of a raw table.

    Attributes:
        snapshot_id: The snapshot.
        operation: Iceberg's operation.
        committed_at_ms: Commit time, milliseconds since 1970.
        rows_by_hour: Landing hour → rows of the data files that the snapshot added there; 0 if it only removed files or
            added delete files.
        event_lower: Lower bound of the event times of the new rows, or the first moment that Python knows; None if
            unknown.
        event_upper: Upper bound of the event times of the new rows, or the last moment that Python knows; None if
            unknown.
        appends: Whether the added rows are new.
    """

    snapshot_id: int
    operation: str
    committed_at_ms: int
    rows_by_hour: Mapping[int, int]
    event_lower: datetime | None
    event_upper: datetime | None
    appends: bool = False

    @property
    def rows(self) -> int:
        """The rows of all added files."""
        return sum(self.rows_by_hour.values())


def raw_snapshots(
    table: Table,
    raw: RawTable,
    since: int | None,
    start: int,
) -> Iterator[RawSnapshot]:
    """Yield the snapshots of a raw table after a snapshot, oldest first.

    Args:
        table: The table.
        raw: Its declaration.
        since: Snapshot id; if it is None or has expired, all retained snapshots are returned.
        start: The pipeline's first event hour.
    """
    source = Source(raw.table, raw.time_column, landed_column=raw.landed_column)
    files = DataFiles(table, source, start)
    for change in raw_history(table, source, since, start):
        times = _time_range(change)
        commit_hour = change.committed_at_ms // HOUR_MILLISECONDS
        yield RawSnapshot(
            snapshot_id=change.snapshot_id,
            operation=change.operation,
            committed_at_ms=change.committed_at_ms,
            rows_by_hour=_rows_by_hour(files, change, None if not raw.exists_already else commit_hour),
            event_lower=moment_at(times[0]) if times else None,
            event_upper=moment_at(times[1]) if times else None,
            appends=change.effect == "append",
        )


def lateness(
    table: Table,
    raw: RawTable,
    snapshot: RawSnapshot,
    *,
    start: int,
) -> dict[int, Lateness]:
    """Return the lateness of the rows that a snapshot appended, by landing hour.

    Args:
        table: The table.
        raw: Its declaration.
        snapshot: One of its snapshots.
        start: The pipeline's first event hour; earlier rows do not count.

    Returns:
        Empty if the snapshot is no append, or its files are gone.
    """
    if not snapshot.appends:
        return {}
    counter = arrival_counter(raw, start)
    try:
        _count_arrivals(table, raw, snapshot, counter)
    except FileNotFoundError:  # the files were compacted and expired in the meantime
        return {}
    return {landed.landed_hour: landed.lateness for landed in counter.result().by_landed_hour}


def _count_arrivals(table: Table, raw: RawTable, snapshot: RawSnapshot, counter: ArrivalCounter) -> None:
    new_files: list[FileScanTask] = []
    for entry in _changed_entries(table, snapshot.snapshot_id):
        if entry.status is ManifestEntryStatus.ADDED:
            new_files.append(FileScanTask(entry.data_file))
    for batch in _read_times(table, raw, new_files, snapshot.committed_at_ms):
        counter.add(batch)


def count_by_commit(table: Table, raw: RawTable, counter: ArrivalCounter) -> None:
    """Count the rows of a table without a column of the landing. They arrived with the snapshot that added them.

    Rows of a file that a rewrite added, or a snapshot that has expired, arrived at an unknown time.

    Args:
        table: The table.
        raw: Its declaration.
        counter: Counts the rows.
    """
    appended_at = {s.snapshot_id: s.timestamp_ms for s in table.metadata.snapshots if _is_append(s)}
    files: defaultdict[int | None, list[FileScanTask]] = defaultdict(list)
    for entry in _live_data(table):
        files[appended_at.get(entry.snapshot_id or 0)].append(FileScanTask(entry.data_file))
    for committed_at_ms, tasks in files.items():
        for batch in _read_times(table, raw, tasks, committed_at_ms):
            counter.add(batch)


def arrival_counter(raw: RawTable, start: int) -> ArrivalCounter:
    """Return a counter of the rows of a raw table, as `_read_times` reads them."""
    landed_column = raw.landed_column or columns.LANDED
    return ArrivalCounter(raw.table, raw.time_column, start, LOOKBACK_HOURS, landed_column)


def _live_data(table: Table) -> Iterator[ManifestEntry]:
    """Yield the entries of the live data files of the head."""
    head = table.current_snapshot()
    for manifest in head.manifests(table.io) if head else []:
        if manifest.content is ManifestContent.DATA:
            yield from entries(manifest, table.io, discard_deleted=True)


def _is_append(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.APPEND


def _read_times(
    table: Table, raw: RawTable, files: Iterable[FileScanTask], committed_at_ms: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the time and the landing, which is the time of the commit if the table has no column of it."""
    landed = [] if raw.landed_column is None else [raw.landed_column]
    times = table.schema().select(raw.time_column, *landed)
    scan = ArrowScan(table.metadata, table.io, times, ALWAYS_TRUE)
    committed = pa.scalar(committed_at_ms, pa.timestamp("ms", "UTC"))
    for batch in scan.to_record_batches(files):
        yield batch if landed else batch.append_column(columns.LANDED, pa.repeat(committed, batch.num_rows))


def _time_range(change: SnapshotChange) -> TimeRange | None:
    """Return the bounds of the event times of all added files that have bounds."""
    known = [file.times for file in change.added if file.times]
    if not known:
        return None
    lowest = min(lower for lower, _ in known)
    highest = max(upper for _, upper in known)
    return lowest, highest


def _rows_by_hour(files: DataFiles, change: SnapshotChange, commit_hour: int | None) -> dict[int, int]:
    """Return landing hour → added rows, for each partition in which the snapshot added or removed a file.

    Args:
        files: The files of the table.
        change: The snapshot.
        commit_hour: When files without a landing partition landed; None to leave them out. A compaction lands none.
    """
    rows: Counter[int] = Counter()
    if commit_hour is not None and (change.effect == "none" or commit_hour < files.start):
        return {}
    for entry in _changed_entries(files.table, change.snapshot_id):
        hour = _landing_hour(files, entry, commit_hour)
        if hour is not None:
            rows[hour] += _rows_added(entry)
    return dict(sorted(rows.items()))


def _landing_hour(files: DataFiles, entry: ManifestEntry, commit_hour: int | None) -> int | None:
    found = files.landing_hour(entry.data_file)
    return commit_hour if found is None else found


def _rows_added(entry: ManifestEntry) -> int:
    is_new_data = entry.status is ManifestEntryStatus.ADDED and entry.data_file.content is DataFileContent.DATA
    return entry.data_file.record_count if is_new_data else 0


def _changed_entries(table: Table, snapshot_id: int) -> Iterator[ManifestEntry]:
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is not None:
        yield from changed_entries(own_manifests(snapshot, table.io), table.io, snapshot_id)
