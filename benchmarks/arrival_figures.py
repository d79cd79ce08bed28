"""Statistics of landings: how late their rows are. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake_assets.base.hours import HOUR_MICROSECONDS
from lake_assets.demo.membership_simulator import (
    BAD_PREFIX,
    HOUR_MINUTES,
    CompleteThrough,
    Floats,
    Ints,
    Landing,
    key_of,
    microseconds,
)
from lake_assets.incremental.declaration import RawTable
from lake_assets.membership.raw import RAW

NO_FLOATS: Floats = np.empty(0)


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
    hours = (microseconds(landing.landed_at) - moments) / HOUR_MICROSECONDS
    if complete_through is None:
        return _Delays(hours, NO_FLOATS)
    is_late = moments < (complete_through + 1) * HOUR_MICROSECONDS
    return _Delays(hours, hours[is_late])


def _quantile(values: Floats, share: float) -> float:
    if not len(values):
        return 0.0
    return float(np.quantile(values, share))
