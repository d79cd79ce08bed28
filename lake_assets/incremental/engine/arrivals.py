"""The lateness of the rows of a raw table, counted from its two time columns batch by batch. Pure.

Lateness is the landing minus the event time, in whole seconds, rounded down; it is negative if a clock runs ahead.
Percentiles are nearest-rank, read from a histogram. Its steps are one second up to `EXACT_SECONDS`; beyond, they keep
the first eight binary digits of the value, as an HDR histogram does. A percentile is never above the true value, and
less than 1/128 below it. Counts, cells and maxima are exact.

Memory grows with the number of hours, not with the number of rows.

What each snapshot did to a raw table, by landing hour, and the lateness of the rows that it appended.

The first needs metadata only. The second reads the two time columns of the new files.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFileContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot

from lake_assets.base import columns
from lake_assets.base.hours import HOUR_MICROSECONDS, moment_at
from lake_assets.incremental.declaration import RawTable, Source
from lake_assets.incremental.engine.iceberg import ArrowScan, changed_entries, live_entries
from lake_assets.incremental.engine.source_changes import (
    HOUR_MILLISECONDS,
    SnapshotChange,
    SnapshotReader,
    TimeRange,
    raw_history,
)

LOOKBACK_HOURS = 6
"""The fixed lookback that reports compare arrivals and sessions with."""

EXACT_SECONDS = 256
"""Below this lateness, a step of the histogram is one second."""

SECOND_MICROSECONDS = 1_000_000

FOLD_ROWS = 500_000
"""Number of counted groups that may wait before they are added to the sums. Each addition reads all groups."""

SUMS = [("rows", "sum"), ("most", "max")]
"""How groups are added: their rows, and the greatest lateness."""

Ints = npt.NDArray[np.int64]


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
        rows_beyond_lookback: Rows that landed more hours after their event hour than a fixed lookback covers.
        overall: Lateness of all rows; None without rows.
        by_landed_hour: Ascending; only hours with rows.
        cells: Ascending; only pairs of hours with rows.
    """

    table: str
    rows: int
    unplaced: int
    rows_beyond_lookback: int
    overall: Lateness | None
    by_landed_hour: tuple[LandedHour, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class _Times:
    """Event and landing times, microseconds since 1970, one element for each row."""

    event: Ints
    landed: Ints


@dataclass
class ArrivalCounter:
    """Counts the rows of a raw table batch by batch.

    Attributes:
        table: The raw table.
        time_column: Its column of the event time.
        start: The pipeline's first event hour.
        lookback_hours: The fixed lookback that `Arrivals.rows_beyond_lookback` refers to.
        landed_column: The column of the landing.
    """

    table: str
    time_column: str
    start: int
    lookback_hours: int
    landed_column: str
    _rows: int = 0
    _placed: int = 0
    _lateness: _GroupedCounts = field(default_factory=lambda: _GroupedCounts(("landed_hour", "step")))
    _cells: _GroupedCounts = field(default_factory=lambda: _GroupedCounts(("landed_hour", "event_hour")))

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch with the columns of the time and the landing, timestamps of at most microseconds."""
        times = self._placed_times(batch)
        self._rows += batch.num_rows
        self._placed += len(times.event)
        seconds = (times.landed - times.event) // SECOND_MICROSECONDS
        landed_hour = times.landed // HOUR_MICROSECONDS
        event_hour = times.event // HOUR_MICROSECONDS
        self._lateness.add({"landed_hour": landed_hour, "step": _steps(seconds)}, seconds)
        self._cells.add({"landed_hour": landed_hour, "event_hour": event_hour}, seconds)

    def result(self) -> Arrivals:
        """Return the counts of all batches so far."""
        cells = self._cells_with_rows()
        histogram = self._lateness.sorted()
        overall = _lateness(_over_all_hours(histogram)) if histogram.num_rows else None
        return Arrivals(
            table=self.table,
            rows=self._rows,
            unplaced=self._rows - self._placed,
            rows_beyond_lookback=self._rows_beyond_lookback(cells),
            overall=overall,
            by_landed_hour=tuple(_by_landed_hour(histogram)),
            cells=cells,
        )

    def _cells_with_rows(self) -> tuple[Cell, ...]:
        cells: list[Cell] = []
        for group in self._cells.sorted().to_pylist():
            cells.append(Cell(group["landed_hour"], group["event_hour"], group["rows"]))
        return tuple(cells)

    def _rows_beyond_lookback(self, cells: tuple[Cell, ...]) -> int:
        rows = 0
        for cell in cells:
            if cell.landed_hour - cell.event_hour > self.lookback_hours:
                rows += cell.rows
        return rows

    def _placed_times(self, batch: pa.RecordBatch) -> _Times:
        """Return the times of the rows that lie in an hour that counts."""
        event_or_null = _microseconds(batch.column(self.time_column))
        landed_or_null = _microseconds(batch.column(self.landed_column))
        both_valid = pc.and_(pc.is_valid(event_or_null), pc.is_valid(landed_or_null))
        is_known = both_valid.to_numpy(zero_copy_only=False)
        event = _as_numbers(event_or_null)[is_known]
        landed = _as_numbers(landed_or_null)[is_known]
        is_after_start = event >= self.start * HOUR_MICROSECONDS
        is_not_ahead = event - landed <= HOUR_MICROSECONDS
        is_placed = is_after_start & is_not_ahead
        return _Times(event[is_placed], landed[is_placed])


class _GroupedCounts:
    """The number of rows and the greatest lateness for each combination of keys.

    Groups of several batches are added to the sums together.
    """

    def __init__(self, keys: tuple[str, ...]) -> None:
        columns = (*keys, "rows", "most")
        self._keys = keys
        schema = pa.schema([(name, pa.int64()) for name in columns])
        self._groups = schema.empty_table()
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0

    def add(self, keys: Mapping[str, Ints], seconds: Ints) -> None:
        """Count one row for each element of the arrays. seconds: their lateness."""
        ones = np.ones(len(seconds), np.int64)
        rows = pa.table({**keys, "rows": ones, "most": seconds})
        groups = self._summed(rows)
        self._waiting.append(groups)
        self._waiting_rows += groups.num_rows
        if self._waiting_rows > max(FOLD_ROWS, self._groups.num_rows):
            self._fold()

    def sorted(self) -> pa.Table:
        """Return one row for each group: the keys, rows, most; ascending by the keys."""
        self._fold()
        return self._groups.sort_by([(name, "ascending") for name in self._keys])

    def _fold(self) -> None:
        counted = pa.concat_tables([self._groups, *self._waiting])
        self._groups = self._summed(counted)
        self._waiting = []
        self._waiting_rows = 0

    def _summed(self, rows: pa.Table) -> pa.Table:
        groups = rows.group_by(list(self._keys))
        sums = groups.aggregate(SUMS)
        ordered = sums.select([*self._keys, "rows_sum", "most_max"])
        return ordered.rename_columns([*self._keys, "rows", "most"])


def _microseconds(times: pa.Array) -> pa.Array:
    in_microseconds = times.cast(pa.timestamp("us", times.type.tz))
    return in_microseconds.cast(pa.int64())


def _as_numbers(times: pa.Array) -> Ints:
    numbers: Ints = pc.fill_null(times, 0).to_numpy(zero_copy_only=False)
    return numbers


def _steps(seconds: Ints) -> Ints:
    """Return the histogram step of each lateness: the least lateness of that step."""
    positive = np.maximum(seconds, 1)
    _, exponents = np.frexp(positive.astype(np.float64))
    binary_digits = exponents.astype(np.int64)
    kept_digits = EXACT_SECONDS.bit_length() - 1
    dropped = np.maximum(binary_digits - kept_digits, 0)
    return np.where(seconds < EXACT_SECONDS, seconds, (seconds >> dropped) << dropped)


def _by_landed_hour(histogram: pa.Table) -> Iterator[LandedHour]:
    hours = histogram["landed_hour"].to_numpy()
    found, starts, counts = np.unique(hours, return_index=True, return_counts=True)
    for hour, first, count in zip(found, starts, counts, strict=True):
        of_hour = histogram.slice(first, count)
        yield LandedHour(int(hour), _lateness(of_hour))


def _over_all_hours(histogram: pa.Table) -> pa.Table:
    sums = histogram.group_by("step").aggregate(SUMS)
    return sums.rename_columns(["step", "rows", "most"]).sort_by("step")


def _lateness(histogram: pa.Table) -> Lateness:
    """Return the lateness of the rows of one histogram, which is ascending by step."""
    steps = histogram["step"].to_numpy()
    rows_up_to = np.cumsum(histogram["rows"].to_numpy())
    return Lateness(
        rows=int(rows_up_to[-1]),
        p50_seconds=_percentile(steps, rows_up_to, 50),
        p95_seconds=_percentile(steps, rows_up_to, 95),
        max_seconds=pc.max(histogram["most"]).as_py(),
    )


def _percentile(steps: Ints, rows_up_to: Ints, percent: int) -> int:
    """Return the nearest-rank percentile. rows_up_to: rows up to each step, inclusive."""
    rows = int(rows_up_to[-1])
    rank = -(-rows * percent // 100)  # rounded up
    return int(steps[np.searchsorted(rows_up_to, rank)])


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
    files = SnapshotReader(table, source, start)
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
    for entry in live_entries(table, table.current_snapshot()):
        files[appended_at.get(entry.snapshot_id or 0)].append(FileScanTask(entry.data_file))
    for committed_at_ms, tasks in files.items():
        for batch in _read_times(table, raw, tasks, committed_at_ms):
            counter.add(batch)


def arrival_counter(raw: RawTable, start: int) -> ArrivalCounter:
    """Return a counter of the rows of a raw table, as `_read_times` reads them."""
    landed_column = raw.landed_column or columns.LANDED
    return ArrivalCounter(raw.table, raw.time_column, start, LOOKBACK_HOURS, landed_column)


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


def _rows_by_hour(files: SnapshotReader, change: SnapshotChange, commit_hour: int | None) -> dict[int, int]:
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


def _landing_hour(files: SnapshotReader, entry: ManifestEntry, commit_hour: int | None) -> int | None:
    found = files.landing_hour(entry.data_file)
    return commit_hour if found is None else found


def _rows_added(entry: ManifestEntry) -> int:
    is_new_data = entry.status is ManifestEntryStatus.ADDED and entry.data_file.content is DataFileContent.DATA
    return entry.data_file.record_count if is_new_data else 0


def _changed_entries(table: Table, snapshot_id: int) -> Iterator[ManifestEntry]:
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is not None:
        yield from changed_entries(snapshot, table.io)
