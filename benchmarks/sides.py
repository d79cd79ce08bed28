"""The ways to keep a target right that are compared: this engine, fixed lookbacks, and a full rebuild.

All of them stage, audit and publish by the same code; they differ in the hours that they do. SQLMesh, which brings all
of that itself, is in `sqlmesh_side.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Protocol

from lake_assets.connections.catalog import open_catalog
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.execution.planner import Heads, Planner
from lake_assets.incremental.execution.run import Runner
from lake_assets.incremental.execution.session_log import ProcessState
from lake_assets.incremental.monitoring.verify import compare
from lake_assets.incremental.planning.session import Decision, PlannedHour, SessionPlan, SessionReport
from lake_assets.membership import PIPELINE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Target
    from lake_assets.settings import Settings


@dataclass(frozen=True)
class Done:
    """What one run of a target wrote. hours: whose rows it replaced or added to."""

    rows: int = 0
    hours: int = 0


class Side(Protocol):
    """One of those compared, on a home of its own. It takes a Spark session over, and stops it when it is closed."""

    def run(self, target: Target, now: datetime) -> Done:
        """Bring a target up to date with what has landed until now."""

    def missed(self, target: Target) -> int:
        """Rows that a full rebuild gives, and that the target lacks or has otherwise."""

    def close(self) -> None:
        """Stop what it has started or taken over."""


class Overwriting(Runner):
    """A runner that writes all that it is told to, equal or not."""

    leaves_out_unchanged = False


class LookbackPlanner(Planner):
    """A planner that, whatever changed, overwrites the new hours and those of a fixed lookback before them."""

    lookback_hours: float = inf
    """How far it looks back; to the first hour by default."""

    def next_session(self, state: ProcessState, *, up_to: Heads | None = None, retry_blocked: bool = False) -> Decision:
        planned = super().next_session(state, up_to=up_to, retry_blocked=retry_blocked)
        if not isinstance(planned, SessionPlan) or not planned.hours or not state.watermarks:
            return planned
        before = state.session.plan.hour_numbers if state.session else ()
        hours = looked_back(
            planned.hours[-1].hour,
            done=before[-1] if before else None,
            lookback=self.lookback_hours,
            start=self.pipeline.start_hour,
        )
        reason = f"the last {self.lookback_hours:g} hours and the new ones, whatever changed"
        return replace(planned, load="overwrite", hours=tuple(PlannedHour(h, reason) for h in hours), pending=())


class SixHourPlanner(LookbackPlanner):
    lookback_hours = 6


class DayPlanner(LookbackPlanner):
    lookback_hours = 24


class LookingBack(Engine):
    """An engine that looks back: to the first hour by default, which is a full rebuild."""

    planner = LookbackPlanner
    runner = Overwriting


class SixHoursBack(LookingBack):
    planner = SixHourPlanner


class DayBack(LookingBack):
    planner = DayPlanner


def looked_back(last: int, *, done: int | None, lookback: float, start: int) -> range:
    """The hours that a lookback does: those behind the last one that it has done, and so many before them.

    last: the newest hour with rows that came now. done: the last hour of the run before, which may have grown since;
    None for none. start: the first hour there is.
    """
    last = last if done is None else max(last, done)
    first_new = last if done is None else min(last, done + 1)
    return range(int(max(first_new - lookback, start)), last + 1)


class EngineSide:
    """A pipeline kept by an engine of this project."""

    def __init__(self, engine: type[Engine], home: Settings, spark: SparkSession) -> None:
        self.engine = opened(engine, home, spark)
        self._spark = spark

    def run(self, target: Target, now: datetime) -> Done:
        report = self.engine.run(target)
        return Done(report.rows_written, len(report.hours_built)) if isinstance(report, SessionReport) else Done()

    def missed(self, target: Target) -> int:
        return compare(self.engine, target, self._spark).missing

    def close(self) -> None:
        self._spark.stop()


def opened(kind: type[Engine], home: Settings, spark: SparkSession) -> Engine:
    """An engine of a kind on a home, with its tables; its records carry one fixed time."""
    engine = kind(open_catalog(home), PIPELINE, clock=lambda: datetime(2026, 1, 2, tzinfo=UTC), spark=lambda: spark)
    engine.create_tables()
    return engine
