"""The job `maintenance` and its schedule: tables are compacted, erasures are finished, old runs of Dagster are removed.

A run maintains the tables one by one. It takes no pool, so no session waits for it: a session that meets a compaction
is staged again, and a step of maintenance that meets a session is tried again.
"""

from datetime import timedelta
from pathlib import Path

import dagster as dg

from lake_assets.connections.catalog import log_tables
from lake_assets.errors import ErasureStopped, LakeError, PublishConflict
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.dagster.watch.run_retention import is_own, purge, unfinished_sessions
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.erasure.erase import Elsewhere, sweep
from lake_assets.incremental.operations.maintain import Maintainer, MaintenanceReport, Policy, tables_of

NAME = "maintenance"

SWEEP_RETRIES = 3
SWEEP_RETRY_SECONDS = 60


def maintenance_definitions(
    pipeline: Pipeline,
    *,
    clock: Clock,
    policy: Policy,
    cron: str,
    folder: Path,
    days: int,
    elsewhere: Elsewhere = lambda _: None,
) -> dg.Definitions:
    """Return the job and its schedule.

    Args:
        pipeline: Declares the tables, and the subjects whose rows may be erased.
        clock: The present moment.
        policy: What maintenance keeps.
        cron: When maintenance runs, in UTC.
        folder: Dagster's folder in the data directory; runs of another Dagster stay.
        days: Age at which a run of Dagster is removed.
        elsewhere: Erases outside of the tables; see `sweep`.
    """

    @dg.op
    def maintain_tables(context: dg.OpExecutionContext, lake_assets: LakeResource) -> None:
        maintainer = Maintainer(
            lake_assets.catalog(), pipeline, clock=clock, spark=lambda: lake_assets.spark_session, policy=policy
        )
        figures: list[dg.TableRecord] = []
        problems: dict[str, str] = {}
        for table in tables_of(pipeline, log_tables(lake_assets.settings())):
            try:
                report = maintainer.maintain(table)
            except LakeError as error:  # the other tables are maintained all the same
                context.log.error(f"{table}: {error}")
                problems[table] = str(error)
            else:
                figures.append(dg.TableRecord(table_figures(report)))
                for note in report.notes:
                    context.log.info(f"{table}: {note}")
        context.add_output_metadata({"tables": dg.MetadataValue.table(figures)} if figures else {})
        if problems:
            raise dg.Failure(f"Not maintained: {', '.join(problems)}.", dict(problems), allow_retries=False)

    @dg.op
    def finish_erasures(context: dg.OpExecutionContext, lake_assets: LakeResource) -> None:
        engine = Engine(lake_assets.catalog(), pipeline, clock=clock, spark=lambda: lake_assets.spark_session)
        try:
            report = sweep(engine, now=clock(), elsewhere=elsewhere)
        except (ErasureStopped, PublishConflict) as error:  # a session was running, or a zone is behind
            raise dg.RetryRequested(max_retries=SWEEP_RETRIES, seconds_to_wait=SWEEP_RETRY_SECONDS) from error
        except LakeError as error:
            raise failure(error) from error
        figures = {
            "rows dropped": sum(report.rows.values()),
            "snapshots expired": report.snapshots,
            "files removed": report.files,
            "erasures unfinished": report.unfinished,
        }
        context.add_output_metadata(figures)
        if report.unfinished:
            text = f"{report.unfinished} requested erasures are not finished.\n  → Run `lake erase` for each id again."
            raise dg.Failure(text, figures, allow_retries=False)

    @dg.op
    def remove_old_runs(context: dg.OpExecutionContext, lake_assets: LakeResource) -> None:
        if not is_own(context.instance, folder):
            context.log.info(f"Dagster's folder is not {folder}, so its runs are not removed.")
            return
        sessions = unfinished_sessions(lake_assets.catalog(), pipeline)
        purged = purge(context.instance, before=clock() - timedelta(days=days), sessions=sessions)
        context.add_output_metadata(
            {
                "runs removed": purged.runs,
                "events removed": purged.events,
                "files removed": purged.files,
                "bytes removed": purged.bytes,
            }
        )

    @dg.job(
        name=NAME,
        executor_def=dg.in_process_executor,
        description="Compacts every table, expires old snapshots and removes orphan files, to keep reads fast; deletes"
        f" rows that arrived after their subject was erased; removes runs of Dagster that ended {days} days ago.",
    )
    def job() -> None:
        maintain_tables()
        if pipeline.subjects:
            finish_erasures()
        remove_old_runs()

    schedule = dg.ScheduleDefinition(
        name="maintenance_schedule",
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    return dg.Definitions(jobs=[job], schedules=[schedule])


def table_figures(report: MaintenanceReport) -> dict[str, str | int | float | bool | None]:
    """Return the figures of one table's maintenance."""
    before, after = report.before, report.after
    return {
        "table": report.table,
        "files before": before.files,
        "files": after.files,
        "bytes before": before.bytes,
        "bytes": after.bytes,
        "stored files before": before.stored_files,
        "stored files": after.stored_files,
        "stored bytes before": before.stored_bytes,
        "stored bytes": after.stored_bytes,
        "snapshots before": before.snapshots,
        "snapshots": after.snapshots,
        "manifests before": before.manifests,
        "manifests": after.manifests,
        "partitions compacted": report.partitions_compacted,
        "orphans removed": report.orphans_removed,
        "seconds": round(sum(report.seconds.values()), 2),
    }
