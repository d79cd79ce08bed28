"""Sensors of the engagement lakes: one for each stream at its own interval, one for maintenance, one for metrics.

They read checkpoints, logs and Kafka's offsets, start no Spark, and change nothing but their cursor. They do nothing
while a lake is not initialised. A superfluous run does no harm: it is a turn without messages, or a refresh without
changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import dagster as dg
from dagster import RunsFilter

from lake_assets.engagement.metrics.definition import shows_declared
from lake_assets.engagement.metrics.refresh import metrics_cursor
from lake_assets.engagement.model.lake import EngagementLake, StreamName
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.model.turn_order import FOLLOWED_BY_MAINTENANCE, MAINTENANCE
from lake_assets.engagement.monitoring.status import stream_status
from lake_assets.engagement.notifications.change_reader import notified_since
from lake_assets.errors import ChangesExpired, LakeError
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.dagster.session_runs import FINISHED, busy_run

TICK_SECONDS = 30
RETRY_SECONDS = 60
"""Maximum pause after a failed turn or an unfinished batch. A stream's interval separates batches, not failures."""

LAG_TAG = "lake/offsets_behind"


def turn_sensor(
    lake: EngagementLake, stream: StreamName, job: str, key: dg.AssetKey, *, seconds: int, clock: Clock
) -> dg.SensorDefinition:
    """Return the sensor that requests a turn of a stream after each interval.

    It requests a turn without new messages, too, because the next stream waits for it.

    Args:
        job: Name of the job.
        seconds: Interval from one request to the next.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        tables = context.resources.engagement.tables(lake)
        obstacle = _obstacle(context, tables, key)
        if obstacle is not None:
            return dg.SensorResult(skip_reason=obstacle)
        try:
            status = stream_status(tables, stream, context.resources.engagement.kafka())
        except LakeError as error:
            return dg.SensorResult(skip_reason=str(error))
        now = clock().timestamp()
        is_retry = bool(status.unfinished) or _last_run_failed(context.instance, job)
        interval = min(seconds, RETRY_SECONDS) if is_retry else seconds
        left = seconds_left(context.cursor, interval, now=now)
        if left > 0:
            reason = f"{status.app_name} is {status.lag} offsets behind; its next turn is in {left:.0f} s."
            return dg.SensorResult(skip_reason=reason, cursor=context.cursor)
        request = dg.RunRequest(asset_selection=[key], tags={LAG_TAG: str(status.lag)})
        return _requested(request, now=now)

    description = f"Requests a turn of the {stream} of {lake.name} every {seconds} s."
    return _sensor(lake, stream, evaluate, job, description, seconds=min(seconds, TICK_SECONDS))


def maintenance_sensor(
    lake: EngagementLake, job: str, turn_assets: Mapping[str, dg.AssetKey], *, seconds: int, clock: Clock
) -> dg.SensorDefinition:
    """Return the sensor that requests maintenance, which may only follow retention.

    It requests maintenance while the last turn was one of retention, and while a run of retention is queued or running:
    then maintenance waits in time, and ingestion, which may follow any stream, yields to it.

    Args:
        job: Name of the job.
        turn_assets: Assets of all who take turns, by name.
        seconds: Minimum interval from one request to the next.
    """
    key = turn_assets[MAINTENANCE]
    followed = FOLLOWED_BY_MAINTENANCE

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        tables = context.resources.engagement.tables(lake)
        obstacle = _obstacle(context, tables, key)
        if obstacle is not None:
            return dg.SensorResult(skip_reason=obstacle)
        last = last_turn(context.instance, turn_assets)
        if last != followed and not busy_run(context.instance, turn_assets[followed]):
            former = last or "nobody"
            reason = f"Maintenance of {lake.name} follows a turn of {followed}; the last turn was of {former}."
            return dg.SensorResult(skip_reason=reason, cursor=context.cursor)
        now = clock().timestamp()
        is_retry = _last_run_failed(context.instance, job)
        interval = min(seconds, RETRY_SECONDS) if is_retry else seconds
        left = seconds_left(context.cursor, interval, now=now)
        if left > 0:
            reason = f"The maintenance of {lake.name} was requested before; the next request is in {left:.0f} s."
            return dg.SensorResult(skip_reason=reason, cursor=context.cursor)
        return _requested(dg.RunRequest(asset_selection=[key]), now=now)

    description = f"Requests the maintenance of {lake.name} after a turn of {followed}, at most every {seconds} s."
    return _sensor(lake, MAINTENANCE, evaluate, job, description)


def metrics_sensor(
    lake: EngagementLake, job: str, key: dg.AssetKey, orgs: dg.DynamicPartitionsDefinition
) -> dg.SensorDefinition:
    """Return the sensor that requests a refresh of the metrics after new notifications, and adds new orgs."""

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        tables = context.resources.engagement.tables(lake)
        obstacle = _obstacle(context, tables, key)
        if obstacle is not None:
            return dg.SensorResult(skip_reason=obstacle)
        known = set(context.instance.get_dynamic_partitions(str(orgs.name)))
        new_orgs = [org for org in tables.orgs() if org not in known]
        added = [orgs.build_add_request(new_orgs)] if new_orgs else []
        if not _metrics_are_behind(tables):
            return dg.SensorResult(skip_reason="The metrics show all notifications.", dynamic_partitions_requests=added)
        request = dg.RunRequest(asset_selection=[key])
        return dg.SensorResult(run_requests=[request], dynamic_partitions_requests=added)

    description = f"Requests a refresh of the metrics of {lake.name} after it has changed."
    return _sensor(lake, "metrics", evaluate, job, description)


def last_turn(instance: dg.DagsterInstance, turn_assets: Mapping[str, dg.AssetKey]) -> str | None:
    """Return who took the last turn that Dagster has materialized; None if nobody did.

    Args:
        turn_assets: Name → asset.
    """
    last: str | None = None
    latest = 0.0
    for name, key in turn_assets.items():
        event = instance.get_latest_materialization_event(key)
        if event is not None and event.timestamp > latest:
            last = name
            latest = event.timestamp
    return last


def seconds_left(cursor: str | None, interval: int, *, now: float) -> float:
    """Return the seconds until the next request is due; 0 or less if it is due.

    Args:
        cursor: The sensor's cursor, with the time of the last request; None before the first one.
        now: Seconds since 1970.
    """
    asked_at = json.loads(cursor or "{}").get("asked_at")
    if asked_at is None:
        return 0
    return float(asked_at) + interval - now


def _sensor(
    lake: EngagementLake,
    name: str,
    evaluate: Callable[[dg.SensorEvaluationContext], dg.SensorResult],
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
        required_resource_keys={"engagement"},
    )


def _requested(request: dg.RunRequest, *, now: float) -> dg.SensorResult:
    """Return the request with a cursor that `seconds_left` reads."""
    return dg.SensorResult(run_requests=[request], cursor=json.dumps({"asked_at": now}))


def _obstacle(context: dg.SensorEvaluationContext, tables: LakeTables, key: dg.AssetKey) -> str | None:
    """Return why nothing can be requested now; None if nothing prevents a request."""
    if not tables.exist():
        return f"{tables.lake.name} is not initialised: `lake engagement init {tables.lake.name}`."
    return busy_run(context.instance, key)


def _last_run_failed(instance: dg.DagsterInstance, job: str) -> bool:
    ended = instance.get_runs(RunsFilter(job_name=job, statuses=FINISHED), limit=1)
    return bool(ended) and not ended[0].is_success


def _metrics_are_behind(tables: LakeTables) -> bool:
    if not shows_declared(tables):
        return True
    try:
        _, versions = notified_since(tables, metrics_cursor(tables))
    except ChangesExpired:
        return True
    return bool(versions)
