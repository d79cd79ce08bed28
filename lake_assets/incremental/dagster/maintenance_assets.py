"""Maintenance as assets: one for each table and one for erasures, with figures as metadata, and their schedule.

Each is held back by its table's pool, so no session of a target runs beside its maintenance. A schedule's tick requests
one run for each table: a run takes all its pools at once, and would else keep every target waiting for the slowest.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from lake_assets.errors import ErasureStopped, LakeError, StateMoved
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.erasure.erase import Elsewhere, ErasureReport, sweep
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.maintenance.maintainer import Maintainer, Upkeep, tables_of
from lake_assets.incremental.maintenance.policy import Policy

GROUP = "maintenance"


def maintenance_key(table: str) -> dg.AssetKey:
    """`core.signup_fact` → maintenance/core/signup_fact."""
    return dg.AssetKey([GROUP, *table.split(".")])


def maintenance_asset(pipeline: Pipeline, table: str, policy: Policy, clock: Clock) -> dg.AssetsDefinition:
    """The maintenance of one table. No dependency on the table: backfills of what follows a table leave it out."""

    @dg.asset(
        key=maintenance_key(table),
        group_name=GROUP,
        kinds={"iceberg", "spark"},
        description=f"Compaction, expiry of snapshots and removal of orphans of {table}. Changes no row.",
        required_resource_keys={"iceberg", "spark"},
        pool=table,
    )
    def step(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        maintainer = Maintainer(
            context.resources.iceberg.catalog(),
            pipeline,
            clock=clock,
            spark=lambda: context.resources.spark.spark_session,
            policy=policy,
        )
        try:
            done = maintainer.maintain(table)
        except LakeError as error:
            raise failure(error) from error
        for note in done.notes:
            context.log.info(note)
        return dg.MaterializeResult(metadata=upkeep_metadata(done))

    return step


def erasures_asset(pipeline: Pipeline, clock: Clock, elsewhere: Elsewhere = lambda _: None) -> dg.AssetsDefinition:
    """What comes late of those who were erased goes, with the files that held it; its check names what is unfinished.

    elsewhere: the same outside of the tables. In no pool: it finishes sessions itself, and gives way to others'.
    """
    finished = dg.AssetCheckSpec("erasures_finished", asset=maintenance_key("erasures"))

    @dg.asset(
        key=maintenance_key("erasures"),
        group_name=GROUP,
        kinds={"iceberg"},
        description="Drops what comes late of those who were erased, and the files that held it.",
        required_resource_keys={"iceberg", "spark"},
        check_specs=[finished],
    )
    def step(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        resources = context.resources
        engine = Engine(resources.iceberg.catalog(), pipeline, clock=clock, spark=lambda: resources.spark.spark_session)
        try:
            done = sweep(engine, now=clock(), elsewhere=elsewhere)
        except (ErasureStopped, StateMoved) as error:  # a session was under way, or a zone is late
            raise dg.RetryRequested(max_retries=3, seconds_to_wait=60) from error
        except LakeError as error:
            raise failure(error) from error
        yield dg.MaterializeResult(metadata=erasures_metadata(done), check_results=[_all_finished(done)])

    return step


def erasures_metadata(done: ErasureReport) -> dict[str, dg.MetadataValue]:
    """The figures of a sweep."""
    numbers = {
        "rows dropped": sum(done.rows.values()),
        "snapshots expired": done.snapshots,
        "files removed": done.files,
        "erasures unfinished": done.unfinished,
    }
    return {name: dg.MetadataValue.int(number) for name, number in numbers.items()}


def _all_finished(done: ErasureReport) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name="erasures_finished",
        passed=not done.unfinished,
        severity=dg.AssetCheckSeverity.ERROR,
        metadata={"unfinished": done.unfinished},
        description="Each erasure that was asked for is done. One that is not: `lake erase` the id once more.",
    )


def upkeep_metadata(done: Upkeep) -> dict[str, dg.MetadataValue]:
    """The figures of one table's maintenance; what is left is a number of its own, so that the UI plots it."""
    before, after = done.before, done.after
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
        "partitions compacted": done.partitions_compacted,
        "orphans removed": done.orphans_removed,
    }
    found: dict[str, dg.MetadataValue] = {name: dg.MetadataValue.int(number) for name, number in numbers.items()}
    found["seconds"] = dg.MetadataValue.float(round(sum(done.seconds.values()), 2))
    return found | ({"notes": dg.MetadataValue.text("\n".join(done.notes))} if done.notes else {})


def maintenance_schedule(assets: Sequence[dg.AssetsDefinition], cron: str) -> dg.ScheduleDefinition:
    """Requests the maintenance of all tables, one run each. cron: in UTC."""

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
        description="Compacts, expires and tidies every table: reading and planning stay quick.",
    )


def maintenance_definitions(
    pipeline: Pipeline, *, clock: Clock, policy: Policy, cron: str, elsewhere: Elsewhere = lambda _: None
) -> dg.Definitions:
    """The maintenance of a pipeline's tables and of the engine's own, on a schedule. elsewhere: as `sweep` has it."""
    assets = [maintenance_asset(pipeline, table, policy, clock) for table in tables_of(pipeline)]
    if pipeline.subjects:
        assets.append(erasures_asset(pipeline, clock, elsewhere))
    return dg.Definitions(assets=assets, schedules=[maintenance_schedule(assets, cron)])
