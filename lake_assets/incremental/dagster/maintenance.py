"""The job `maintenance` and its schedule: tables are compacted, erasures are finished, old runs of Dagster are
removed.

A run maintains the tables one by one. It takes no pool, so no session waits for it: a session that meets a compaction
is staged again, and a step of maintenance that meets a session is tried again.

What the UI shows of assets, partitions and checks stays. Dagster's own `delete_run` also deletes the materializations
of the run, so that the partitions it built are shown as missing. It leaves the file of the run's log and the output of
its steps behind. So the parts are removed here one by one, the run itself last: a purge that dies is continued by the
next one. This is the only module that knows the tables of Dagster's storage.
"""

import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import dagster as dg
import sqlalchemy as sa
from dagster import DagsterEventType, RunsFilter
from pyiceberg.catalog import Catalog

from lake_assets.connections.catalog import log_tables
from lake_assets.errors import ErasureStopped, LakeError, PublishConflict, TargetError
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.dagster.session_runs import FINISHED, SESSION_TAG
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.session_log import SessionLog
from lake_assets.incremental.engine.state import read_state
from lake_assets.incremental.erasure.erase import Elsewhere, sweep
from lake_assets.incremental.operations.maintain import Maintainer, MaintenanceReport, Policy, tables_of

EVENTS = sa.table(
    "event_logs", *map(sa.column, ("id", "run_id", "dagster_event_type", "timestamp", "asset_key", "partition"))
)
TAGS = sa.table("asset_event_tags", *map(sa.column, ("event_id", "event_timestamp")))
CHECKS = sa.table(
    "asset_check_executions",
    *map(sa.column, ("id", "asset_key", "check_name", "partition", "execution_status", "create_timestamp")),
    sa.column("evaluation_event_storage_id"),
)
"""Tables of Dagster's storage, with the columns that are used here."""

BATCH = 500
RUNLESS = ""
"""The id under which Dagster stores events that belong to no run."""

SHOWN_EVENTS = tuple(
    event.value
    for event in (
        DagsterEventType.ASSET_MATERIALIZATION,
        DagsterEventType.ASSET_OBSERVATION,
        DagsterEventType.ASSET_CHECK_EVALUATION,
    )
)
"""Events that the UI takes the present state of assets and checks from."""


@dataclass(frozen=True)
class Purged:
    """What a purge removed.

    Attributes:
        runs: Number of runs.
        events: Number of events, beside those in the files of the runs.
        files: Number of files: logs of runs, and what their steps printed.
        bytes: Size of the files.
    """

    runs: int = 0
    events: int = 0
    files: int = 0
    bytes: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(
            runs=self.runs + other.runs,
            events=self.events + other.events,
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
        )


def purge(instance: dg.DagsterInstance, *, before: datetime, sessions: Collection[str] = ()) -> Purged:
    """Remove runs that ended before a moment, with their logs, and events that newer ones have replaced.

    A run stays if it is the newest of an asset, or has built what is newest of an asset; or if its session is not
    finished, because the sensor counts its attempts.

    Args:
        instance: Dagster's instance. All of its runs are purged, also those of other code locations.
        before: Runs that ended later, or are in progress, stay.
        sessions: Ids of sessions that are open or blocked.
    """
    events = instance.event_log_storage
    runs = instance.run_storage
    if not hasattr(events, "index_connection"):  # a storage without tables
        return Purged()
    purged = Purged()
    kept = _shown_runs(instance)
    for batch in _old_runs(instance, before):
        removable = []
        for run in batch:
            if run.run_id not in kept and run.tags.get(SESSION_TAG) not in sessions:
                removable.append(run.run_id)
        purged += _remove_runs(instance, events, runs, removable)
    purged += _remove_leftovers(instance, events, before)
    return purged + _remove_replaced_events(events, before)


def _shown_runs(instance: dg.DagsterInstance) -> set[str]:
    """Return the newest run of each asset, and the run that has built what is newest of it."""
    found = set()
    for record in instance.get_asset_records():
        entry = record.asset_entry
        found.add(entry.last_run_id or RUNLESS)
        if entry.last_materialization_record is not None:
            found.add(entry.last_materialization_record.run_id)
    return found


def _old_runs(instance: dg.DagsterInstance, before: datetime) -> Iterator[list[dg.DagsterRun]]:
    """Yield the runs that ended before a moment, oldest first, in batches. A batch may be removed meanwhile."""
    ended = RunsFilter(statuses=FINISHED, updated_before=before)
    ids = instance.get_run_ids(ended)
    for start in range(0, len(ids), BATCH):
        chosen = RunsFilter(run_ids=list(ids[start : start + BATCH]))
        yield list(instance.get_runs(chosen))


def _remove_runs(instance: dg.DagsterInstance, events: Any, runs: Any, run_ids: Sequence[str]) -> Purged:
    if not run_ids:
        return Purged()
    files = Purged()
    for run_id in run_ids:
        files += _remove_files(_files_of_run(instance, events, run_id))
        events.free_concurrency_slots_for_run(run_id)
    table = EVENTS.c
    removed = _delete(
        events,
        sa.delete(EVENTS).where(
            table.run_id.in_(run_ids),
            sa.or_(table.dagster_event_type.is_(None), table.dagster_event_type.not_in(SHOWN_EVENTS)),
        ),
    )
    for run_id in run_ids:
        runs.delete_run(run_id)
    return files + Purged(runs=len(run_ids), events=removed)


def _files_of_run(instance: dg.DagsterInstance, events: Any, run_id: str) -> Iterator[Path]:
    """Yield the files of a run: its log, and the folder of what its steps printed and stored."""
    if _has_shards(events):
        yield from _log_files(Path(events.path_for_shard(run_id)))
    yield Path(instance.storage_directory()) / run_id


def _has_shards(events: Any) -> bool:
    """Return whether the storage keeps the events of each run in a file of its own, as SQLite's does."""
    return hasattr(events, "path_for_shard")


def _log_files(file: Path) -> list[Path]:
    return [file, *(file.with_name(f"{file.name}{ending}") for ending in ("-wal", "-shm"))]


def _remove_files(paths: Iterable[Path]) -> Purged:
    """Remove files and folders, as far as they are there."""
    count = size = 0
    for path in paths:
        for file in [path, *path.rglob("*")]:
            if file.is_file():
                count += 1
                size += file.stat().st_size
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return Purged(files=count, bytes=size)


def _remove_leftovers(instance: dg.DagsterInstance, events: Any, before: datetime) -> Purged:
    """Remove old files of runs that are gone, as Dagster's own deletion and a purge that died leave them."""
    names = [folder.name for folder in Path(instance.storage_directory()).glob("*")]
    if _has_shards(events):
        names += events.get_all_run_ids()
    purged = Purged()
    for run_id in sorted(set(filter(_is_run_id, names)) - set(instance.get_run_ids())):
        paths = [path for path in _files_of_run(instance, events, run_id) if path.exists()]
        if max((path.stat().st_mtime for path in paths), default=0) < before.timestamp():
            purged += _remove_files(paths)
    return purged


def _remove_replaced_events(events: Any, before: datetime) -> Purged:
    """Remove old events of which there is a newer one for the same asset and partition, or for the same check."""
    removed = 0
    for statement in (*_replaced_in_index(before), *_replaced_checks(before)):
        removed += _delete(events, statement)
    if _has_shards(events):  # the copies that it keeps of events without a run are read by nobody
        old = sa.delete(EVENTS).where(EVENTS.c.timestamp < _naive(before))
        with events.run_connection(RUNLESS) as connection:
            removed += connection.execute(old).rowcount
    return Purged(events=removed)


def _replaced_in_index(before: datetime) -> Iterator[sa.Delete]:
    table = EVENTS.c
    states = SHOWN_EVENTS[:2]
    newest = (
        sa.select(sa.func.max(table.id))
        .where(table.dagster_event_type.in_(states))
        .group_by(table.asset_key, table.partition, table.dagster_event_type)
    )
    yield sa.delete(EVENTS).where(
        table.dagster_event_type.in_(states),
        table.timestamp < _naive(before),
        table.id.not_in(newest),
    )
    tags = TAGS.c
    yield sa.delete(TAGS).where(
        tags.event_timestamp < _naive(before),
        tags.event_id.not_in(sa.select(table.id)),
    )


def _replaced_checks(before: datetime) -> Iterator[sa.Delete]:
    checks = CHECKS.c
    same = (checks.asset_key, checks.check_name, checks.partition)
    newest = sa.select(sa.func.max(checks.id)).group_by(*same)
    newest_ended = newest.where(checks.execution_status != "PLANNED")
    yield sa.delete(CHECKS).where(
        checks.create_timestamp < _naive(before),
        checks.id.not_in(newest),
        checks.id.not_in(newest_ended),
    )
    table = EVENTS.c
    shown = sa.select(checks.evaluation_event_storage_id).where(checks.evaluation_event_storage_id.is_not(None))
    yield sa.delete(EVENTS).where(
        table.dagster_event_type == SHOWN_EVENTS[2],
        table.timestamp < _naive(before),
        table.id.not_in(shown),
    )


def _delete(events: Any, statement: sa.Delete) -> int:
    with events.index_connection() as connection:
        return int(connection.execute(statement).rowcount)


def _naive(moment: datetime) -> datetime:
    """Return a moment as Dagster stores it: UTC without a zone."""
    return moment.astimezone(UTC).replace(tzinfo=None)


def _is_run_id(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def purge_folder(folder: Path, catalog: Catalog, pipeline: Pipeline, *, before: datetime) -> Purged:
    """Remove the old runs of the instance in Dagster's folder of a data directory; nothing if there is none."""
    if not (folder / "dagster.yaml").is_file() or not (folder / "history").is_dir():
        return Purged()
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        return purge(instance, before=before, sessions=unfinished_sessions(catalog, pipeline))


def unfinished_sessions(catalog: Catalog, pipeline: Pipeline) -> set[str]:
    """Return the ids of sessions that another program writes, or that an audit has stopped."""
    found: set[str] = set()
    log = SessionLog(catalog)
    for target in pipeline.targets:
        try:
            state = read_state(catalog, log, target.table)
        except TargetError:
            continue
        if state.blocked:
            found.add(state.blocked["session_id"])
        if state.opened:
            found.add(state.opened["plan"]["session_id"])
    return found


def is_own(instance: dg.DagsterInstance, folder: Path) -> bool:
    """Return whether an instance has its files in this folder."""
    return not instance.is_ephemeral and Path(instance.root_directory).resolve() == folder.resolve()


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
        engine = Engine(lake_assets.catalog(), pipeline, clock=clock, spark=lambda: lake_assets.spark_session)
        maintainer = Maintainer(engine, policy)
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
