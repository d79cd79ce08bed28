"""The sensor of all targets, and that of raw tables. They change nothing but their cursors, so a lost tick costs only
time.

The first requests the next session of each target that has one, and says what the others wait for. A tick takes one
look at the catalog and plans only targets that something has moved for. It decides from table metadata. What it
remembers in its process are evaluations that changed nothing; to forget them costs an evaluation each.

The second shows what landed: a materialization for each partition of a raw table that a snapshot changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import dagster as dg
from pyiceberg.catalog import Catalog

from lake_assets.base.described import describe, failure_of, is_machines_fault
from lake_assets.base.failpoints import reach
from lake_assets.base.hours import hour_key
from lake_assets.incremental.dagster.asset_specs import (
    COMPLETE_THROUGH,
    asset_key,
    completed,
    completeness,
    materializations,
    rows_of_session,
)
from lake_assets.incremental.dagster.checks import (
    audit_evaluation,
    check_specs,
    last_evaluation,
    of_newest_materialization,
    of_no_materialization,
    pending_hours_evaluation,
    shown_evaluation,
)
from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.session_runs import (
    Attempt,
    active_runs,
    busy_run,
    describe_attempts,
    ended_attempts,
    pause_of,
    rest_seconds,
    retry_remedy,
    run_request,
)
from lake_assets.incremental.declaration import Pipeline, RawTable, Target
from lake_assets.incremental.engine.arrivals import Lateness, RawSnapshot
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import Committed, Decision, NoSession, SessionPlan
from lake_assets.incremental.engine.planning import pending_hours
from lake_assets.incremental.engine.session_log import SessionRecord
from lake_assets.incremental.operations.inputs import (
    FULL_LOOK_SECONDS,
    Inputs,
    Locations,
    Quiet,
    TargetInputs,
    to_look_at,
)

SESSIONS_PER_LOOK = 20
"""How many of a target's newest sessions are compared with Dagster's materializations."""

MATERIALIZATIONS_PER_PARTITION = 20
"""How many of a partition's newest materializations are searched for a session."""

PAUSE_SECONDS = 30
"""Time between two looks at whether a target is still paused: no table says so."""

PARTITIONS_PER_LOOK = 200
"""Complete partitions that a look reports although no session has built them: the daemon stores them one by one."""

SensorEvent = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


@dataclass(frozen=True)
class Seen:
    """The result of one look at a target.

    Attributes:
        reason: Why no run is requested; empty if one is.
        request: The run that is due.
        events: What Dagster does not show yet.
        again_at: The moment from which on another look may have another result although nothing has moved, in seconds
            since 1970-01-01 UTC; None for none.
        waiting_since: Since when the target waits for upstream to settle, in the same unit; None if it does not wait.
        shown_revision: Revision of the newest session if Dagster shows all sessions; None if it does not, or if that
            was not looked at.
        shown_through: Complete-through up to which Dagster shows all partitions; None if that was not looked at.
    """

    reason: str = ""
    request: dg.RunRequest | None = None
    events: tuple[SensorEvent, ...] = ()
    again_at: float | None = None
    waiting_since: float | None = None
    shown_revision: int | None = None
    shown_through: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to request and nothing to report."""
        return self.request is None and not self.events


@dataclass(frozen=True)
class TargetLook:
    """A look at one target.

    Attributes:
        engine: Decides.
        instance: Has the runs and what Dagster shows.
        target: The target.
        partitions: The partitions of its asset.
        key: The key of its asset.
        settle_seconds: Longest time that it waits for the targets upstream of it.
        waiting_since: Since when it waits for them, in seconds since 1970-01-01 UTC; None if it does not wait.
        shown_revision: Revision of the newest session that an earlier look has returned; None if none has.
        shown_through: Complete-through that an earlier look has returned; None if none has.
    """

    engine: Engine
    instance: dg.DagsterInstance
    target: Target
    partitions: dg.TimeWindowPartitionsDefinition
    key: dg.AssetKey
    settle_seconds: float
    waiting_since: float | None
    shown_revision: int | None = None
    shown_through: int | None = None

    def see(self) -> Seen:
        """Return what is due and what is to be reported."""
        active = busy_run(self.instance, self.key)
        if active:
            return Seen(active)
        decision = self.engine.decide(self.target)
        reach("tick-decided")
        if isinstance(decision, NoSession):
            return self._state(decision)
        paused = pause_of(self.instance, self.target)
        if paused:
            return Seen(paused, again_at=self._now() + PAUSE_SECONDS)
        attempts = ended_attempts(self.instance, decision.session_id)
        if attempts:
            return self._retry(decision, attempts)
        unsettled = self.engine.unsettled(self.target)
        if unsettled:
            return self._wait_until_settled(decision, unsettled)
        # An upstream target may have committed since the first decision. An idle target is spared this second one.
        settled = self.engine.decide(self.target)
        if isinstance(settled, NoSession):
            return Seen(settled.reason, again_at=self._now())
        return self._request(settled, attempt=1)

    def _request(self, plan: SessionPlan, *, attempt: int) -> Seen:
        run = run_request(self.key, self.partitions, self.target, plan, attempt=attempt)
        return Seen(request=run)

    def _retry(self, plan: SessionPlan, attempts: Sequence[Attempt]) -> Seen:
        now = self._now()
        rest = rest_seconds(attempts, self.target.code_version, now)
        so_far = describe_attempts(plan, attempts)
        if rest is None:
            reason = f"{so_far}. There are no more attempts. {retry_remedy(self.target)}"
            return Seen(reason, events=self._pending_events(plan, stuck=reason))
        if rest > 0:
            events = self._pending_events(plan, stuck=f"{so_far}; it is tried again")
            reason = f"{so_far}. The next attempt starts in {rest:.0f} s."
            return Seen(reason, events=events, again_at=now + rest)
        return self._request(plan, attempt=len(attempts) + 1)

    def _wait_until_settled(self, plan: SessionPlan, reason: str) -> Seen:
        """Wait from the first look on that found upstream unsettled.

        The wait continues when the plan changes; otherwise busy sources would delay the target forever.
        """
        now = self._now()
        since = now if self.waiting_since is None else self.waiting_since
        remaining = self.settle_seconds - (now - since)
        if remaining <= 0:
            return self._request(plan, attempt=1)
        text = f"{plan} waits for upstream to settle, {remaining:.0f} s at most: {reason}"
        return Seen(text, again_at=now + remaining, waiting_since=since)

    def _state(self, decision: NoSession) -> Seen:
        """Report what Dagster does not show yet: pending hours, sessions without a run, and what is complete."""
        revision = self.engine.state(self.target).highest
        unmarked = [] if revision in (0, self.shown_revision) else self._unmarked_sessions()
        events: list[SensorEvent] = [event for record in unmarked for event in self._session_events(record)]
        marked = {event.partition for event in events if isinstance(event, dg.AssetMaterialization)}
        missing = self._unmarked_partitions(marked)
        events[:0] = completed(self.engine.catalog, self.target, missing[:PARTITIONS_PER_LOOK], self._committed)
        pending = self._pending_events(decision)
        if events:
            found = (event for event in [*events, *pending] if isinstance(event, dg.AssetCheckEvaluation))
            events += self._repeated_evaluations({event.check_name for event in found})
        else:
            events += self._completeness_events()
        events += pending
        if len(missing) > PARTITIONS_PER_LOOK:
            return Seen(decision.reason, events=tuple(events), again_at=self._now())
        return Seen(
            decision.reason,
            events=tuple(events),
            again_at=_moment(decision),
            shown_revision=None if unmarked else revision,
            shown_through=self._committed.complete_through,
        )

    @property
    def _committed(self) -> Committed:
        return self.engine.state(self.target).committed

    def _unmarked_partitions(self, marked: Collection[str | None]) -> list[int]:
        """Return the first hour of each complete partition that is not waiting and that Dagster does not show.

        marked: keys of partitions that this look reports.
        """
        committed, grain = self._committed, self.target.grain
        through, last_key = committed.complete_through, self.partitions.get_last_partition_key()
        if through is None or last_key is None or through == self.shown_through:
            return []
        after = self.engine.pipeline.start_hour if self.shown_through is None else self.shown_through + 1
        found = set(grain.firsts(range(after, grain.complete(through) + 1))).difference(grain.firsts(committed.waiting))
        if not found:
            return []
        shown = {*marked, *self.instance.get_materialized_partitions(self.key)}
        return [hour for hour in sorted(found) if (key := grain.key(hour)) <= last_key and key not in shown]

    def _repeated_evaluations(self, evaluated: Collection[str]) -> Iterator[SensorEvent]:
        """Yield the last evaluation of each other check: Dagster shows none that came before a materialization."""
        for spec in check_specs(self.key, self.target):
            last = None if spec.name in evaluated else last_evaluation(self.instance, spec.key)
            if last is not None:
                yield of_no_materialization(last)

    def _completeness_events(self) -> Iterator[SensorEvent]:
        """Yield an observation of complete-through if it has moved alone."""
        through = completeness(self._committed.complete_through)
        if not through or self._committed.complete_through == self.shown_through:
            return
        newest = [
            *self.instance.fetch_materializations(self.key, limit=1).records,
            *self.instance.fetch_observations(self.key, limit=1).records,
        ]
        for record in newest:
            event = record.asset_materialization or record.asset_observation
            value = event.metadata.get(COMPLETE_THROUGH) if event else None
            if value is not None and value.value == through[COMPLETE_THROUGH]:
                return
        yield dg.AssetObservation(self.key, metadata=through)

    def _pending_events(self, decision: Decision, *, stuck: str = "") -> tuple[dg.AssetCheckEvaluation, ...]:
        """Return the evaluation of pending hours, if it differs from the one that Dagster shows."""
        pending = pending_hours(self._committed, decision, stuck=stuck)
        found = pending_hours_evaluation(self.key, self.target.grain, pending)
        shown = shown_evaluation(self.instance, found.asset_check_key)
        if shown is not None and shown.passed == found.passed and shown.metadata == found.metadata:
            return ()
        return (of_newest_materialization(self.instance, found),)

    def _unmarked_sessions(self) -> list[SessionRecord]:
        """Return the newest committed sessions that Dagster has no materialization of, oldest first."""
        newest = self.engine.history(self.target, newest=SESSIONS_PER_LOOK)
        built = [record for record in newest if record.state == "committed" and record.built]
        return [record for record in built if not self._is_marked(record)]

    def _session_events(self, record: SessionRecord) -> Iterator[SensorEvent]:
        """Yield the materializations of a session, then its evaluations of the asset."""
        report = record.report()
        rows = rows_of_session(self.engine.catalog, self.target, report, record.built)
        through = self._committed.complete_through
        yield from materializations(self.target, report, record.built, rows, complete_through=through)
        held = self._committed.held
        for audit in report.audits:
            yield audit_evaluation(self.key, audit, held)

    def _is_marked(self, record: SessionRecord) -> bool:
        """Return whether the first partition of a session has a materialization of that session."""
        partition = self.target.grain.key(record.built[0])
        of_partition = dg.AssetRecordsFilter(self.key, asset_partitions=[partition])
        found = self.instance.fetch_materializations(of_partition, limit=MATERIALIZATIONS_PER_PARTITION)
        for stored in found.records:
            event = stored.asset_materialization
            session = event.metadata.get("session") if event else None
            if session is not None and session.value == record.plan.session_id:
                return True
        return False

    def _now(self) -> float:
        return self.engine.clock().timestamp()


def _moment(decision: NoSession) -> float | None:
    """Return the moment that a decision names at which it may be another one by time alone; None if it names none."""
    moment: datetime | None = getattr(decision, "look_again_at", None)
    return None if moment is None else moment.timestamp()


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


LANDED_PER_TICK = 200
"""Materializations. The daemon stores them one by one, and has a minute for each tick."""

SHOWN_SECONDS = 5
"""Least time between two ticks: what they report is for people, and sessions do not wait for it."""

LATENESS_ROWS = 2_000_000
"""Rows for which one tick computes lateness, which needs their event times: well under a second."""


def raw_tables_sensor(
    pipeline: Pipeline, keys: Mapping[str, dg.AssetKey], timing: SensorTiming, clock: Clock
) -> dg.SensorDefinition:
    """Return a sensor that reports landed partitions and starts nothing.

    One look at the catalog tells which tables have moved; a table that has not is not loaded.

    If a raw table cannot be read, the other tables are reported, and the reason names it. A tick fails with its error
    if nothing else is to be reported: what a failed tick has found would be lost.

    Args:
        pipeline: Declares the raw tables.
        keys: Raw table → its asset key.
        timing: How often the sensor is evaluated.
        clock: The present moment, for the engine.
    """

    moves = _RawMoves()

    def evaluate(context: dg.SensorEvaluationContext, lake_assets: LakeResource) -> dg.SensorResult:
        engine = Engine(lake_assets.catalog(), pipeline, clock=clock)
        report = _LandedReport(engine, keys, json.loads(context.cursor or "{}"))
        problems: dict[str, Exception] = {}
        for raw, location in moves.look(engine.catalog, pipeline, report.last_snapshots):
            try:
                if report.add(raw) == 0:
                    moves.note(raw, location, report.last_snapshots.get(raw.table))
            except Exception as error:  # also of a library that reads files: the other tables are reported
                if is_machines_fault(error):
                    raise
                text = str(failure_of(raw.table, error))
                context.log.error(text)
                problems[text] = error
        if problems and not report.events:
            raise next(iter(problems.values()))
        return dg.SensorResult(
            asset_events=report.events,
            cursor=json.dumps(report.last_snapshots),
            skip_reason=_reason(len(report.events), problems),
        )

    return dg.SensorDefinition(
        name="raw_tables_sensor",
        evaluation_fn=evaluate,
        asset_selection=list(keys.values()),
        minimum_interval_seconds=max(timing.tick_seconds, SHOWN_SECONDS),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports which partitions of the raw tables each new snapshot changed. Starts no runs.",
    )


class _RawMoves:
    """Remembers in which state a raw table had nothing to report, so that it is loaded again only when it moved.

    A state is noted with the snapshot that was reported last. If a tick is lost, the next one has another snapshot in
    its cursor, and loads the table again.
    """

    def __init__(self) -> None:
        self._locations = Locations()
        self._noted: dict[str, tuple[str | None, int | None]] = {}

    def look(
        self, catalog: Catalog, pipeline: Pipeline, reported: Mapping[str, int]
    ) -> Iterator[tuple[RawTable, str | None]]:
        """Yield the raw tables that may have something to report, each with the location of its metadata."""
        found = self._locations.look(catalog, [raw.table for raw in pipeline.raw])
        for raw in pipeline.raw:
            state = (found.get(raw.table), reported.get(raw.table))
            if state[0] is None or self._noted.get(raw.table) != state:
                yield raw, state[0]

    def note(self, raw: RawTable, location: str | None, reported: int | None) -> None:
        """Note that a table has nothing to report at a location, after the snapshot that was reported last."""
        self._noted[raw.table] = (location, reported)


@dataclass
class _LandedReport:
    """What one tick reports.

    Attributes:
        last_snapshots: Raw table → the last snapshot that is reported.
    """

    engine: Engine
    keys: Mapping[str, dg.AssetKey]
    last_snapshots: dict[str, int]
    events: list[dg.AssetMaterialization] = field(default_factory=list)
    rows_read: int = 0

    def add(self, raw: RawTable) -> int:
        """Report the new snapshots of a raw table, up to the limits of a tick; return how many it has."""
        snapshots = self.engine.raw_activity(raw, since=self.last_snapshots.get(raw.table))
        for snapshot in _up_to_limit(snapshots, LANDED_PER_TICK - len(self.events)):
            self.rows_read += snapshot.rows
            late = self.engine.raw_lateness(raw, snapshot) if self.rows_read <= LATENESS_ROWS else {}
            self.events += raw_events(self.keys[raw.table], snapshot, late)
            self.last_snapshots[raw.table] = snapshot.snapshot_id
        return len(snapshots)


def _reason(reported: int, problems: Iterable[str]) -> str:
    done = f"Reported {reported} landed partitions." if reported else "No raw table has a new snapshot."
    return "\n".join([done, *problems])


def raw_events(
    key: dg.AssetKey, snapshot: RawSnapshot, lateness: Mapping[int, Lateness]
) -> list[dg.AssetMaterialization]:
    """Return one materialization for each landing hour of a snapshot.

    The snapshot id is text, because it exceeds the integers that a browser can represent.

    Args:
        key: Asset key of the raw table.
        snapshot: A snapshot of the raw table.
        lateness: Landing hour → lateness of its rows; hours may be missing.
    """
    metadata: dict[str, str | dg.MetadataValue] = {
        "snapshot": str(snapshot.snapshot_id),
        "operation": snapshot.operation,
        "committed at": dg.MetadataValue.timestamp(snapshot.committed_at_ms / 1000),
        "earliest event": _timestamp(snapshot.event_lower),
        "latest event": _timestamp(snapshot.event_upper),
    }
    events = []
    for hour, rows in sorted(snapshot.rows_by_hour.items()):
        of_hour = {"dagster/partition_row_count": rows, **_lateness_minutes(lateness.get(hour))}
        events.append(
            dg.AssetMaterialization(
                asset_key=key,
                partition=hour_key(hour),
                metadata={**metadata, **of_hour},
            )
        )
    return events


def _lateness_minutes(found: Lateness | None) -> dict[str, float]:
    """Return lateness under the metadata names that sessions use."""
    if found is None:
        return {}
    return {
        "lateness p50 (minutes)": round(found.p50_seconds / 60, 1),
        "lateness p95 (minutes)": round(found.p95_seconds / 60, 1),
        "lateness max (minutes)": round(found.max_seconds / 60, 1),
    }


def _up_to_limit(snapshots: Sequence[RawSnapshot], limit: int) -> Iterator[RawSnapshot]:
    """Yield whole snapshots, oldest first, until their partitions reach the limit; the next tick reports the rest."""
    taken = 0
    for snapshot in snapshots:
        if taken >= limit:
            return
        taken += len(snapshot.rows_by_hour)
        yield snapshot


def _timestamp(moment: datetime | None) -> dg.MetadataValue:
    if moment is None:
        return dg.MetadataValue.text("unknown")
    return dg.MetadataValue.timestamp(moment.timestamp())
