"""The sides of the comparison: this engine with and without a lane for late rows, fixed lookbacks, a full rebuild.

They stage, audit and publish with the same code and differ in the hours that they build. SQLMesh, which has its own
code for all of this, is in `sqlmesh_side.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from lake_assets.connections.catalog import open_catalog
from lake_assets.incremental.declaration import Defer, Stateless
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import Decision, NoSession, PlannedHour, SessionPlan, SessionReport
from lake_assets.incremental.engine.planner import Planner
from lake_assets.incremental.engine.state import State
from lake_assets.incremental.operations.verify import compare
from lake_assets.membership import PIPELINE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Source, Target
    from lake_assets.incremental.engine.source_changes import Head, ReadBudget, SourceChanges, Watermark
    from lake_assets.settings import Settings

LANE = Defer(older_than="1 hour", at_most="24 hours")
"""The policy of the side with a lane."""


@dataclass(frozen=True)
class Done:
    """The result of one run of a target. rows: rows written. hours: hours whose rows were replaced or added to."""

    rows: int = 0
    hours: int = 0


class Side(Protocol):
    """One side, in its own data directory. It owns a Spark session and stops it when it is closed."""

    def run(self, target: Target, now: datetime) -> Done:
        """Bring a target up to date with all rows that have landed by `now`."""

    def missed(self, target: Target) -> int:
        """Return the number of rows of a full rebuild that the target lacks or has with other values."""

    def close(self) -> None:
        """Stop its processes and its Spark session."""


class LookbackPlanner(Planner):
    """A planner that, whatever changed, overwrites the new hours and those of a fixed lookback before them."""

    lookback_hours: float = inf
    """How far it looks back; to the first hour by default."""

    def next_session(self, state: State, **options: Any) -> Decision:
        planned = super().next_session(state, **options)
        if not isinstance(planned, SessionPlan) or not planned.hours or not state.watermarks:
            return planned
        before = state.log["hours"] or ()
        hours = looked_back(
            planned.hours[-1].hour,
            done=before[-1][1] if before else None,
            lookback=self.lookback_hours,
            start=self.pipeline.start_hour,
        )
        reason = f"the last {self.lookback_hours:g} hours and the new ones, whatever changed"
        return replace(planned, load="overwrite", hours=tuple(PlannedHour(h, reason) for h in hours), waiting={})


class SixHourPlanner(LookbackPlanner):
    lookback_hours = 6


class DayPlanner(LookbackPlanner):
    lookback_hours = 24


class LookingBack(Engine):
    """An engine that looks back: to the first hour by default, which is a full rebuild. It also writes equal hours."""

    planner = LookbackPlanner
    leaves_out_unchanged = False


class SixHoursBack(LookingBack):
    planner = SixHourPlanner


class DayBack(LookingBack):
    planner = DayPlanner


def looked_back(last: int, *, done: int | None, lookback: float, start: int) -> range:
    """Return the hours that a lookback builds: those after the last built hour, and some hours before them.

    Args:
        last: Newest hour with new rows.
        done: Last hour of the previous run, which may have got new rows; None before the first run.
        lookback: Number of hours to look back; infinite for all.
        start: First hour of the pipeline.
    """
    newest = last
    first_new = last
    if done is not None:
        newest = max(last, done)
        first_new = min(newest, done + 1)
    first = max(first_new - lookback, start)
    return range(int(first), newest + 1)


class EngineSide:
    """A pipeline that an engine of this project maintains."""

    def __init__(self, engine: type[Engine], home: Settings, spark: SparkSession) -> None:
        self.engine = opened(engine, home, spark)
        self._spark = spark

    def run(self, target: Target, now: datetime) -> Done:
        report = self.engine.run(target)
        if not isinstance(report, SessionReport):
            return Done()
        return Done(rows=report.rows_written, hours=len(report.hours_built))

    def missed(self, target: Target) -> int:
        return compare(self.engine, target).missing

    def close(self) -> None:
        self._spark.stop()


class LanePlanner(Planner):
    """A planner to which each raw snapshot was committed at the simulated time at which it was first planned."""

    committed: dict[int, datetime]

    def _changes(
        self, source: Source, since: Watermark | None, up_to: Head | None, budget: ReadBudget
    ) -> SourceChanges:
        assert self.clock is not None
        now = self.clock()
        found = super()._changes(source, since, up_to, budget)
        snapshots = []
        for snapshot in found.snapshots:
            committed = self.committed.setdefault(snapshot.snapshot_id, now)
            snapshots.append(replace(snapshot, committed_at_ms=int(committed.timestamp() * 1000)))
        return replace(found, snapshots=tuple(snapshots))


class LaneEngine(Engine):
    """An engine whose clock is that of the landings, and whose stateless targets let late rows wait for a day."""

    def __init__(self, home: Settings, spark: SparkSession) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.committed: dict[int, datetime] = {}
        targets = [replace(each, late=LANE) if isinstance(each.mode, Stateless) else each for each in PIPELINE.targets]
        pipeline = replace(PIPELINE, targets=tuple(targets))
        super().__init__(open_catalog(home), pipeline, clock=lambda: self.now, spark=lambda: spark)
        self.create_tables()

    def _planner(self, target: Target) -> Planner:
        planner = LanePlanner(self.catalog, self.pipeline, target, clock=self.clock)
        planner.committed = self.committed
        return planner


class LaneSide:
    """A pipeline whose late rows wait. After each run it checks that nothing waits longer than declared."""

    def __init__(self, home: Settings, spark: SparkSession) -> None:
        self.engine = LaneEngine(home, spark)
        self._spark = spark

    def run(self, target: Target, now: datetime) -> Done:
        self.engine.now = now
        done = self._run(target)
        decision = self.engine.decide(self._with_lane(target))
        assert isinstance(decision, NoSession), f"{decision} is due"
        assert all(now - each.since < LANE.longest_wait for each in decision.deferred), "the bound is not kept"
        return done

    def finish(self, target: Target) -> Done:
        """Build what still waits after the last landing, once it is due."""
        self.engine.now += LANE.longest_wait
        return self._run(target)

    def missed(self, target: Target) -> int:
        state = self.engine.state(self._with_lane(target))
        assert not state.committed.pending, "hours still wait"
        return compare(self.engine, self._with_lane(target)).missing

    def close(self) -> None:
        self._spark.stop()

    def _run(self, target: Target) -> Done:
        report = self.engine.run(self._with_lane(target))
        if not isinstance(report, SessionReport):
            return Done()
        return Done(rows=report.rows_written, hours=len(report.hours_built))

    def _with_lane(self, target: Target) -> Target:
        return self.engine.pipeline.target(target.name)


def opened(kind: type[Engine], home: Settings, spark: SparkSession) -> Engine:
    """Return an engine with its tables created. All its records have the same time."""
    engine = kind(open_catalog(home), PIPELINE, clock=lambda: datetime(2026, 1, 2, tzinfo=UTC), spark=lambda: spark)
    engine.create_tables()
    return engine
