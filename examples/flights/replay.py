"""The replay of 2013: land a batch, catch up, land the next; at the end, compare with pandas.

Each batch declares the hours so far complete. The departure or arrival of a flight that was scheduled in them is late,
and rebuilds its hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from examples.comparison import Comparison
from examples.flights.expected import compare
from examples.flights.landing import Batch, batches, land, landed_until
from lake_assets.base.hours import hour_start
from lake_assets.incremental.engine.engine import catch_up

if TYPE_CHECKING:
    from examples.flights.data import Observations
    from lake_assets.incremental.engine.engine import Engine

DAY_HOURS = 24
WEEK_HOURS = 7 * DAY_HOURS
WEEKS = 53
"""The last flights of 2013 land on the first day of week 53."""


@dataclass
class Step:
    """One landing period and the sessions after it.

    Attributes:
        first: First hour of the period, in hours since 1970-01-01 UTC.
        end: End of the period, exclusive.
        rows: Raw table → number of rows landed.
        hours: Target → number of hours built.
        late: Target → number of rows read whose hour was complete before.
        failures: What the failed sessions report.
        seconds: Duration of the sessions.
    """

    first: int
    end: int
    rows: Counter[str] = field(default_factory=Counter)
    hours: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def replay(
    engine: Engine, observations: Observations, *, weeks: int, daily: bool, stopwatch: Callable[[], float]
) -> Iterator[Step]:
    """Land day by day and catch up after each week or day. Skip periods that are landed and built already.

    Args:
        engine: The engine of the pipeline.
        observations: All rows.
        weeks: Number of weeks to replay.
        daily: Catch up after each day.
        stopwatch: Returns seconds since any fixed moment.

    Yields:
        Each step. The replay stops after a step with a failure.
    """
    engine.create_tables()
    start = engine.pipeline.start_hour
    period_hours = DAY_HOURS if daily else WEEK_HOURS
    for period in batches(start, start + weeks * WEEK_HOURS, hours=period_hours):
        is_landed = period.end <= (landed_until(engine.catalog) or start)
        if is_landed and _nothing_due(engine):
            continue
        step = _step(engine, observations, period, stopwatch)
        yield step
        if step.failures:
            return


def verdict(engine: Engine, observations: Observations) -> list[Comparison]:
    """Compare every target with pandas, which gets all landed rows."""
    first = engine.pipeline.start_hour
    start = pd.Timestamp(hour_start(first))
    end = pd.Timestamp(hour_start(landed_until(engine.catalog) or first))
    return compare(engine.catalog, observations.known(start, end), end)


def _step(engine: Engine, observations: Observations, period: Batch, stopwatch: Callable[[], float]) -> Step:
    step = Step(period.first, period.end)
    for batch in batches(period.first, period.end):
        step.rows.update(land(engine.catalog, observations, batch))
    began = stopwatch()
    for outcome in catch_up(engine, engine.pipeline.in_order(), run_id="examples.flights"):
        name = outcome.table.split(".")[1]
        if outcome.failure:
            step.failures.append(outcome.failure)
        if outcome.report:
            step.hours[name] += len(outcome.report.hours_built)
            step.late[name] += outcome.report.rows_late
    step.seconds = stopwatch() - began
    return step


def _nothing_due(engine: Engine) -> bool:
    """Return whether the last catch-up was completed: it was not if the replay was interrupted during it."""
    from lake_assets.incremental.engine.model import NoSession

    return all(isinstance(engine.decide(target), NoSession) for target in engine.pipeline.targets)
