"""The sensors of an engagement lake: one for each stream, one for its maintenance, and one for its metrics.

Sensors read checkpoints, logs, Kafka's offsets and the coordinator's registry, start no Spark, and change nothing but
their cursor. They do nothing while a lake is not initialised. A superfluous run does no harm: it is a turn without
messages, or a refresh without changes.

A run that is not its stream's turn would wait in a slot of Dagster's. So a sensor reads the coordinator's registry,
and requests the run when the stream would get its turn at once. If a turn is due for longer than its maximum wait, the
check `turn_in_time` fails and names who waits, and for whom.

The streams of a continuous lake take their turns by themselves. Their sensors request nothing, and report the newest
batch as a materialization without a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import dagster as dg
from dagster import RunsFilter

from lake_assets.coordination import ANY, zookeeper_client
from lake_assets.coordination.registry import DueStream, LockState, read_lock_state, why_not_now
from lake_assets.coordination.rules import Turn
from lake_assets.engagement.dagster.checks import TURN_IN_TIME, batch_metadata
from lake_assets.engagement.dagster.graph import EngagementResource
from lake_assets.engagement.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.metrics import metrics_are_behind
from lake_assets.engagement.monitoring import commit_of, stream_status
from lake_assets.engagement.notifications import DATA_COMMIT
from lake_assets.engagement.tables import ENGAGEMENT, LakeTables
from lake_assets.engagement.turn_order import MAINTENANCE, turn_order
from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.checks import of_newest_materialization
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.dagster.session_runs import FINISHED, busy_run

TICK_SECONDS = 30


def metrics_sensor(
    lake: EngagementLake, job: str, key: dg.AssetKey, orgs: dg.DynamicPartitionsDefinition
) -> dg.SensorDefinition:
    """Return the sensor that requests a refresh of the metrics after new notifications, and adds new orgs."""

    def evaluate(context: dg.SensorEvaluationContext, lake_assets_engagement: EngagementResource) -> dg.SensorResult:
        tables = lake_assets_engagement.tables(lake)
        prevented = obstacle(context, tables, key)
        if prevented is not None:
            return dg.SensorResult(skip_reason=prevented)
        known = set(context.instance.get_dynamic_partitions(str(orgs.name)))
        new_orgs = [org for org in tables.orgs() if org not in known]
        added = [orgs.build_add_request(new_orgs)] if new_orgs else []
        if not metrics_are_behind(tables):
            return dg.SensorResult(skip_reason="The metrics show all notifications.", dynamic_partitions_requests=added)
        request = dg.RunRequest(asset_selection=[key])
        return dg.SensorResult(run_requests=[request], dynamic_partitions_requests=added)

    description = f"Requests a refresh of the metrics of {lake.name} after it has changed."
    return lake_sensor(lake, "metrics", evaluate, job, description)


def lake_sensor(
    lake: EngagementLake,
    name: str,
    evaluate: Callable[..., dg.SensorResult],
    job: str,
    description: str,
    *,
    seconds: int = TICK_SECONDS,
) -> dg.SensorDefinition:
    """Return a sensor that is running by default, with at least `seconds` between two evaluations."""
    return dg.SensorDefinition(
        name=f"{lake.name}_{name}_sensor",
        evaluation_fn=evaluate,
        job_name=job,
        minimum_interval_seconds=seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )


def obstacle(context: dg.SensorEvaluationContext, tables: LakeTables, key: dg.AssetKey) -> str | None:
    """Return why nothing can be requested now; None if nothing prevents a request."""
    if not tables.exist():
        return f"{tables.lake.name} is not initialised: `lake engagement init {tables.lake.name}`."
    since = tables.paused_since
    if since is not None:
        return f"{tables.lake.name} is paused since {since}: `lake engagement resume {tables.lake.name}`."
    return busy_run(context.instance, key)


def last_run_failed(instance: dg.DagsterInstance, job: str) -> bool:
    ended = instance.get_runs(RunsFilter(job_name=job, statuses=FINISHED), limit=1)
    return bool(ended) and not ended[0].is_success


RETRY_SECONDS = 60
"""Maximum pause after a failed turn or an unfinished batch. A stream's interval separates batches, not failures."""

PATIENCE_SECONDS = 3 * TICK_SECONDS
"""How long the others leave an occasion to the stream that goes first: its sensor looks twice, and its run starts."""

LAG_TAG = "lake/offsets_behind"


@dataclass(frozen=True)
class LakeTurns:
    """Who takes turns on a lake, and how often.

    Attributes:
        seconds: Name → interval from one request to the next.
        assets: Name → asset.
        max_wait: Seconds for which a turn may be due before its check fails.
        clock: Returns the present time.
    """

    lake: EngagementLake
    seconds: Mapping[str, int]
    assets: Mapping[str, dg.AssetKey]
    max_wait: float
    clock: Clock

    def due(self, instance: dg.DagsterInstance, last: Turn | None, *, now: float) -> Iterator[DueStream]:
        """Yield those whose turn is due, by their last materialization in Dagster."""
        for name, declared in turn_order(self.lake).items():
            if self.lake.continuous and name != MAINTENANCE:
                continue
            event = instance.get_latest_materialization_event(self.assets[name])
            since = event.timestamp + self.seconds[name] if event else 0.0
            if since <= now and not _has_nothing_to_do(name, last):
                yield DueStream(declared, since)


@dataclass(frozen=True)
class _Cursor:
    """The cursor of a sensor. All times are in seconds since 1970.

    Attributes:
        asked_at: When the last run was requested; None if none was.
        waits_since: Since when a turn is due that could not be requested yet; None if none is.
        is_late: Whether the check of that turn has failed.
        batch_id: The batch of a continuous stream that was reported last; None if none was.
    """

    asked_at: float | None = None
    waits_since: float | None = None
    is_late: bool = False
    batch_id: int | None = None

    @classmethod
    def read(cls, text: str | None) -> _Cursor:
        """Return a stored cursor. One of an earlier version has `asked_at` alone."""
        return cls(**json.loads(text or "{}"))

    def text(self) -> str:
        return json.dumps(asdict(self))


def turn_sensor(turns: LakeTurns, name: str, job: str) -> dg.SensorDefinition:
    """Return the sensor that requests a turn after each interval, as soon as the coordinator would grant it.

    It requests a turn without new messages, too, because the next stream waits for it.

    Args:
        name: Who takes the turn.
        job: Name of the job.
    """
    seconds = turns.seconds[name]

    def evaluate(context: dg.SensorEvaluationContext, lake_assets_engagement: EngagementResource) -> dg.SensorResult:
        try:
            return _evaluate(turns, name, job, context, lake_assets_engagement)
        except LakeError as error:
            return dg.SensorResult(skip_reason=str(error), cursor=context.cursor)

    description = f"Requests a turn of the {name} of {turns.lake.name} every {seconds} s, when it can have it."
    return lake_sensor(turns.lake, name, evaluate, job, description, seconds=min(seconds, TICK_SECONDS))


def _evaluate(
    turns: LakeTurns, name: str, job: str, context: dg.SensorEvaluationContext, services: EngagementResource
) -> dg.SensorResult:
    tables = services.tables(turns.lake)
    prevented = obstacle(context, tables, turns.assets[name])
    if prevented is not None:
        return dg.SensorResult(skip_reason=prevented, cursor=context.cursor)
    for stream in STREAMS:
        if turns.lake.continuous and stream == name:
            return _report_newest(turns, tables, stream, _Cursor.read(context.cursor), services)
    progress = _progress(tables, name, services)
    cursor = _Cursor.read(context.cursor)
    is_retry = progress.is_unfinished or last_run_failed(context.instance, job)
    interval = min(turns.seconds[name], RETRY_SECONDS) if is_retry else turns.seconds[name]
    now = turns.clock().timestamp()
    due_at = now if cursor.asked_at is None else cursor.asked_at + interval
    if due_at > now:
        reason = f"{progress.text}; its next turn is in {due_at - now:.0f} s."
        return dg.SensorResult(skip_reason=reason, cursor=context.cursor)
    with zookeeper_client(services.zookeeper_hosts()) as zk:
        seen = read_lock_state(zk, turns.lake.lock)
    why = _why_not_now(turns, name, context.instance, seen, now=now, since=due_at)
    if why is not None:
        reason = f"{progress.text}; its turn is due, but {why}."
        return _waits(turns, name, context.instance, cursor, reason, now=now)
    request = dg.RunRequest(asset_selection=[turns.assets[name]], tags=progress.tags)
    return dg.SensorResult(run_requests=[request], cursor=_Cursor(asked_at=now).text())


def _report_newest(
    turns: LakeTurns, tables: LakeTables, name: StreamName, cursor: _Cursor, services: EngagementResource
) -> dg.SensorResult:
    """Return a materialization for the newest batch of a continuous stream, unless it was reported before."""
    status = stream_status(tables, name, services.kafka_servers())
    last = tables.checkpoints.read(status.app_name)
    reason = f"{status.app_name} runs on by itself, {status.lag} offsets behind."
    if last is None or not last.finished or last.batch.batch_id == cursor.batch_id:
        return dg.SensorResult(skip_reason=reason, cursor=cursor.text())
    data = commit_of(tables, name, ENGAGEMENT, DATA_COMMIT, last.batch)
    metadata = batch_metadata(last.batch, last.done, data) | {"lag": status.lag}
    with zookeeper_client(services.zookeeper_hosts()) as zk:
        turn = read_lock_state(zk, turns.lake.lock).last
    accepts = turn_order(turns.lake)[name].accepts
    if turn is not None and turn.name == name:
        metadata["predecessor"] = turn.predecessor or "none"
    elif len(accepts - {ANY}) == 1 and ANY not in accepts:
        metadata["predecessor"] = "".join(accepts)
    event = dg.AssetMaterialization(turns.assets[name], metadata=metadata)
    cursor = replace(cursor, batch_id=last.batch.batch_id)
    return dg.SensorResult(skip_reason=reason, cursor=cursor.text(), asset_events=[event])


@dataclass(frozen=True)
class _Progress:
    """How far a stream is. text: for a person. tags: of its next run."""

    text: str
    is_unfinished: bool
    tags: Mapping[str, str]


def _progress(tables: LakeTables, name: str, services: Any) -> _Progress:
    for stream in STREAMS:
        if stream == name:
            status = stream_status(tables, stream, services.kafka_servers())
            text = f"{status.app_name} is {status.lag} offsets behind"
            return _Progress(text, bool(status.unfinished), {LAG_TAG: str(status.lag)})
    return _Progress(f"The {name} of {tables.lake.name} waits", is_unfinished=False, tags={})


def _why_not_now(
    turns: LakeTurns, name: str, instance: dg.DagsterInstance, seen: LockState, *, now: float, since: float
) -> str | None:
    if _has_nothing_to_do(name, seen.last):
        return "nobody else has had a turn since its own"
    if turns.lake.continuous:
        return None  # a continuous stream goes on at once; it yields to a run that waits
    due = turns.due(instance, seen.last, now=now)
    others = [other for other in due if other.stream.name != name]
    asking = DueStream(turn_order(turns.lake)[name], since)
    return why_not_now(asking, others, seen, now=now, patience=PATIENCE_SECONDS)


def _has_nothing_to_do(name: str, last: Turn | None) -> bool:
    """Return whether a turn would find what its own last one left. Streams must look at their topics instead."""
    return name == MAINTENANCE and last is not None and (last.name, last.state) == (name, "done")


def _waits(
    turns: LakeTurns, name: str, instance: dg.DagsterInstance, cursor: _Cursor, reason: str, *, now: float
) -> dg.SensorResult:
    """Return that a turn cannot be requested yet; once, when it is late, with the failed check."""
    since = now if cursor.waits_since is None else cursor.waits_since
    cursor = replace(cursor, waits_since=since)
    if cursor.is_late or now - since < turns.max_wait:
        return dg.SensorResult(skip_reason=reason, cursor=cursor.text())
    failed = dg.AssetCheckEvaluation(
        asset_key=turns.assets[name], check_name=TURN_IN_TIME, passed=False, metadata={"reason": reason}
    )
    shown = of_newest_materialization(instance, failed)
    return dg.SensorResult(skip_reason=reason, cursor=replace(cursor, is_late=True).text(), asset_events=[shown])
