"""Maintenance as assets: one for each table and one for erasures, with figures as metadata, and their schedule.

A table's maintenance uses the table's pool, so it never runs at the same time as a session of the table. A tick of the
schedule requests one run for each table: one run for all would take all pools at once, and every target would wait for
the slowest table.
"""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from lake_assets.connections.catalog import log_tables
from lake_assets.errors import ErasureStopped, LakeError, PublishConflict
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.erasure.erase import Elsewhere, ErasureReport, sweep
from lake_assets.incremental.operations.maintain import Maintainer, MaintenanceReport, Policy, tables_of
from lake_assets.settings import settings

GROUP = "maintenance"
ERASURES_FINISHED = "erasures_finished"

SWEEP_RETRIES = 3
SWEEP_RETRY_SECONDS = 60


def maintenance_key(table: str) -> dg.AssetKey:
    """Return the asset key of a table's maintenance: maintenance/core/signup_fact for `core.signup_fact`."""
    return dg.AssetKey([GROUP, *table.split(".")])


def maintenance_asset(pipeline: Pipeline, table: str, policy: Policy, clock: Clock) -> dg.AssetsDefinition:
    """Return the maintenance of one table.

    It does not depend on the table, so that backfills of the table's downstream assets leave it out.
    """

    @dg.asset(
        key=maintenance_key(table),
        group_name=GROUP,
        kinds={"iceberg", "spark"},
        description=f"Compacts {table}, expires its old snapshots and removes orphan files. Changes no row.",
        pool=table,
    )
    def step(context: dg.AssetExecutionContext, lake_assets: LakeResource) -> dg.MaterializeResult[None]:
        maintainer = Maintainer(
            lake_assets.catalog(),
            pipeline,
            clock=clock,
            spark=lambda: lake_assets.spark_session,
            policy=policy,
        )
        try:
            report = maintainer.maintain(table)
        except LakeError as error:
            raise failure(error) from error
        for note in report.notes:
            context.log.info(note)
        return dg.MaterializeResult(metadata=maintenance_metadata(report))

    return step


def erasures_asset(pipeline: Pipeline, clock: Clock, elsewhere: Elsewhere = lambda _: None) -> dg.AssetsDefinition:
    """Return the asset that deletes rows which arrived after their subject was erased, with the files that held them.

    It is in no pool, because it finishes sessions itself and gives way to those of others.

    Args:
        pipeline: Declares subjects and tables.
        clock: The present moment.
        elsewhere: Does the same outside of the tables.
    """
    finished = dg.AssetCheckSpec(ERASURES_FINISHED, asset=maintenance_key("erasures"))

    @dg.asset(
        key=maintenance_key("erasures"),
        group_name=GROUP,
        kinds={"iceberg"},
        description="Deletes rows that arrived after their subject was erased, and the files that held them.",
        check_specs=[finished],
    )
    def step(context: dg.AssetExecutionContext, lake_assets: LakeResource) -> Iterator[dg.MaterializeResult[None]]:
        engine = Engine(
            lake_assets.catalog(),
            pipeline,
            clock=clock,
            spark=lambda: lake_assets.spark_session,
        )
        try:
            report = sweep(engine, now=clock(), elsewhere=elsewhere)
        except (ErasureStopped, PublishConflict) as error:  # a session was running, or a zone is behind
            raise dg.RetryRequested(max_retries=SWEEP_RETRIES, seconds_to_wait=SWEEP_RETRY_SECONDS) from error
        except LakeError as error:
            raise failure(error) from error
        yield dg.MaterializeResult(metadata=erasures_metadata(report), check_results=[_erasures_finished(report)])

    return step


def erasures_metadata(report: ErasureReport) -> dict[str, dg.MetadataValue]:
    """Return the figures of a sweep."""
    numbers = {
        "rows dropped": sum(report.rows.values()),
        "snapshots expired": report.snapshots,
        "files removed": report.files,
        "erasures unfinished": report.unfinished,
    }
    return _integers(numbers)


def _erasures_finished(report: ErasureReport) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=ERASURES_FINISHED,
        passed=not report.unfinished,
        severity=dg.AssetCheckSeverity.ERROR,
        metadata={"unfinished": report.unfinished},
        description="Every requested erasure is finished. If one is not, run `lake erase` for its id again.",
    )


def maintenance_metadata(report: MaintenanceReport) -> dict[str, dg.MetadataValue]:
    """Return the figures of one table's maintenance. Each is a number of its own, so that the UI plots it."""
    before = report.before
    after = report.after
    numbers = {
        "files": after.files,
        "files before": before.files,
        "bytes": after.bytes,
        "bytes before": before.bytes,
        "stored files": after.stored_files,
        "stored files before": before.stored_files,
        "stored bytes": after.stored_bytes,
        "stored bytes before": before.stored_bytes,
        "snapshots": after.snapshots,
        "snapshots before": before.snapshots,
        "manifests": after.manifests,
        "manifests before": before.manifests,
        "partitions compacted": report.partitions_compacted,
        "orphans removed": report.orphans_removed,
    }
    metadata = _integers(numbers)
    seconds = sum(report.seconds.values())
    metadata["seconds"] = dg.MetadataValue.float(round(seconds, 2))
    if report.notes:
        metadata["notes"] = dg.MetadataValue.text("\n".join(report.notes))
    return metadata


def _integers(numbers: Mapping[str, int]) -> dict[str, dg.MetadataValue]:
    return {name: dg.MetadataValue.int(number) for name, number in numbers.items()}


def maintenance_schedule(assets: Sequence[dg.AssetsDefinition], cron: str) -> dg.ScheduleDefinition:
    """Return the schedule that requests one run for each maintenance asset; `cron` is in UTC."""

    def evaluate(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest]:
        tick = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        for asset in assets:
            yield dg.RunRequest(f"{tick}:{asset.key.to_user_string()}", asset_selection=[asset.key])

    return dg.ScheduleDefinition(
        name="maintenance_schedule",
        target=list(assets),
        execution_fn=evaluate,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Compacts every table, expires old snapshots and removes orphan files, to keep reads fast.",
    )


def maintenance_definitions(
    pipeline: Pipeline,
    *,
    clock: Clock,
    policy: Policy,
    cron: str,
    elsewhere: Elsewhere = lambda _: None,
) -> dg.Definitions:
    """Return the maintenance of a pipeline's tables and of the engine's own tables, on a schedule.

    Args:
        pipeline: Declares the tables, and the subjects whose rows may be erased.
        clock: The present moment.
        policy: What maintenance keeps.
        cron: When maintenance runs, in UTC.
        elsewhere: Erases outside of the tables; see `sweep`.
    """
    tables = tables_of(pipeline, log_tables(settings()))
    assets = [maintenance_asset(pipeline, table, policy, clock) for table in tables]
    if pipeline.subjects:
        assets.append(erasures_asset(pipeline, clock, elsewhere))
    return dg.Definitions(assets=assets, schedules=[maintenance_schedule(assets, cron)])
