"""The replay of 2013: land a batch, catch up, land the next; and in the end the verdict of pandas.

The lake is not told how late a row will be. It is told, with each batch, that the hours so far are complete: every
flight that was due in them and is still to leave or to land makes its hour change once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from examples.flights.expected import Comparison, compare
from examples.flights.landing import Batch, batches, land, landed_until
from lake_assets.base.hours import hour_start
from lake_assets.incremental.execution.catch_up import catch_up

if TYPE_CHECKING:
    from examples.flights.data import Observations
    from lake_assets.incremental.execution.engine import Engine

HOURS_A_WEEK = 7 * 24
WEEKS = 53
"""The last flights of 2013 land on the first day of week 53."""


@dataclass
class Step:
    """One landing period and what was built after it. rows: raw table → rows landed. hours: target → hours built.

    late: target → of its rows read, those of hours that had been complete before. seconds: of the catching up.
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
    """Land day by day, and catch up after each week, or each day. What is landed already is not landed again.

    Stops after a step with a failed audit. stopwatch: seconds, from any beginning.
    """
    engine.create_tables()
    start = engine.pipeline.start_hour
    for period in batches(start, start + weeks * HOURS_A_WEEK, hours=24 if daily else HOURS_A_WEEK):
        if period.end <= (landed_until(engine.catalog) or start) and _nothing_due(engine):
            continue
        step = _step(engine, observations, period, stopwatch)
        yield step
        if step.failures:
            return


def verdict(engine: Engine, observations: Observations) -> list[Comparison]:
    """Every target against pandas, given all that was landed."""
    end = landed_until(engine.catalog) or engine.pipeline.start_hour
    through = pd.Timestamp(hour_start(end))
    known = observations.known(pd.Timestamp(hour_start(engine.pipeline.start_hour)), through)
    return compare(engine.catalog, known, through)


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
    """Whether the last catch-up came to its end: false after a replay that was interrupted in it."""
    from lake_assets.incremental.planning.session import NoSession

    return all(isinstance(engine.decide(target), NoSession) for target in engine.pipeline.targets)
