"""When the rows of a raw table arrived: what each of its snapshots brought, by landing hour, and how late its rows are.

Lateness is the landing minus the event time, in whole seconds, rounded down; it is negative if a clock runs ahead.
Percentiles are nearest-rank, read from a histogram. Its steps are one second up to `EXACT_SECONDS`; beyond, they keep
the first eight binary digits of the value, as an HDR histogram does. A percentile is never above the true value, and
less than 1/128 below it. Counts, cells and maxima are exact. Memory grows with the number of hours, not of rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation

from lake_assets.base import columns
from lake_assets.base.hours import HOUR_MICROSECONDS, moment_at
from lake_assets.incremental.declaration import RawTable, Source
from lake_assets.incremental.engine.iceberg import changed_entries, files_of, live_entries, microseconds, rows_of_files
from lake_assets.incremental.engine.publish import operation_of
from lake_assets.incremental.engine.source_changes import HOUR_MILLISECONDS, SnapshotReader

EXACT_SECONDS = 256
"""Below this lateness, a step of the histogram is one second."""

SECOND_MICROSECONDS = 1_000_000

FOLD_ROWS = 500_000
"""Number of counted groups that may wait before they are added to the sums. Each addition reads all groups."""


@dataclass(frozen=True)
class Lateness:
    """The lateness of some rows: percentiles and maximum, in seconds."""

    rows: int
    p50_seconds: int
    p95_seconds: int
    max_seconds: int


@dataclass(frozen=True)
class LandedHour:
    """The rows that landed in one hour."""

    landed_hour: int
    lateness: Lateness


@dataclass(frozen=True)
class Cell:
    """The number of rows of one event hour that landed in one hour."""

    landed_hour: int
    event_hour: int
    rows: int


@dataclass(frozen=True)
class Arrivals:
    """The arrivals of the rows of one raw table; each delivery counts.

    Attributes:
        table: The raw table.
        rows: Number of all rows.
        unplaced: Rows that are left out of everything below. They have no time, are dated before the pipeline's start,
            or more than an hour after they landed.
        overall: Lateness of all rows; None without rows.
        by_landed_hour: Ascending; only hours with rows.
        cells: Ascending; only pairs of hours with rows.
    """

    table: str
    rows: int
    unplaced: int
    overall: Lateness | None
    by_landed_hour: tuple[LandedHour, ...]
    cells: tuple[Cell, ...]


_GROUP = ("landed_hour", "event_hour", "step")


def counted(batches: Iterable[pa.RecordBatch], raw: RawTable, start: int) -> Arrivals:
    """Return when the rows of some batches arrived.

    Args:
        batches: With the columns of the time and the landing, timestamps of at most microseconds. Without a column of
            the landing, they have `columns.LANDED`.
        start: The pipeline's first event hour.
    """
    all_rows = 0
    # The number of rows and the greatest lateness for each group of hours and step; of new batches, they wait.
    sums = pa.schema([(name, pa.int64()) for name in (*_GROUP, "rows", "most")]).empty_table()
    waiting: list[pa.Table] = []
    for batch in batches:
        all_rows += batch.num_rows
        times_us = [microseconds(batch, name) for name in (raw.time_column, raw.landed_column or columns.LANDED)]
        known = pa.table(times_us, ["event", "landed"]).drop_null()
        event, landed = (known[name].to_numpy() for name in known.column_names)
        placed = (event >= start * HOUR_MICROSECONDS) & (event - landed <= HOUR_MICROSECONDS)
        event, landed = event[placed], landed[placed]
        seconds = (landed - event) // SECOND_MICROSECONDS
        # The step of a lateness is its first binary digits, as many as the steps of one second have.
        _, digits = np.frexp(np.maximum(seconds, 1).astype(np.float64))
        dropped = np.maximum(digits.astype(np.int64) - EXACT_SECONDS.bit_length() + 1, 0)
        step = np.where(seconds < EXACT_SECONDS, seconds, (seconds >> dropped) << dropped)
        group = [landed // HOUR_MICROSECONDS, event // HOUR_MICROSECONDS, step]
        rows = pa.table([*group, np.ones(len(step), np.int64), seconds], sums.column_names)
        waiting.append(_summed(rows, *_GROUP))
        if sum(each.num_rows for each in waiting) > max(FOLD_ROWS, sums.num_rows):
            sums, waiting = _summed(pa.concat_tables([sums, *waiting]), *_GROUP), []
    sums = _summed(pa.concat_tables([sums, *waiting]), *_GROUP)
    groups = _summed(sums, "landed_hour", "event_hour").to_pylist()
    cells = tuple(Cell(each["landed_hour"], each["event_hour"], each["rows"]) for each in groups)
    histogram = _summed(sums, "landed_hour", "step")
    hours, starts, counts = np.unique(histogram["landed_hour"], return_index=True, return_counts=True)
    of_hours = (histogram.slice(*part) for part in zip(starts, counts, strict=True))
    return Arrivals(
        table=raw.table,
        rows=all_rows,
        unplaced=all_rows - sum(cell.rows for cell in cells),
        overall=_lateness(_summed(histogram, "step")) if cells else None,
        by_landed_hour=tuple(LandedHour(int(h), _lateness(of)) for h, of in zip(hours, of_hours, strict=True)),
        cells=cells,
    )


def _summed(rows: pa.Table, *keys: str) -> pa.Table:
    """Return one row for each group, ascending by the keys."""
    sums = rows.group_by(list(keys)).aggregate([("rows", "sum"), ("most", "max")])
    sums = sums.select([*keys, "rows_sum", "most_max"]).rename_columns([*keys, "rows", "most"])
    return sums.sort_by([(name, "ascending") for name in keys])


def _lateness(histogram: pa.Table) -> Lateness:
    """Return the lateness of the rows of one histogram, which is ascending by step."""
    rows_up_to = np.cumsum(histogram["rows"])
    rows = int(rows_up_to[-1])
    ranks = [-(-rows * percent // 100) for percent in (50, 95)]  # rounded up
    p50, p95 = (histogram["step"][int(place)].as_py() for place in np.searchsorted(rows_up_to, ranks))
    return Lateness(rows, p50, p95, pc.max(histogram["most"]).as_py())


def arrivals(table: Table, raw: RawTable, *, start: int) -> Arrivals:
    """Return when the rows of a raw table arrived.

    Without a column of the landing, they arrived with the snapshot that added them. Rows of a file that a rewrite
    added, or a snapshot that has expired, arrived at an unknown time.

    Args:
        start: The pipeline's first event hour.
    """
    if raw.landed_column is not None:
        return counted(_landed(table, raw, files_of(table), None), raw, start)
    appended_at = {}
    for snapshot in table.metadata.snapshots:
        if operation_of(snapshot) is Operation.APPEND:
            appended_at[snapshot.snapshot_id] = snapshot.timestamp_ms
    files: defaultdict[int | None, list[DataFile]] = defaultdict(list)
    for entry in live_entries(table, table.current_snapshot()):
        files[appended_at.get(entry.snapshot_id or 0)].append(entry.data_file)
    return counted((batch for at, added in files.items() for batch in _landed(table, raw, added, at)), raw, start)


def _landed(
    table: Table, raw: RawTable, files: Iterable[DataFile | FileScanTask], committed_at_ms: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield times and landings of some files. committed_at_ms: when they landed if the table has no column of it."""
    landed = [] if raw.landed_column is None else [raw.landed_column]
    committed = pa.scalar(committed_at_ms, pa.timestamp("ms", "UTC"))
    for batch in rows_of_files(table, files, [raw.time_column, *landed]):
        yield batch if landed else batch.append_column(columns.LANDED, pa.repeat(committed, batch.num_rows))


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


def raw_snapshots(table: Table, raw: RawTable, since: int | None, start: int) -> Iterator[RawSnapshot]:
    """Yield the snapshots of a raw table after a snapshot, oldest first. Reads metadata only.

    Args:
        table: The table.
        raw: Its declaration.
        since: Snapshot id; if it is None or has expired, all retained snapshots are returned.
        start: The pipeline's first event hour.
    """
    source = Source(raw.table, raw.time_column, landed_column=raw.landed_column)
    files = SnapshotReader(table, source, start)
    for change in files.history_since(since):
        # A file without a landing partition landed with its commit; a compaction lands none.
        commit_hour = change.committed_at_ms // HOUR_MILLISECONDS if raw.exists_already else None
        is_reported = commit_hour is None or (change.effect != "none" and commit_hour >= start)
        rows: Counter[int] = Counter()
        for entry in _changed_entries(table, change.snapshot_id) if is_reported else ():
            in_partition = files.landing_hour(entry.data_file)
            hour = commit_hour if in_partition is None else in_partition
            is_new = entry.status is ManifestEntryStatus.ADDED and entry.data_file.content is DataFileContent.DATA
            if hour is not None:
                rows[hour] += entry.data_file.record_count if is_new else 0
        times = [file.times for file in change.added if file.times]
        yield RawSnapshot(
            snapshot_id=change.snapshot_id,
            operation=change.operation,
            committed_at_ms=change.committed_at_ms,
            rows_by_hour=dict(sorted(rows.items())),
            event_lower=moment_at(min(lower for lower, _ in times)) if times else None,
            event_upper=moment_at(max(upper for _, upper in times)) if times else None,
            appends=change.effect == "append",
        )


def lateness(table: Table, raw: RawTable, snapshot: RawSnapshot, *, start: int) -> dict[int, Lateness]:
    """Return landing hour → lateness of the rows that a snapshot appended. Reads the two time columns of its files.

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
    added = [e for e in _changed_entries(table, snapshot.snapshot_id) if e.status is ManifestEntryStatus.ADDED]
    try:
        found = counted(_landed(table, raw, [e.data_file for e in added], snapshot.committed_at_ms), raw, start)
    except FileNotFoundError:  # the files were compacted and expired in the meantime
        return {}
    return {landed.landed_hour: landed.lateness for landed in found.by_landed_hour}


def _changed_entries(table: Table, snapshot_id: int) -> Iterator[ManifestEntry]:
    snapshot = table.snapshot_by_id(snapshot_id)
    return changed_entries(snapshot, table.io) if snapshot is not None else iter(())
