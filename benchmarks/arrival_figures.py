"""How late rows are: the day of landings that benchmarks play, and statistics of landings. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake_assets.base.hours import HOUR_MICROSECONDS, milliseconds
from lake_assets.demo.membership_simulator import (
    BAD_PREFIX,
    HOUR_MINUTES,
    MINUTE_MICROSECONDS,
    Arrival,
    CompleteThrough,
    Ints,
    Landing,
    Outage,
    Population,
    Simulation,
    key_of,
)
from lake_assets.incremental.declaration import RawTable
from lake_assets.membership.raw import RAW

Floats = npt.NDArray[np.float64]
NO_FLOATS: Floats = np.empty(0)

LANDING_MINUTES, STALL_EVERY = 15, 8
"""From one landing of the late day to the next; one landing of so many has late rows of clients that were cut off."""

STALL_HOURS, STALL_SIGMA, STALL_HOURS_RANGE, STALL_WINDOW_MINUTES = 2.25, 0.55, (1.75, 6.0), 30
"""How long before the landing the window of a stall began: median, sigma and range of a log-normal distribution; and
the length of the window."""

STALLS = 5
"""Number of this use of random numbers, as `membership_simulator.HABITS`."""


def late_day(accounts: int = 20_000, *, loaded_hours: int = 6) -> Simulation:
    """Return a day with a landing every 15 minutes. One in eight has late rows, of median depth 2 h and at most 6 h.

    The first landing has all rows of the `loaded_hours` before that day. The 96 landings of the day follow, and one
    with the prompt rows of its last minutes. No row is delivered twice. The depths are quantiles of the distribution,
    so that few are like many.

    Args:
        accounts: Number of people. With several thousand, every stall has rows.
        loaded_hours: Number of hours before the day.
    """
    population = Population(accounts=accounts, hours=loaded_hours + 24)
    rng = np.random.default_rng((population.seed, STALLS))
    first, last = loaded_hours * HOUR_MINUTES // LANDING_MINUTES, population.hours * HOUR_MINUTES // LANDING_MINUTES
    groups = range(first, last - STALL_EVERY + 1, STALL_EVERY)
    landings = [group + int(rng.integers(1, STALL_EVERY + 1)) for group in groups]
    stalls = []
    for landing, place in zip(landings, rng.permutation(len(landings)), strict=True):
        hours = STALL_HOURS * np.exp(STALL_SIGMA * NormalDist().inv_cdf((place + 0.5) / len(landings)))
        depth = int(np.clip(hours, *STALL_HOURS_RANGE) * HOUR_MICROSECONDS)
        start = population.start_hour * HOUR_MICROSECONDS + landing * LANDING_MINUTES * MINUTE_MICROSECONDS - depth
        stalls.append((landing, start, start + STALL_WINDOW_MINUTES * MINUTE_MICROSECONDS))
    arrival = Arrival(
        interval_minutes=LANDING_MINUTES,
        grace_minutes=LANDING_MINUTES,
        tail=0.0,
        twice=0.0,
        again=0.0,
        outages=(Outage(0, loaded_hours),),
        stalls=tuple(stalls),
    )
    return Simulation(population, arrival)


def good_moments(raw: RawTable, landing: Landing) -> Ints:
    """Return the times of a landing's good rows, in microseconds since 1970-01-01 UTC."""
    landed = landing.rows[raw.table]
    key = landed[key_of(raw)]
    is_bad = pc.starts_with(key, BAD_PREFIX)
    is_good = pc.and_kleene(pc.is_valid(key), pc.invert(is_bad))
    moments = landed.filter(is_good)[raw.time_column].cast(pa.int64())
    return np.asarray(moments.to_numpy(), dtype=np.int64)


@dataclass(frozen=True)
class Figures:
    """Statistics of all good rows of some landings. `str()` gives one line. Quantiles of no rows are 0.

    Delay is landed_at minus event time, of all rows. A row is late if its hour was declared complete before it landed.
    Depth is the delay of a late row. Reach is the largest depth of a landing, for landings with late rows.
    """

    landings: int
    rows: int
    landings_with_late_rows: int
    late_rows: int
    delay_median_minutes: float
    delay_p95_minutes: float
    depth_median_hours: float
    depth_p95_hours: float
    depth_max_hours: float
    reach_median_hours: float

    @property
    def late_share(self) -> float:
        """The share of rows that are late."""
        return self.late_rows / max(self.rows, 1)

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows in {self.landings:,} landings, {self.landings_with_late_rows:,} with late rows; "
            f"{self.late_share:.2%} of rows late; delay median {self.delay_median_minutes:.0f} min, "
            f"p95 {self.delay_p95_minutes:.0f} min; depth of late rows median {self.depth_median_hours:.1f} h, "
            f"p95 {self.depth_p95_hours:.1f} h, at most {self.depth_max_hours:.1f} h; "
            f"reach of a landing with late rows median {self.reach_median_hours:.1f} h"
        )


def measure(landings: Iterable[Landing]) -> Figures:
    """Return the statistics of landings. No row of the first landing is late."""
    delays = [NO_FLOATS]
    depths = [NO_FLOATS]
    reaches: list[float] = []
    landing_count = 0
    before: CompleteThrough = {raw.table: None for raw in RAW}
    for landing in landings:
        landing_count += 1
        own = [_delays(raw, landing, before[raw.table]) for raw in RAW]
        delays += [of_table.hours for of_table in own]
        depth = np.concatenate([of_table.late_hours for of_table in own])
        depths.append(depth)
        if len(depth):
            reaches.append(float(depth.max()))
        before = landing.complete_through
    delay = np.concatenate(delays)
    depth = np.concatenate(depths)
    return Figures(
        landings=landing_count,
        rows=len(delay),
        landings_with_late_rows=len(reaches),
        late_rows=len(depth),
        delay_median_minutes=HOUR_MINUTES * _quantile(delay, 0.5),
        delay_p95_minutes=HOUR_MINUTES * _quantile(delay, 0.95),
        depth_median_hours=_quantile(depth, 0.5),
        depth_p95_hours=_quantile(depth, 0.95),
        depth_max_hours=_quantile(depth, 1.0),
        reach_median_hours=_quantile(np.array(reaches), 0.5),
    )


@dataclass(frozen=True)
class _Delays:
    """The delays of a table's good rows in a landing, in hours; and those of the late rows among them."""

    hours: Floats
    late_hours: Floats


def _delays(raw: RawTable, landing: Landing, complete_through: int | None) -> _Delays:
    moments = good_moments(raw, landing)
    hours = (milliseconds(landing.landed_at) * 1000 - moments) / HOUR_MICROSECONDS
    if complete_through is None:
        return _Delays(hours, NO_FLOATS)
    is_late = moments < (complete_through + 1) * HOUR_MICROSECONDS
    return _Delays(hours, hours[is_late])


def _quantile(values: Floats, share: float) -> float:
    if not len(values):
        return 0.0
    return float(np.quantile(values, share))
