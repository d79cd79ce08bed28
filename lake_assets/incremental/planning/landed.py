"""What each snapshot did to a raw table, landing hour by landing hour; and how late the rows came that it appended.

The first is told by metadata alone. The second takes the two time columns of the new files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFileContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table

from lake_assets.incremental.declaration import LANDED, RawTable, Source
from lake_assets.incremental.metadata.manifests import entries, own_manifests
from lake_assets.incremental.planning.changes import raw_history
from lake_assets.incremental.planning.data_files import DataFiles
from lake_assets.incremental.planning.lateness import LOOKBACK_HOURS, ArrivalCounter, Lateness


@dataclass(frozen=True)
class RawSnapshot:
    """One snapshot of a raw table.

    rows_by_hour: landing hour → rows of the files it added; 0 where it only removed files, or rows of files that stay.
    appends: whether these rows are new. event_lower, event_upper: bounds of its event times; None when unknown.
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
        return sum(self.rows_by_hour.values())


def raw_snapshots(table: Table, raw: RawTable, since: int | None, start: int) -> Iterator[RawSnapshot]:
    """The snapshots after `since` (None, or one that is gone: all retained), oldest first."""
    source = Source(raw.table, raw.time_column)
    files = DataFiles(table, source, start)
    for change in raw_history(table, source, since, start):
        times = [f.times for f in change.added if f.times]
        yield RawSnapshot(
            snapshot_id=change.snapshot_id,
            operation=change.operation,
            committed_at_ms=change.committed_at_ms,
            rows_by_hour=_rows_by_hour(files, change.snapshot_id),
            event_lower=_moment(min(t[0] for t in times)) if times else None,
            event_upper=_moment(max(t[1] for t in times)) if times else None,
            appends=change.effect == "append",
        )


def lateness(table: Table, raw: RawTable, snapshot: RawSnapshot, *, start: int) -> dict[int, Lateness]:
    """How late the rows came that a snapshot appended, by landing hour; nothing of any other snapshot.

    start: the pipeline's first event hour; rows before it do not count. Files that are gone tell nothing, either.
    """
    if not snapshot.appends or LANDED not in table.schema().column_names:
        return {}
    added = (e for e in _own_entries(table, snapshot.snapshot_id) if e.status is ManifestEntryStatus.ADDED)
    scan = ArrowScan(table.metadata, table.io, table.schema().select(raw.time_column, LANDED), ALWAYS_TRUE)
    counter = ArrivalCounter(raw.table, raw.time_column, start, LOOKBACK_HOURS)
    try:
        for batch in scan.to_record_batches([FileScanTask(e.data_file) for e in added]):
            counter.add(batch)
    except FileNotFoundError:  # compacted and expired meanwhile
        return {}
    return {hour.landed_hour: hour.lateness for hour in counter.result().by_landed_hour}


def _rows_by_hour(files: DataFiles, snapshot_id: int) -> dict[int, int]:
    """Of every partition that has a file which the snapshot added or removed, data or deletes."""
    rows: Counter[int] = Counter()
    for entry in _own_entries(files.table, snapshot_id):
        file, is_new = entry.data_file, entry.status is ManifestEntryStatus.ADDED
        if (hour := files.landing_hour(file)) is not None:
            rows[hour] += file.record_count if is_new and file.content is DataFileContent.DATA else 0
    return dict(sorted(rows.items()))


def _own_entries(table: Table, snapshot_id: int) -> Iterator[ManifestEntry]:
    """The files that a snapshot added or removed."""
    snapshot = table.snapshot_by_id(snapshot_id)
    for manifest in own_manifests(snapshot, table.io) if snapshot else []:
        for entry in entries(manifest, table.io, discard_deleted=False):
            if entry.status is not ManifestEntryStatus.EXISTING and entry.snapshot_id == snapshot_id:
                yield entry


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC)
