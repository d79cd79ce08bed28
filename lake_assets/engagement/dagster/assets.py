"""The engagement lakes as Dagster's assets: one for each stream and for maintenance, whose run takes one turn, and the
metrics behind them.

What a stream does is told in `turn.py`, when it may in `ring.py`; here its report becomes what a person sees. The
metrics are partitioned by org: a run for chosen orgs computes them anew, one without follows the notifications.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from lake_assets.coordination import zookeeper_client
from lake_assets.engagement.dagster.checks import check_results, check_specs, late_turn, turn_in_time, turn_spec
from lake_assets.engagement.dagster.sensors import maintenance_sensor, metrics_sensor, turn_sensor
from lake_assets.engagement.maintenance import maintain
from lake_assets.engagement.maintenance.maintain import MaintenanceReport
from lake_assets.engagement.metrics.refresh import Metrics, Refresh
from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.model.tables import ENGAGEMENT_METRICS, ENGAGEMENT_METRICS_COLUMNS, Commit
from lake_assets.engagement.model.turn_order import MAINTENANCE, check_turns
from lake_assets.engagement.monitoring.audits import commit_of
from lake_assets.engagement.monitoring.status import StreamStatus, stream_status
from lake_assets.engagement.notifications.notify import Notification, counted
from lake_assets.engagement.streams.batch import Stream
from lake_assets.engagement.streams.turn import TurnReport, coordinator, open_stream, take_turn
from lake_assets.errors import LakeError, LockNotFree, TurnRefused
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.sensors import Clock

GROUP = "engagement"
RESOURCES = {"engagement", "spark"}
Metadata = dict[str, Any]


def engagement_key(lake: EngagementLake, name: str) -> dg.AssetKey:
    """A stream's, or that of the metrics: engagement/<lake>/<name>."""
    return dg.AssetKey([GROUP, lake.name, name])


def engagement_definitions(
    lakes: Sequence[EngagementLake],
    *,
    seconds: Mapping[StreamName, int],
    maintenance_seconds: int,
    retain_hours: int,
    max_wait: float,
    clock: Clock,
) -> dg.Definitions:
    """Assets, checks, jobs and sensors of lakes. Their code location must also have the resources of `RESOURCES`.

    seconds: stream → its interval. maintenance_seconds: from one maintenance to the next, at least. retain_hours: so
    long old versions stay readable. max_wait: seconds that a run waits for its turn. `ConfigurationError` if those who
    take turns would not go round.
    """
    check_turns()
    found = [
        stream_definitions(lake, s, seconds=seconds[s], max_wait=max_wait, clock=clock)
        for lake in lakes
        for s in STREAMS
    ]
    found += [
        maintenance_definitions(
            lake, seconds=maintenance_seconds, retain_hours=retain_hours, max_wait=max_wait, clock=clock
        )
        for lake in lakes
    ]
    return dg.Definitions.merge(*found, *map(metrics_definitions, lakes))


def stream_definitions(
    lake: EngagementLake, stream: StreamName, *, seconds: int, max_wait: float, clock: Clock
) -> dg.Definitions:
    """One stream: its asset, its job and its sensor."""
    asset = stream_asset(lake, stream, max_wait=max_wait)
    job = dg.define_asset_job(f"{lake.name}_{stream}_job", [asset])
    sensor = turn_sensor(lake, stream, job.name, asset.key, seconds=seconds, clock=clock)
    return dg.Definitions(assets=[asset], jobs=[job], sensors=[sensor])


def maintenance_definitions(
    lake: EngagementLake, *, seconds: int, retain_hours: int, max_wait: float, clock: Clock
) -> dg.Definitions:
    """The maintenance of a lake: its asset, job and sensor."""
    asset = maintenance_asset(lake, retain_hours=retain_hours, max_wait=max_wait)
    job = dg.define_asset_job(f"{lake.name}_maintenance_job", [asset])
    turns = {name: engagement_key(lake, name) for name in (*STREAMS, MAINTENANCE)}
    sensor = maintenance_sensor(lake, job.name, turns, seconds=seconds, clock=clock)
    return dg.Definitions(assets=[asset], jobs=[job], sensors=[sensor])


def metrics_definitions(lake: EngagementLake) -> dg.Definitions:
    """The metrics of a lake: their asset, job and sensor."""
    orgs = dg.DynamicPartitionsDefinition(name=f"{lake.name}_org")
    asset = metrics_asset(lake, orgs)
    job = dg.define_asset_job(f"{lake.name}_metrics_job", [asset])
    return dg.Definitions(assets=[asset], jobs=[job], sensors=[metrics_sensor(lake, job.name, asset.key, orgs)])


def stream_asset(lake: EngagementLake, stream: StreamName, *, max_wait: float) -> dg.AssetsDefinition:
    """What a stream makes of its messages. A run takes one turn, with one batch at most."""
    key = engagement_key(lake, stream)

    @dg.asset(
        key=key,
        group_name=GROUP,
        kinds={"delta", "kafka", "spark"},
        description=f"The {stream} of {lake.name}: a turn under the job coordinator, with one batch at most.",
        required_resource_keys=RESOURCES,
        check_specs=check_specs(key, stream),
        pool=lake.app_name(stream),
    )
    def step(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
        services = context.resources.engagement
        try:
            tables, servers, hosts = services.tables(lake), services.kafka(), services.zookeeper()
            spark = context.resources.spark.spark_session
            opened = open_stream(stream, tables, spark, servers)
            with zookeeper_client(hosts) as zk:
                report = take_turn(opened, coordinator(opened, zk, spark, timeout=max_wait), max_wait=max_wait)
            batch = report.batch.batch if report.batch else None
            commits = committed(opened, batch)
            verdicts = list(check_results(tables, spark, servers, stream, batch))
            status = stream_status(tables, stream, servers)
        except (TurnRefused, LockNotFree) as error:
            yield late_turn(error)
            raise failure(error) from error
        except LakeError as error:
            raise failure(error) from error
        yield dg.MaterializeResult(metadata=turn_metadata(report, status, commits), check_results=verdicts)

    return step


def maintenance_asset(lake: EngagementLake, *, retain_hours: int, max_wait: float) -> dg.AssetsDefinition:
    """The files of a lake, after one turn of maintenance. No dependency on the streams: no row comes of it."""
    key = engagement_key(lake, MAINTENANCE)

    @dg.asset(
        key=key,
        group_name=GROUP,
        kinds={"delta", "spark"},
        description=f"Sorts and compacts the files of {lake.name}, and removes old ones, in a turn after retention.",
        required_resource_keys=RESOURCES,
        check_specs=[turn_spec(key)],
        pool=f"{lake.name}.{MAINTENANCE}",
    )
    def step(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
        services = context.resources.engagement
        try:
            tables, hosts = services.tables(lake), services.zookeeper()
            spark = context.resources.spark.spark_session
            with zookeeper_client(hosts) as zk:
                done = maintain.take_turn(tables, spark, zk, max_wait=max_wait, retain_hours=retain_hours)
        except (TurnRefused, LockNotFree) as error:
            yield late_turn(error)
            raise failure(error) from error
        except LakeError as error:
            raise failure(error) from error
        yield dg.MaterializeResult(metadata=maintenance_metadata(done), check_results=[turn_in_time()])

    return step


def metrics_asset(lake: EngagementLake, orgs: dg.DynamicPartitionsDefinition) -> dg.AssetsDefinition:
    """The metrics, by org. Its step marks the orgs that it computed, and nothing else."""
    key = engagement_key(lake, ENGAGEMENT_METRICS)
    columns = [dg.TableColumn(name, kind) for name, kind in ENGAGEMENT_METRICS_COLUMNS.items()]
    spec = dg.AssetSpec(
        key=key,
        deps=[dg.AssetDep(engagement_key(lake, stream)) for stream in STREAMS],
        skippable=True,
        group_name=GROUP,
        kinds={"delta", "spark"},
        description=f"Emails and calls of {lake.name} by org, day, rep, cadence and template, with rates.",
        partitions_def=orgs,
        metadata={"dagster/column_schema": dg.TableSchema(columns), "dagster/storage_kind": "delta"},
    )

    @dg.multi_asset(
        name=key.to_python_identifier(),
        specs=[spec],
        required_resource_keys=RESOURCES,
        pool=f"{lake.name}.{ENGAGEMENT_METRICS}",
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def step(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None] | dg.AssetMaterialization]:
        tables = context.resources.engagement.tables(lake)
        is_chosen = context.has_partition_key or context.has_partition_key_range
        chosen = list(context.partition_keys) if is_chosen else []
        try:
            done = Metrics(tables, context.resources.spark.spark_session).refresh(chosen)
        except LakeError as error:
            raise failure(error) from error
        metadata = refresh_metadata(done)
        if chosen:
            yield dg.MaterializeResult(metadata=metadata)
        for org in sorted(set(tables.orgs() if done.orgs is None else done.orgs) - set(chosen)):
            yield dg.AssetMaterialization(key, partition=org, metadata=metadata)

    return step


def committed(stream: Stream, batch: Batch | None) -> dict[str, Commit | None]:
    """Process → what it committed of a batch, also in an earlier turn."""
    if batch is None:
        return {}
    return {p.name: commit_of(stream.tables, stream.name, p.table, p.name, batch) for p in stream.processes}


def turn_metadata(report: TurnReport, status: StreamStatus, commits: Mapping[str, Commit | None]) -> Metadata:
    """A turn for people. Offsets are by Kafka partition, ends exclusive; lag: so many offsets are still to be read.

    commits: as `committed` gives them.
    """
    shown: Metadata = {
        "predecessor": report.predecessor or "none",
        "lock wait (seconds)": round(report.waited, 3),
        "lag": status.lag,
        "batch": "none was due",
    }
    if report.batch is None:
        return shown
    batch = report.batch.batch
    shown |= {
        "batch": batch.batch_id,
        "resumed": report.batch.resumed,
        "dropped": report.batch.dropped,
        "start offsets": json.dumps(dict(batch.messages.start)),
        "end offsets": json.dumps(dict(batch.messages.end)),
        "commit versions": json.dumps({name: c.version if c else None for name, c in commits.items()}),
    }
    if data := commits.get(Notification.of):
        rows = counted(data)
        shown |= {"commit version": data.version, "rows inserted": rows.inserted}
        shown |= {"rows updated": rows.updated, "rows deleted": rows.deleted}
    return shown


def maintenance_metadata(done: MaintenanceReport) -> Metadata:
    """A maintenance for people. Files and bytes are those of the present versions of all tables."""
    return {
        "files": done.after.files,
        "files before": done.before.files,
        "bytes": done.after.bytes,
        "bytes before": done.before.bytes,
        "files removed": sum(done.removed.values()),
        "files removed by table": json.dumps(dict(done.removed)),
        "orgs sorted": done.orgs,
        "hours kept": done.kept_hours,
    }


def refresh_metadata(done: Refresh) -> Metadata:
    """A refresh for people. Versions are those of the engagement table, but for the commit's."""
    return {
        "since version": done.since,
        "as of version": done.cursor,
        "orgs": "all" if done.orgs is None else len(done.orgs),
        "days of orgs": "all" if done.cells is None else done.cells,
        "commit version": done.commit.version if done.commit else "none",
    }
