"""Sensors of the engagement lakes: one for each stream, at its own interval, and one for the metrics of each lake.

They look at checkpoints, logs and Kafka's offsets, start no Spark and change nothing but their cursor. While a lake is
not initialised they do nothing. A run too many does no harm: a turn without messages, a refresh without changes.
"""

from __future__ import annotations

import json

import dagster as dg
from dagster import RunsFilter

from lake_assets.engagement.changes import told_since
from lake_assets.engagement.lake import EngagementLake, StreamName
from lake_assets.engagement.metrics import metrics_cursor
from lake_assets.engagement.status import stream_status
from lake_assets.engagement.tables import LakeTables
from lake_assets.errors import ChangesExpired, LakeError
from lake_assets.incremental.sensors import FINISHED, Clock, busy_run

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
        request = dg.RunRequest(asset_selection=[key], tags={LAG_TAG: str(status.lag)})
        return dg.SensorResult(run_requests=[request], cursor=json.dumps({"asked_at": now}))

    return dg.SensorDefinition(
        name=f"{lake.name}_{stream}_sensor",
        evaluation_fn=evaluate,
        job_name=job,
        minimum_interval_seconds=min(seconds, TICK_SECONDS),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Requests a turn of the {stream} of {lake.name} every {seconds} s.",
        required_resource_keys={"engagement"},
    )


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

    return dg.SensorDefinition(
        name=f"{lake.name}_metrics_sensor",
        evaluation_fn=evaluate,
        job_name=job,
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Requests a refresh of the metrics of {lake.name} when it has changed.",
        required_resource_keys={"engagement"},
    )


def seconds_left(cursor: str | None, rest: int, *, now: float) -> float:
    """Seconds until the next request is due, `rest` after the last; 0 or less: it is. now: seconds since 1970."""
    asked_at = json.loads(cursor or "{}").get("asked_at")
    return 0 if asked_at is None else float(asked_at) + rest - now


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
