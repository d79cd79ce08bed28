"""What the sensors of an engagement lake have in common, and the sensor of its metrics.

Sensors read checkpoints, logs, Kafka's offsets and the coordinator's registry, start no Spark, and change nothing but
their cursor. They do nothing while a lake is not initialised. A superfluous run does no harm: it is a turn without
messages, or a refresh without changes.
"""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
from dagster import RunsFilter

from lake_assets.engagement.dagster.resource import EngagementResource
from lake_assets.engagement.metrics.refresh import metrics_are_behind
from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.model.tables import LakeTables
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
