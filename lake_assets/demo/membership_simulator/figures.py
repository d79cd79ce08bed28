"""What an arrival model amounts to, counted from the landings it gave. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lake_assets.base.hours import HOUR_MICROSECONDS
from lake_assets.demo.membership_simulator.batches import CompleteThrough, Landing, good_moments, microseconds
from lake_assets.demo.membership_simulator.population import Floats
from lake_assets.incremental.declaration import RawTable
from lake_assets.membership.raw import RAW


@dataclass(frozen=True)
class Figures:
    """What an arrival model amounts to, over all good rows of some landings; str() is one line for people.

    delay: landed_at minus event time, of all rows. late: of an hour already declared complete. depth: the delay of late
    rows. reach: of each landing with late rows, its greatest depth. Figures of nothing are 0.
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
    """The figures of these landings; the first counts as the beginning: what it brings is not late."""
    delays, depths, reaches, landing_count = [np.empty(0)], [np.empty(0)], [], 0
    before: CompleteThrough = {raw.table: None for raw in RAW}
    for landing in landings:
        parts = [_delays(raw, landing, before[raw.table]) for raw in RAW]
        delays += [delay for delay, _ in parts]
        depth = np.concatenate([late for _, late in parts])
        depths.append(depth)
        reaches += [float(depth.max())] if len(depth) else []
        before, landing_count = landing.complete_through, landing_count + 1
    delay, depth = np.concatenate(delays), np.concatenate(depths)
    return Figures(
        landings=landing_count,
        rows=len(delay),
        landings_with_late_rows=len(reaches),
        late_rows=len(depth),
        delay_median_minutes=60 * _quantile(delay, 0.5),
        delay_p95_minutes=60 * _quantile(delay, 0.95),
        depth_median_hours=_quantile(depth, 0.5),
        depth_p95_hours=_quantile(depth, 0.95),
        depth_max_hours=_quantile(depth, 1.0),
        reach_median_hours=_quantile(np.array(reaches), 0.5),
    )


def _delays(raw: RawTable, landing: Landing, before: int | None) -> tuple[Floats, Floats]:
    """The delays of a table's good rows, in hours; and those of the late ones among them."""
    moment = good_moments(raw, landing)
    delay = (microseconds(landing.landed_at) - moment) / HOUR_MICROSECONDS
    late = moment < (before + 1) * HOUR_MICROSECONDS if before is not None else np.zeros(len(moment), dtype=np.bool_)
    return delay, delay[late]


def _quantile(values: Floats, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else 0.0
