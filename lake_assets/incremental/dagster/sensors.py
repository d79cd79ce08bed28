"""The sensor of all targets: requests the next session of each target that has one, and says what the others wait for.

A tick takes one look at the catalog and plans only targets that something has moved for. It decides from table metadata
and changes nothing but its cursor, so a lost tick costs nothing but time. What it remembers in its process are
evaluations that changed nothing; to forget them costs an evaluation each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import dagster as dg

from lake_assets.base.failpoints import reach
from lake_assets.errors.described import describe
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.session_runs import active_runs
from lake_assets.incremental.dagster.target_look import Seen, SensorEvent, TargetLook
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.operations.inputs import FULL_LOOK_SECONDS, Inputs, Quiet, TargetInputs, to_look_at

SESSIONS_SENSOR = "sessions_sensor"

NOT_WAITING = "{}"
"""Cursor if no target waits. An empty cursor would leave the previous one in place."""

LOOKS_PER_TICK = 25
"""Targets that one tick evaluates. Dagster gives it a minute, and a landing should not wait for all the others."""

RUNS_PER_TICK = 20
"""Runs that one tick requests: the daemon submits them one by one."""

EVENTS_PER_TICK = 200
"""Events after which a tick evaluates no further target: the daemon stores them one by one."""

LINES_PER_TICK = 10
"""Reasons that a tick lists."""

ERROR_SECONDS = 30
"""Time until a target whose evaluation failed is evaluated again although nothing has moved."""


Clock = Callable[[], datetime]
"""Returns the present moment, with a time zone."""


@dataclass(frozen=True)
class SensorTiming:
    """How often sensors are evaluated, and how long a target waits for the targets upstream of it.

    Attributes:
        tick_seconds: Time between two evaluations of a sensor.
        settle_seconds: Longest time that a target waits for upstream targets to settle.
    """

    tick_seconds: int = 1
    settle_seconds: int = 60


@dataclass(frozen=True)
class SensedTarget:
    """A target with the partitions of its asset."""

    target: Target
    partitions: dg.TimeWindowPartitionsDefinition


def sessions_sensor(
    pipeline: Pipeline,
    targets: Sequence[SensedTarget],
    timing: SensorTiming,
    clock: Clock,
    *,
    name: str = SESSIONS_SENSOR,
) -> dg.SensorDefinition:
    """Return the sensor that requests the sessions of targets.

    It also reports which hours are pending, and the hours and checks of sessions that Dagster has no materialization
    of: those that `lake catch-up` committed, and those of runs that died before they reported.

    Args:
        pipeline: Declares the targets.
        targets: The targets, at least one.
        timing: How often it is evaluated, and how long targets wait for each other.
        clock: The present moment.
        name: Its name.
    """
    memory = _Memory(TargetInputs(pipeline, [each.target for each in targets]))

    def evaluate(context: dg.SensorEvaluationContext, lake_assets: LakeResource) -> dg.SensorResult:
        reach("tick-started")
        engine = Engine(lake_assets.catalog(), pipeline, clock=clock)
        result = _Tick(context, engine, targets, timing, memory).result()
        reach("tick-answered")
        return result

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluate,
        asset_selection=[asset_key(each.target.table) for each in targets],
        minimum_interval_seconds=timing.tick_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a run for each target that has hours to build. To pause one target, set the limit of its "
        "pool to 0 (Deployment, Concurrency).",
    )


@dataclass
class _Memory:
    """What a sensor remembers in its process.

    Attributes:
        inputs: Looks at the inputs of the targets.
        quiet: Target → its last evaluation, if that changed nothing.
        looked_at: Target → when it was evaluated last, in seconds since 1970-01-01 UTC.
        shown: Target → the revision of its newest session when Dagster showed all of its sessions, and when that was.
        shown_through: Target → the complete-through up to which Dagster showed all of its partitions.
    """

    inputs: TargetInputs
    quiet: dict[str, Quiet] = field(default_factory=dict)
    looked_at: dict[str, float] = field(default_factory=dict)
    shown: dict[str, tuple[int, float]] = field(default_factory=dict)
    shown_through: dict[str, int] = field(default_factory=dict)

    def forget(self) -> None:
        """Have everything looked at again."""
        self.quiet.clear()
        self.shown.clear()
        self.shown_through.clear()

    def shown_revision(self, table: str, now: float) -> int | None:
        """Return the revision up to which Dagster shows a target; None if a person may have wiped it since."""
        revision, at = self.shown.get(table, (None, 0.0))
        return revision if abs(now - at) < FULL_LOOK_SECONDS else None


class _Tick:
    """One evaluation of the sensor."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        engine: Engine,
        targets: Sequence[SensedTarget],
        timing: SensorTiming,
        memory: _Memory,
    ) -> None:
        self.context = context
        self.engine = engine
        self.targets = {each.target.table: each for each in targets}
        self.settle_seconds = timing.settle_seconds
        self.memory = memory
        self.waiting: dict[str, float] = _waiting(context.cursor)
        self.seen: dict[str, Seen] = {}
        self.failed: set[str] = set()

    def result(self) -> dg.SensorResult:
        if not self.context.cursor:  # of a first tick, or a person has reset it to have everything looked at
            self.memory.forget()
        # What an evaluation depends on is looked at before it: what moves meanwhile has moved at the next tick.
        inputs = self.memory.inputs.look(self.engine.catalog)
        runs = self._active_runs()
        due = to_look_at(
            list(self.targets),
            self.memory.quiet,
            inputs=inputs,
            runs=runs,
            looked_at=self.memory.looked_at,
            now=self._now(),
        )
        left = self._look_at(due, inputs, runs)
        return self._answer(left)

    def _active_runs(self) -> dict[str, tuple[str, ...]]:
        """Return target → the ids of its active runs, in order; without the targets that have none."""
        found = active_runs(self.context.instance)
        keys = {table: asset_key(table) for table in self.targets}
        return {table: found[key] for table, key in keys.items() if key in found}

    def _look_at(self, due: Sequence[str], inputs: Mapping[str, Inputs], runs: Mapping[str, tuple[str, ...]]) -> int:
        """Evaluate targets up to the limits of a tick; return how many are left for the next one."""
        for number, table in enumerate(due):
            if number == LOOKS_PER_TICK or self._is_full():
                return len(due) - number
            seen = self._see(table)
            self._remember(table, seen, inputs[table], runs.get(table))
            self.seen[table] = seen
        return 0

    def _is_full(self) -> bool:
        requests = sum(seen.request is not None for seen in self.seen.values())
        events = sum(len(seen.events) for seen in self.seen.values())
        return requests >= RUNS_PER_TICK or events >= EVENTS_PER_TICK

    def _see(self, table: str) -> Seen:
        sensed = self.targets[table]
        look = TargetLook(
            self.engine,
            self.context.instance,
            sensed.target,
            sensed.partitions,
            asset_key(table),
            settle_seconds=self.settle_seconds,
            waiting_since=self.waiting.get(table),
            shown_revision=self.memory.shown_revision(table, self._now()),
            shown_through=self.memory.shown_through.get(table),
        )
        try:
            return look.see()
        except Exception as error:  # of any kind, also of a user's declaration: the other targets are looked at
            text = describe(error)
            self.failed.add(table)
            return Seen(f"{text.problem} {text.remedy}".strip(), again_at=self._now() + ERROR_SECONDS)

    def _remember(self, table: str, seen: Seen, inputs: Inputs, runs: tuple[str, ...] | None) -> None:
        is_same_wait = self.waiting.get(table) == seen.waiting_since
        self.memory.quiet.pop(table, None)
        self.memory.looked_at[table] = now = self._now()
        if seen.is_idle and is_same_wait:
            self.memory.quiet[table] = Quiet(inputs, runs, now, seen.again_at, seen.reason)
        if seen.shown_revision not in (None, self.memory.shown_revision(table, now)):
            self.memory.shown[table] = (seen.shown_revision, now)
        if seen.shown_through is not None:
            self.memory.shown_through[table] = seen.shown_through
        self.waiting.pop(table, None)
        if seen.waiting_since is not None:
            self.waiting[table] = seen.waiting_since

    def _answer(self, left: int) -> dg.SensorResult:
        for table in sorted(self.failed):
            self.context.log.error(f"{table}: {self.seen[table].reason}")
        events: list[SensorEvent] = [event for seen in self.seen.values() for event in seen.events]
        # The queue keeps the order. The longest chain comes first: it takes the longest until its last target.
        behind = self.engine.pipeline.targets_behind
        tables = sorted(self.seen, key=lambda table: -behind[table])
        requests = [seen.request for seen in map(self.seen.__getitem__, tables) if seen.request is not None]
        cursor = json.dumps(dict(sorted(self.waiting.items()))) if self.waiting else NOT_WAITING
        if requests:
            return dg.SensorResult(run_requests=requests, cursor=cursor, asset_events=events)
        return dg.SensorResult(skip_reason=self._reason(left), cursor=cursor, asset_events=events)

    def _reason(self, left: int) -> str:
        """Return why no run is requested: of a single target its own reason, of many those that were looked at."""
        quiet = {table: last.reason for table, last in self.memory.quiet.items()}
        reasons = quiet | {table: seen.reason for table, seen in self.seen.items()}
        if len(self.targets) == 1:
            return next(iter(reasons.values()))
        looked = f"{len(self.seen)} of {len(self.targets)} targets had to be looked at; none has a session to request."
        lines = [looked] if not left else [looked, f"{left} more are looked at by the next tick."]
        return "\n".join([*lines, *_lines(reasons, first=[*self.failed, *self.seen])])

    def _now(self) -> float:
        return self.engine.clock().timestamp()


def _lines(reasons: Mapping[str, str], *, first: Iterable[str]) -> list[str]:
    """Return the first reasons, one line for each target: of those that failed, then of those looked at."""
    order = dict.fromkeys([*first, *reasons])
    lines = [f"{table}: {reasons[table]}" for table in order]
    hidden = len(lines) - LINES_PER_TICK
    return lines if hidden <= 0 else [*lines[:LINES_PER_TICK], f"and {hidden} more targets"]


def _waiting(cursor: str | None) -> dict[str, float]:
    """Return target → since when it waits for upstream, of a cursor."""
    found = json.loads(cursor or NOT_WAITING)
    return {table: float(since) for table, since in found.items()}
