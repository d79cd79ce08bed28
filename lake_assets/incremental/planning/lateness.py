"""How late the rows of a raw table come, and when, from its two times alone: pure, batch by batch, in bounded memory.

Lateness is landed_at minus event time, in whole seconds, rounded down; a clock that runs ahead makes it negative. Its
percentiles are nearest-rank. They are read off a histogram whose steps are one second up to `EXACT_SECONDS`, and beyond
that the value's first eight binary digits, as an HDR histogram has them: never above the true value, and less than
1/128 below it. Counts, cells and maxima are exact.

Memory grows with the hours there are, not with the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake_assets.base.hours import HOUR_MICROSECONDS
from lake_assets.incremental.declaration import LANDED

LOOKBACK_HOURS = 6
"""The fixed lookback that arrivals and sessions are compared with, in reports."""

EXACT_SECONDS = 256
SECOND_MICROSECONDS = 1_000_000

FOLD_ROWS = 500_000
"""So many counted groups may wait before they are summed up: each summing costs as much as all groups there are."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lateness:
    """Of some rows, how late they came. Percentiles and maximum in seconds."""

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
    """How many rows of one event hour landed in one hour."""

    landed_hour: int
    event_hour: int
    rows: int


@dataclass(frozen=True)
class Arrivals:
    """How the rows of one raw table came; each delivery counts.

    rows: all. unplaced: those left out below, for they have no time or an absurd one: before the pipeline's start, or
    over an hour after they landed. rows_beyond_lookback: those that landed so many hours after their event hour that a
    fixed lookback would never see them.
    overall: None without rows. by_landed_hour, cells: ascending; only hours and pairs that have rows.
    """

    table: str
    rows: int
    unplaced: int
    rows_beyond_lookback: int
    overall: Lateness | None
    by_landed_hour: tuple[LandedHour, ...]
    cells: tuple[Cell, ...]


@dataclass
class ArrivalCounter:
    """Counts the rows of a raw table as they are read.

    start: the pipeline's first event hour. lookback_hours: of a fixed lookback, for the rows that it would miss.
    """

    table: str
    time_column: str
    start: int
    lookback_hours: int
    _rows: int = 0
    _placed: int = 0
    _lateness: _Tally = field(default_factory=lambda: _Tally(("landed_hour", "step")))
    _cells: _Tally = field(default_factory=lambda: _Tally(("landed_hour", "event_hour")))

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch that has `landed_at` and the time column, both timestamps with microseconds or less."""
        event, landed = self._placed_times(batch)
        self._rows += batch.num_rows
        self._placed += len(event)
        seconds = (landed - event) // SECOND_MICROSECONDS
        landed_hour = landed // HOUR_MICROSECONDS
        self._lateness.add({"landed_hour": landed_hour, "step": _steps(seconds)}, seconds)
        self._cells.add({"landed_hour": landed_hour, "event_hour": event // HOUR_MICROSECONDS}, seconds)

    def result(self) -> Arrivals:
        """All that was counted so far."""
        cells = tuple(Cell(r["landed_hour"], r["event_hour"], r["rows"]) for r in self._cells.sorted().to_pylist())
        histogram = self._lateness.sorted()
        return Arrivals(
            table=self.table,
            rows=self._rows,
            unplaced=self._rows - self._placed,
            rows_beyond_lookback=sum(c.rows for c in cells if c.landed_hour - c.event_hour > self.lookback_hours),
            overall=_lateness(_over_all_hours(histogram)) if histogram.num_rows else None,
            by_landed_hour=tuple(LandedHour(hour, _lateness(steps)) for hour, steps in _by_hour(histogram)),
            cells=cells,
        )

    def _placed_times(self, batch: pa.RecordBatch) -> tuple[Ints, Ints]:
        """Event and landing times, microseconds since 1970, of the rows that have an hour."""
        event, landed = (_microseconds(batch.column(name)) for name in (self.time_column, LANDED))
        known = pc.and_(pc.is_valid(event), pc.is_valid(landed)).to_numpy(zero_copy_only=False)
        both = [pc.fill_null(times, 0).to_numpy(zero_copy_only=False)[known] for times in (event, landed)]
        is_sound = (both[0] >= self.start * HOUR_MICROSECONDS) & (both[0] - both[1] <= HOUR_MICROSECONDS)
        return both[0][is_sound], both[1][is_sound]


class _Tally:
    """Rows and greatest lateness for each combination of keys; groups of many batches are summed up together."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys
        self._groups = pa.table({name: pa.array([], pa.int64()) for name in (*keys, "rows", "most")})
        self._waiting: list[pa.Table] = []

    def add(self, keys: Mapping[str, Ints], seconds: Ints) -> None:
        """One row for each element of the arrays."""
        rows = pa.table({**keys, "rows": np.ones(len(seconds), np.int64), "most": seconds})
        self._waiting.append(self._summed(rows))
        if sum(t.num_rows for t in self._waiting) > max(FOLD_ROWS, self._groups.num_rows):
            self._fold()

    def sorted(self) -> pa.Table:
        """One row for each group: the keys, rows, most; ascending by the keys."""
        self._fold()
        return self._groups.sort_by([(name, "ascending") for name in self._keys])

    def _fold(self) -> None:
        self._groups = self._summed(pa.concat_tables([self._groups, *self._waiting]))
        self._waiting = []

    def _summed(self, rows: pa.Table) -> pa.Table:
        sums = rows.group_by(list(self._keys)).aggregate([("rows", "sum"), ("most", "max")])
        return sums.select([*self._keys, "rows_sum", "most_max"]).rename_columns([*self._keys, "rows", "most"])


def _microseconds(times: pa.Array) -> pa.Array:
    return times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())


def _steps(seconds: Ints) -> Ints:
    """The step of the histogram that each lateness falls on: the least lateness that does."""
    digits = np.frexp(np.maximum(seconds, 1).astype(np.float64))[1].astype(np.int64)
    dropped = np.maximum(digits - EXACT_SECONDS.bit_length() + 1, 0)
    return np.where(seconds < EXACT_SECONDS, seconds, (seconds >> dropped) << dropped)


def _by_hour(histogram: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    hours = histogram["landed_hour"].to_numpy()
    found, starts, counts = np.unique(hours, return_index=True, return_counts=True)
    for hour, first, count in zip(found, starts, counts, strict=True):
        yield int(hour), histogram.slice(first, count)


def _over_all_hours(histogram: pa.Table) -> pa.Table:
    sums = histogram.group_by("step").aggregate([("rows", "sum"), ("most", "max")])
    return sums.rename_columns(["step", "rows", "most"]).sort_by("step")


def _lateness(histogram: pa.Table) -> Lateness:
    """Of one histogram, ascending by step."""
    until = np.cumsum(histogram["rows"].to_numpy())
    steps, rows = histogram["step"].to_numpy(), int(until[-1])
    p50, p95 = (int(steps[np.searchsorted(until, -(-rows * percent // 100))]) for percent in (50, 95))
    return Lateness(rows, p50, p95, pc.max(histogram["most"]).as_py())
