"""The lateness of the rows of a raw table, counted from its two time columns batch by batch. Pure.

Lateness is the landing minus the event time, in whole seconds, rounded down; it is negative if a clock runs ahead.
Percentiles are nearest-rank, read from a histogram. Its steps are one second up to `EXACT_SECONDS`; beyond, they keep
the first eight binary digits of the value, as an HDR histogram does. A percentile is never above the true value, and
less than 1/128 below it. Counts, cells and maxima are exact.

Memory grows with the number of hours, not with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake_assets.base.hours import HOUR_MICROSECONDS

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
