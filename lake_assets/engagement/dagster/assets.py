"""The engagement lakes as Dagster assets: one for each stream, one for maintenance, and one for the metrics.

A run of a stream or of maintenance takes one turn (see `turn` and `turn_order`). The metrics are
partitioned by org: a run with partitions recomputes these orgs, a run without partitions follows the notifications.
"""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from lake_assets.connections.addresses import DASHBOARD_PATH
from lake_assets.coordination import zookeeper_client
from lake_assets.engagement import maintenance
from lake_assets.engagement.batch import Stream
from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.dagster.checks import (
    check_results,
    check_specs,
    late_turn,
    maintenance_metadata,
    refresh_metadata,
    turn_in_time,
    turn_metadata,
    turn_spec,
)
from lake_assets.engagement.dagster.graph import (
    IO_MANAGER,
    EngagementResource,
    engagement_key,
    external_specs,
    group_of,
    table_metadata,
    topic_key,
)
from lake_assets.engagement.dagster.sensors import LakeTurns, metrics_sensor, turn_sensor
from lake_assets.engagement.delta_log import Commit
from lake_assets.engagement.lake import STREAMS, TURNS, EngagementLake, StreamName, metrics_columns
from lake_assets.engagement.metrics import Metrics
from lake_assets.engagement.monitoring import commit_of, stream_status
from lake_assets.engagement.tables import ENGAGEMENT_METRICS, NOTIFICATION
from lake_assets.engagement.turn import coordinator, open_stream, take_turn
from lake_assets.engagement.turn_order import MAINTENANCE, check_turns
from lake_assets.errors import LakeError, LockNotFree, TurnRefused
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.sensors import Clock


def engagement_definitions(
    lakes: Sequence[EngagementLake],
    *,
    seconds: Mapping[StreamName, int],
    maintenance_seconds: int,
    retain_hours: int,
    max_wait: float,
    clock: Clock,
) -> dg.Definitions:
    """Return the assets, checks, jobs and sensors of lakes. Their code location must define `lake_resources`.

    Args:
        seconds: Stream → interval between its turns, of lakes that declare none of their own.
        maintenance_seconds: Minimum interval between two maintenances, likewise.
        retain_hours: Hours for which old versions stay readable, likewise.
        max_wait: Seconds that a run waits for its turn.
        clock: Returns the present time for sensors.

    Raises:
        ConfigurationError: A stream could never get a turn.
    """
    intervals = {MAINTENANCE: maintenance_seconds, **{str(name): value for name, value in seconds.items()}}
    definitions = []
    for lake in lakes:
        check_turns(lake)
        turns = LakeTurns(
            lake,
            seconds={**intervals, **lake.seconds},
            assets={name: engagement_key(lake, name) for name in TURNS},
            max_wait=max_wait,
            clock=clock,
        )
        for stream in STREAMS:
            definitions.append(turn_definitions(turns, stream, stream_asset(lake, stream, max_wait=max_wait)))
        hours = lake.retain_hours or retain_hours
        maintenance = maintenance_asset(lake, retain_hours=hours, max_wait=max_wait)
        definitions.append(turn_definitions(turns, MAINTENANCE, maintenance))
        definitions.append(metrics_definitions(lake))
        definitions.append(dg.Definitions(assets=external_specs(lake)))
    return dg.Definitions.merge(*definitions)


def turn_definitions(turns: LakeTurns, name: str, asset: dg.AssetsDefinition) -> dg.Definitions:
    """Return the asset of one who takes turns, with its job and sensor."""
    job = dg.define_asset_job(f"{turns.lake.name}_{name}_job", [asset])
    return dg.Definitions(assets=[asset], jobs=[job], sensors=[turn_sensor(turns, name, job.name)])


def metrics_definitions(lake: EngagementLake) -> dg.Definitions:
    """Return the asset, job and sensor of a lake's metrics."""
    orgs = dg.DynamicPartitionsDefinition(name=f"{lake.name}_org")
    asset = metrics_asset(lake, orgs)
    job = dg.define_asset_job(f"{lake.name}_metrics_job", [asset])
    sensor = metrics_sensor(lake, job.name, asset.key, orgs)
    return dg.Definitions(assets=[asset], jobs=[job], sensors=[sensor])


def stream_asset(lake: EngagementLake, stream: StreamName, *, max_wait: float) -> dg.AssetsDefinition:
    """Return the asset of a stream. A run takes one turn, with at most one batch."""
    key = engagement_key(lake, stream)

    @dg.asset(
        key=key,
        deps=[topic_key(lake, stream)],
        group_name=group_of(lake),
        kinds={"delta", "kafka", "spark"},
        description=f"The {stream} of {lake.name}: one turn under the job coordinator, with at most one batch.",
        check_specs=check_specs(key, stream),
        pool=lake.app_name(stream),
    )
    def step(
        lake_assets: LakeResource, lake_assets_engagement: EngagementResource
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
        services = lake_assets_engagement
        try:
            tables, servers, hosts = services.tables(lake), services.kafka_servers(), services.zookeeper_hosts()
            spark = lake_assets.spark_session
            opened = open_stream(stream, tables, spark, servers)
            with zookeeper_client(hosts) as zk:
                report = take_turn(opened, coordinator(opened, zk, spark, timeout=max_wait), max_wait=max_wait)
            batch = report.batch.batch if report.batch else None
            commits = batch_commits(opened, batch)
            results = list(check_results(tables, spark, servers, stream, batch))
            status = stream_status(tables, stream, servers)
        except (TurnRefused, LockNotFree) as error:
            yield late_turn(error)
            raise failure(error) from error
        except LakeError as error:
            raise failure(error) from error
        yield dg.MaterializeResult(metadata=turn_metadata(report, status, commits), check_results=results)

    return step


def maintenance_asset(lake: EngagementLake, *, retain_hours: int, max_wait: float) -> dg.AssetsDefinition:
    """Return the asset of a lake's maintenance. It does not depend on the streams, because it changes no row."""
    key = engagement_key(lake, MAINTENANCE)

    @dg.asset(
        key=key,
        group_name=group_of(lake),
        kinds={"delta", "spark"},
        description=f"Sorts and compacts the files of {lake.name}, and removes old ones, in a turn after retention.",
        check_specs=[turn_spec(key)],
        pool=f"{lake.name}.{MAINTENANCE}",
    )
    def step(
        lake_assets: LakeResource, lake_assets_engagement: EngagementResource
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
        services = lake_assets_engagement
        try:
            tables, hosts = services.tables(lake), services.zookeeper_hosts()
            spark = lake_assets.spark_session
            with zookeeper_client(hosts) as zk:
                report = maintenance.take_turn(tables, spark, zk, max_wait=max_wait, retain_hours=retain_hours)
        except (TurnRefused, LockNotFree) as error:
            yield late_turn(error)
            raise failure(error) from error
        except LakeError as error:
            raise failure(error) from error
        yield dg.MaterializeResult(metadata=maintenance_metadata(report), check_results=[turn_in_time()])

    return step


def metrics_asset(lake: EngagementLake, orgs: dg.DynamicPartitionsDefinition) -> dg.AssetsDefinition:
    """Return the asset of a lake's metrics, partitioned by org. A run materializes only the orgs that it recomputes."""
    key = engagement_key(lake, ENGAGEMENT_METRICS)
    spec = dg.AssetSpec(
        key=key,
        deps=[engagement_key(lake, NOTIFICATION)],
        skippable=True,
        group_name=group_of(lake),
        kinds={"delta", "spark"},
        description=f"{_words(lake)} of {lake.name} by org, day, rep, cadence and template, with rates.",
        partitions_def=orgs,
        metadata={
            **table_metadata(lake, ENGAGEMENT_METRICS, metrics_columns(lake.metrics)),
            "partition_expr": "org_id",
            "lake/dashboard": dg.MetadataValue.url(f"{DASHBOARD_PATH}/{lake.name}"),
        },
    ).with_io_manager_key(IO_MANAGER)

    @dg.multi_asset(
        name=key.to_python_identifier(),
        specs=[spec],
        pool=f"{lake.name}.{ENGAGEMENT_METRICS}",
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def step(
        context: dg.AssetExecutionContext, lake_assets: LakeResource, lake_assets_engagement: EngagementResource
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetMaterialization]:
        tables = lake_assets_engagement.tables(lake)
        has_partitions = context.has_partition_key or context.has_partition_key_range
        chosen = list(context.partition_keys) if has_partitions else []
        try:
            refresh = Metrics(tables, lake_assets.spark_session).refresh(chosen)
        except LakeError as error:
            raise failure(error) from error
        metadata = refresh_metadata(refresh)
        if chosen:
            yield dg.MaterializeResult(metadata=metadata)
        refreshed = tables.orgs() if refresh.orgs is None else refresh.orgs
        for org in sorted(set(refreshed) - set(chosen)):
            yield dg.AssetMaterialization(key, partition=org, metadata=metadata)

    return step


def _words(lake: EngagementLake) -> str:
    """Return what the metrics count: Emails and calls."""
    return " and ".join(group.name for group in lake.metrics).capitalize()


def batch_commits(stream: Stream, batch: Batch | None) -> dict[str, Commit | None]:
    """Return the name of each commit of a batch → what it committed, in this or an earlier turn."""
    if batch is None:
        return {}
    found = {}
    for commit in stream.commits:
        found[commit.name] = commit_of(stream.tables, stream.name, commit.table, commit.name, batch)
    return found
