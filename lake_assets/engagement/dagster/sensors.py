"""Sensors of the engagement lakes: one for each stream, at its own interval; of each lake, one for its maintenance and
one for its metrics.

They look at checkpoints, logs and Kafka's offsets, start no Spark and change nothing but their cursor. While a lake is
not initialised they do nothing. A run too many does no harm: a turn without messages, a refresh without changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import dagster as dg
from dagster import RunsFilter

from lake_assets.engagement.metrics.refresh import metrics_cursor
from lake_assets.engagement.model.lake import EngagementLake, StreamName
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.model.turn_order import FOLLOWED, MAINTENANCE
from lake_assets.engagement.monitoring.status import stream_status
from lake_assets.engagement.notifications.change_reader import told_since
from lake_assets.errors import ChangesExpired, LakeError
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.dagster.session_runs import FINISHED, busy_run

TICK_SECONDS = 30
RETRY_SECONDS = 60
"""So long a stream rests whose last turn failed or left a batch unfinished: intervals separate batches, no failures."""

LAG_TAG = "lake/offsets_behind"


def turn_sensor(
    lake: EngagementLake, stream: StreamName, job: str, key: dg.AssetKey, *, seconds: int, clock: Clock
) -> dg.SensorDefinition:
    """Requests a turn of a stream whenever its interval is over, also if no message came: the next stream waits for it.

    job: its name. seconds: the interval, from one request to the next.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        tables = context.resources.engagement.tables(lake)
        if why_not := _not_ready(context, tables, key):
            return dg.SensorResult(skip_reason=why_not)
        try:
            status = stream_status(tables, stream, context.resources.engagement.kafka())
        except LakeError as error:
            return dg.SensorResult(skip_reason=str(error))
        now = clock().timestamp()
        again = bool(status.unfinished) or _failed(context.instance, job)
        left = seconds_left(context.cursor, min(seconds, RETRY_SECONDS) if again else seconds, now=now)
        if left > 0:
            told = f"{status.app_name} is {status.lag} offsets behind; its next turn is in {left:.0f} s."
            return dg.SensorResult(skip_reason=told, cursor=context.cursor)
        return _asked(dg.RunRequest(asset_selection=[key], tags={LAG_TAG: str(status.lag)}), now=now)

    told = f"Requests a turn of the {stream} of {lake.name} every {seconds} s."
    return _sensor(lake, stream, evaluate, job, told, seconds=min(seconds, TICK_SECONDS))


def maintenance_sensor(
    lake: EngagementLake, job: str, turns: Mapping[str, dg.AssetKey], *, seconds: int, clock: Clock
) -> dg.SensorDefinition:
    """Requests the maintenance of a lake while the last turn is one of retention, for it may follow no other; and while
    a run of that is due, or under way: then maintenance waits in time, and ingestion, which may follow any, yields.

    job: its name. turns: the assets of all who take turns, by name. seconds: from one request to the next, at least.
    """
    key = turns[MAINTENANCE]

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        tables = context.resources.engagement.tables(lake)
        if why_not := _not_ready(context, tables, key):
            return dg.SensorResult(skip_reason=why_not)
        last = last_turn(context.instance, turns)
        if last != FOLLOWED and not busy_run(context.instance, turns[FOLLOWED]):
            told = f"{lake.name} is maintained after a turn of {FOLLOWED}; the last one was of {last or 'nobody'}."
            return dg.SensorResult(skip_reason=told, cursor=context.cursor)
        now = clock().timestamp()
        rest = min(seconds, RETRY_SECONDS) if _failed(context.instance, job) else seconds
        left = seconds_left(context.cursor, rest, now=now)
        if left > 0:
            told = f"The maintenance of {lake.name} was requested before; the next request is in {left:.0f} s."
            return dg.SensorResult(skip_reason=told, cursor=context.cursor)
        return _asked(dg.RunRequest(asset_selection=[key]), now=now)

    told = f"Requests the maintenance of {lake.name} after a turn of {FOLLOWED}, but for {seconds} s after the last."
    return _sensor(lake, MAINTENANCE, evaluate, job, told)


def metrics_sensor(
    lake: EngagementLake, job: str, key: dg.AssetKey, orgs: dg.DynamicPartitionsDefinition
) -> dg.SensorDefinition:
    """Requests a refresh of the metrics when there are notifications that they do not show; makes new orgs known."""

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        tables = context.resources.engagement.tables(lake)
        if why_not := _not_ready(context, tables, key):
            return dg.SensorResult(skip_reason=why_not)
        known = set(context.instance.get_dynamic_partitions(str(orgs.name)))
        new = [org for org in tables.orgs() if org not in known]
        added = [orgs.build_add_request(new)] if new else []
        if not _behind(tables):
            return dg.SensorResult(skip_reason="The metrics show all notifications.", dynamic_partitions_requests=added)
        return dg.SensorResult(run_requests=[dg.RunRequest(asset_selection=[key])], dynamic_partitions_requests=added)

    told = f"Requests a refresh of the metrics of {lake.name} when it has changed."
    return _sensor(lake, "metrics", evaluate, job, told)


def last_turn(instance: dg.DagsterInstance, turns: Mapping[str, dg.AssetKey]) -> str | None:
    """Who took the last turn that Dagster knows of, and came to its end; None if nobody did. turns: name → asset."""
    events = {name: instance.get_latest_materialization_event(key) for name, key in turns.items()}
    ended = {name: event.timestamp for name, event in events.items() if event}
    return max(ended, key=ended.__getitem__, default=None)


def seconds_left(cursor: str | None, rest: int, *, now: float) -> float:
    """Seconds until the next request is due, `rest` after the last; 0 or less: it is. now: seconds since 1970."""
    asked_at = json.loads(cursor or "{}").get("asked_at")
    return 0 if asked_at is None else float(asked_at) + rest - now


def _sensor(
    lake: EngagementLake,
    name: str,
    evaluate: Callable[[dg.SensorEvaluationContext], dg.SensorResult],
    job: str,
    description: str,
    *,
    seconds: int = TICK_SECONDS,
) -> dg.SensorDefinition:
    """A sensor that runs from the start. seconds: between two evaluations, at least."""
    return dg.SensorDefinition(
        name=f"{lake.name}_{name}_sensor",
        evaluation_fn=evaluate,
        job_name=job,
        minimum_interval_seconds=seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
        required_resource_keys={"engagement"},
    )


def _asked(request: dg.RunRequest, *, now: float) -> dg.SensorResult:
    """The request, and when it was made: what `seconds_left` reads. now: seconds since 1970."""
    return dg.SensorResult(run_requests=[request], cursor=json.dumps({"asked_at": now}))


def _not_ready(context: dg.SensorEvaluationContext, tables: LakeTables, key: dg.AssetKey) -> str | None:
    """Why there is nothing to look at, in words; None if there is."""
    if not tables.exist():
        return f"{tables.lake.name} is not initialised: `lake engagement init {tables.lake.name}`."
    return busy_run(context.instance, key)


def _failed(instance: dg.DagsterInstance, job: str) -> bool:
    """Whether the last run of a job that ended was no success."""
    ended = instance.get_runs(RunsFilter(job_name=job, statuses=FINISHED), limit=1)
    return bool(ended) and not ended[0].is_success


def _behind(tables: LakeTables) -> bool:
    """Whether there are batches that the metrics do not show."""
    try:
        return bool(told_since(tables, metrics_cursor(tables))[1])
    except ChangesExpired:
        return True
