"""Sensors: what should run now, told from table metadata at every tick. They change nothing but their cursor.

Level-triggered: a tick plans anew, so one that was lost costs nothing but time. A session is one run; its run key is
the session and the attempt, because Dagster never repeats a run key, not even one whose run has crashed. The daemon
looks at sensors every 5 s, however small their interval.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from lake_assets.base.failpoints import reach
from lake_assets.base.hours import hour_key, hour_start
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.execution.session_log import SessionRecord
from lake_assets.incremental.planning.landed import RawSnapshot
from lake_assets.incremental.planning.lateness import Lateness
from lake_assets.incremental.planning.session import NoSession, SessionPlan, SessionReport

SESSION_TAG = "lake/session_id"
SNAPSHOTS_TAG = "lake/snapshots"
CODE_VERSION_TAG = "lake/code_version"

RETRY_AFTER_SECONDS = (30, 120, 480)
"""How long a session rests after its first, second and third attempt; after the fourth a person is needed."""

EVENTS_PER_TICK = 200
"""The daemon stores what a tick reports one by one, within the minute that it has."""

LATENESS_ROWS = 2_000_000
"""Of so many rows a tick finds out how late they came, for which it reads their times: well under a second."""

BUSY = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
FINISHED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]

NOT_WAITING = "{}"
"""The cursor of a target that nothing keeps waiting. An empty one would leave the last as it was."""

SESSIONS_PER_TICK = 20
"""How many of a target's newest sessions are looked at for hours that Dagster has not heard of."""

Clock = Callable[[], datetime]
Marks = Callable[[Target, SessionReport, Collection[int]], Iterator[dg.AssetMaterialization]]


@dataclass(frozen=True)
class Attempt:
    """A run of a session that has ended and left it unfinished. ended_at: seconds since 1970."""

    ended_at: float
    code_version: str


@dataclass(frozen=True)
class SensorTiming:
    """Seconds: between evaluations of a sensor, and how long at most a target waits for upstream targets to settle."""

    tick_seconds: int = 2
    settle_seconds: int = 60


def target_sensor(
    pipeline: Pipeline, target: Target, asset: dg.AssetsDefinition, rhythm: SensorTiming, clock: Clock, marks: Marks
) -> dg.SensorDefinition:
    """Requests the next session of a target, or says in plain words why there is none.

    While there is none, it marks the hours of sessions that Dagster has not heard of: committed by `lake catch-up`, or
    by a run that died before it could tell.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        reach("tick-started")
        answer = answered(context)
        reach("tick-answered")
        return answer

    def answered(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        engine = Engine(context.resources.iceberg.catalog(), pipeline, clock=clock)
        decision = engine.decide(target)
        reach("tick-decided")
        busy = busy_run(context.instance, asset.key)
        if isinstance(decision, NoSession):
            return _skip(decision.reason) if busy else _unmarked(context, engine, target, asset.key, decision, marks)
        if busy:
            return _skip(busy)
        attempts = ended_attempts(context.instance, decision.session_id)
        if attempts:
            return _again(context, asset, target, decision, attempts, now=clock().timestamp())
        if reason := engine.unsettled(target):
            since = _since(context.cursor, clock)
            return _when_settled(asset, target, decision, reason, since, rhythm.settle_seconds, clock)
        # Upstream may have committed since the first look, which spares it while there is nothing to do.
        settled = engine.decide(target)
        return _skip(settled.reason) if isinstance(settled, NoSession) else _go(asset, target, settled, attempt=1)

    return dg.SensorDefinition(
        name=f"{target.name}_sensor",
        evaluation_fn=evaluate,
        asset_selection=[asset.key],
        minimum_interval_seconds=rhythm.tick_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Requests a run when {target.table} has hours to build.",
        required_resource_keys={"iceberg"},
    )


def raw_tables_sensor(
    pipeline: Pipeline, keys: Mapping[str, dg.AssetKey], rhythm: SensorTiming, clock: Clock
) -> dg.SensorDefinition:
    """Reports a materialization for each partition of a raw table that a new snapshot touched. Starts nothing."""

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        engine = Engine(context.resources.iceberg.catalog(), pipeline, clock=clock)
        seen: dict[str, int] = json.loads(context.cursor or "{}")
        events: list[dg.AssetMaterialization] = []
        read = 0
        for raw in pipeline.raw:
            for snapshot in _up_to_limit(
                engine.raw_activity(raw, since=seen.get(raw.table)), EVENTS_PER_TICK - len(events)
            ):
                read += snapshot.rows
                late = engine.raw_lateness(raw, snapshot) if read <= LATENESS_ROWS else {}
                events += raw_events(keys[raw.table], snapshot, late)
                seen[raw.table] = snapshot.snapshot_id
        reason = f"{len(events)} landed partitions were reported." if events else "No raw table has a new snapshot."
        return dg.SensorResult(asset_events=events, cursor=json.dumps(seen), skip_reason=reason)

    return dg.SensorDefinition(
        name="raw_tables_sensor",
        evaluation_fn=evaluate,
        asset_selection=list(keys.values()),
        minimum_interval_seconds=rhythm.tick_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Shows what landed in the raw tables, snapshot by snapshot.",
        required_resource_keys={"iceberg"},
    )


def raw_events(
    key: dg.AssetKey, snapshot: RawSnapshot, lateness: Mapping[int, Lateness]
) -> list[dg.AssetMaterialization]:
    """One materialization per landing hour of a snapshot. Its id is text: it exceeds what a browser counts exactly.

    lateness: of the rows of a landing hour, where it is known.
    """
    shared: dict[str, str | dg.MetadataValue] = {
        "snapshot": str(snapshot.snapshot_id),
        "operation": snapshot.operation,
        "committed at": dg.MetadataValue.timestamp(snapshot.committed_at_ms / 1000),
        "earliest event": _moment(snapshot.event_lower),
        "latest event": _moment(snapshot.event_upper),
    }
    return [
        dg.AssetMaterialization(
            asset_key=key,
            partition=hour_key(hour),
            metadata={**shared, "dagster/partition_row_count": rows, **_minutes(lateness.get(hour))},
        )
        for hour, rows in sorted(snapshot.rows_by_hour.items())
    ]


def _minutes(found: Lateness | None) -> dict[str, float]:
    """As metadata, in the unit and under the names of a session's."""
    if found is None:
        return {}
    seconds = {"p50": found.p50_seconds, "p95": found.p95_seconds, "max": found.max_seconds}
    return {f"lateness {which} (minutes)": value / 60 for which, value in seconds.items()}


def envelope_tags(plan: SessionPlan, partitions: dg.TimeWindowPartitionsDefinition) -> dict[str, str]:
    """The partitions that Dagster shows a run for: from the first to the last planned hour, or the nearest there are.

    They are for people; the engine takes its hours from the plan. So a row with an absurd time, which makes an envelope
    reach beyond all partitions until it is set aside, stops nothing. A session without rows shows at complete-through:
    without any partition Dagster fails the step, when it looks for the data versions of the sources.
    """
    known = partitions.get_first_partition_key(), partitions.get_last_partition_key()
    if known[0] is None or known[1] is None:
        return {}
    hours = plan.envelope or (plan.complete_through or 0, plan.complete_through or 0)
    first, last = (min(max(known[0], hour_start(hour).strftime(partitions.fmt)), known[1]) for hour in hours)
    return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}


def rest_seconds(attempts: Sequence[Attempt], code_version: str, now: float) -> float | None:
    """Seconds until the next attempt may start, 0 or less for now; None when a person is needed.

    Attempts with other code do not count: a change of code is a fresh start.
    """
    ended = [attempt.ended_at for attempt in attempts if attempt.code_version == code_version]
    if not ended:
        return 0
    return None if len(ended) > len(RETRY_AFTER_SECONDS) else max(ended) + RETRY_AFTER_SECONDS[len(ended) - 1] - now


def _again(
    context: dg.SensorEvaluationContext,
    asset: dg.AssetsDefinition,
    target: Target,
    plan: SessionPlan,
    attempts: Sequence[Attempt],
    *,
    now: float,
) -> dg.SensorResult:
    rest = rest_seconds(attempts, target.code_version, now)
    tried = f"Session {plan.session_id} ({plan}) has ended uncommitted {len(attempts)} times"
    if rest is None:
        reason = (
            f"{tried}: no more attempts. Read its last run; then re-execute it, or run `lake catch-up {plan.process}`."
        )
        context.log.error(reason)
        return _skip(reason)
    if rest > 0:
        return _skip(f"{tried}; next attempt in {rest:.0f} s.")
    return _go(asset, target, plan, attempt=len(attempts) + 1)


def _when_settled(
    asset: dg.AssetsDefinition,
    target: Target,
    plan: SessionPlan,
    reason: str,
    since: float,
    settle_seconds: int,
    clock: Clock,
) -> dg.SensorResult:
    waited = clock().timestamp() - since
    if waited >= settle_seconds:
        return _go(asset, target, plan, attempt=1)
    cursor = json.dumps({"waiting_since": since, "session_id": plan.session_id})
    return _skip(
        f"{plan} waits for upstream to settle, {settle_seconds - waited:.0f} s at most: {reason}", cursor=cursor
    )


def _since(cursor: str | None, clock: Clock) -> float:
    """Since when the target waits, also if its plan changed meanwhile: or busy sources would put it off for ever."""
    seen = json.loads(cursor or NOT_WAITING).get("waiting_since")
    return clock().timestamp() if seen is None else float(seen)


def _go(asset: dg.AssetsDefinition, target: Target, plan: SessionPlan, *, attempt: int) -> dg.SensorResult:
    """A run of the session by the code as it is now: that may have changed since it was planned."""
    assert isinstance(asset.partitions_def, dg.TimeWindowPartitionsDefinition)
    request = dg.RunRequest(
        run_key=f"{plan.session_id}:{attempt}",
        asset_selection=[asset.key],
        tags={
            **envelope_tags(plan, asset.partitions_def),
            SESSION_TAG: plan.session_id,
            SNAPSHOTS_TAG: json.dumps(plan.snapshots),
            CODE_VERSION_TAG: target.code_version,
        },
    )
    return dg.SensorResult(run_requests=[request], cursor=NOT_WAITING)


def _unmarked(
    context: dg.SensorEvaluationContext,
    engine: Engine,
    target: Target,
    key: dg.AssetKey,
    waiting: NoSession,
    marks: Marks,
) -> dg.SensorResult:
    """A skip, with a materialization for each hour of sessions that Dagster has not heard of."""
    newest = engine.store.state(target.table).session
    if newest is None or json.loads(context.cursor or NOT_WAITING).get("marked") == newest.plan.session_id:
        return _skip(waiting.reason, cursor=context.cursor or NOT_WAITING)
    cursor = json.dumps({"marked": newest.plan.session_id})
    recent = [r for r in engine.store.history(target.table)[-SESSIONS_PER_TICK:] if r.state == "committed" and r.built]
    unmarked = [r for r in recent if not _is_marked(context.instance, key, target.grain.key(r.built[0]), r)]
    found = [e for r in unmarked for e in marks(target, r.report(), r.built)]
    return dg.SensorResult(skip_reason=waiting.reason, cursor=cursor, asset_events=found)


def _is_marked(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str, record: SessionRecord) -> bool:
    """Whether the partition, the session's first, has a materialization of that session."""
    marks = dg.AssetRecordsFilter(key, asset_partitions=[partition])
    known = (r.asset_materialization for r in instance.fetch_materializations(marks, limit=20).records)
    sessions = {m.metadata["session"].value for m in known if m and "session" in m.metadata}
    return record.plan.session_id in sessions


def _skip(reason: str, *, cursor: str = NOT_WAITING) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=reason, cursor=cursor)


def busy_run(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    """A run of an asset that is queued or running, whoever started it, in words; None if there is none."""
    for run in instance.get_runs(RunsFilter(statuses=BUSY)):
        if key in (run.asset_selection or ()):
            return f"Run {run.run_id} of {key.to_user_string()} is {run.status.value.lower()}."
    return None


def ended_attempts(
    instance: dg.DagsterInstance,
    session_id: str,
    *,
    tag: str = SESSION_TAG,
    statuses: Sequence[DagsterRunStatus] = FINISHED,
) -> list[Attempt]:
    """The ended runs of a session. Those of a committed one are never asked for: it is planned no more.

    tag, statuses: for runs of something else than sessions, whose id is the value of another tag.
    """
    records = instance.get_run_records(RunsFilter(tags={tag: session_id}, statuses=list(statuses)))
    return [
        Attempt(r.end_time or r.update_timestamp.timestamp(), r.dagster_run.tags.get(CODE_VERSION_TAG, ""))
        for r in records
    ]


def _up_to_limit(snapshots: Sequence[RawSnapshot], limit: int) -> Iterator[RawSnapshot]:
    """Whole snapshots, oldest first, until their partitions reach the limit; the rest waits for the next tick."""
    taken = 0
    for snapshot in snapshots:
        if taken >= limit:
            return
        taken += len(snapshot.rows_by_hour)
        yield snapshot


def _moment(moment: datetime | None) -> dg.MetadataValue:
    return dg.MetadataValue.timestamp(moment.timestamp()) if moment else dg.MetadataValue.text("unknown")


def all_sensors(
    pipeline: Pipeline,
    assets: Mapping[str, dg.AssetsDefinition],
    raw_keys: Mapping[str, dg.AssetKey],
    rhythm: SensorTiming,
    clock: Clock,
    marks: Marks,
) -> list[dg.SensorDefinition]:
    """One sensor per target, and one for the raw tables, if any is declared: a sensor needs an asset.

    marks: makes the materializations of a session's hours.
    """
    sensors = [target_sensor(pipeline, t, assets[t.table], rhythm, clock, marks) for t in pipeline.targets]
    if raw_keys:
        sensors.append(raw_tables_sensor(pipeline, raw_keys, rhythm, clock))
    return sensors
