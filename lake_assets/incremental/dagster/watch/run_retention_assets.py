"""Retention of Dagster's runs as an asset and a schedule, and for the command `lake maintain`.

Only the instance in the data directory is purged: a Dagster that others run, too, has runs that are none of ours.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
from pyiceberg.catalog import Catalog

from lake_assets.errors import TargetError
from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.dagster.watch.run_retention import Purged, purge
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine.session_log import SessionLog
from lake_assets.incremental.engine.state import read_state

KEY = dg.AssetKey(["maintenance", "dagster"])


def run_retention_definitions(
    pipeline: Pipeline, *, folder: Path, days: int, clock: Clock, cron: str
) -> dg.Definitions:
    """Return the asset that removes old runs of Dagster, and its schedule.

    Args:
        pipeline: Its unfinished sessions keep their runs.
        folder: Dagster's folder in the data directory.
        days: Age at which a run is removed.
        clock: The present moment.
        cron: When it runs, in UTC.
    """

    @dg.asset(
        key=KEY,
        group_name="maintenance",
        description=f"Removes runs of Dagster that ended more than {days} days ago, with their logs. "
        "What is shown of assets, partitions and checks stays.",
    )
    def step(context: dg.AssetExecutionContext, lake_assets: LakeResource) -> dg.MaterializeResult[None]:
        instance = context.instance
        if not is_own(instance, folder):
            context.log.info(f"Dagster's folder is not {folder}, so its runs are not removed.")
            return dg.MaterializeResult(metadata=purge_metadata(Purged()))
        sessions = unfinished_sessions(lake_assets.catalog(), pipeline)
        purged = purge(instance, before=clock() - timedelta(days=days), sessions=sessions)
        return dg.MaterializeResult(metadata=purge_metadata(purged))

    schedule = dg.ScheduleDefinition(
        name="run_retention_schedule",
        target=[step],
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Removes old runs of Dagster with their logs.",
    )
    return dg.Definitions(assets=[step], schedules=[schedule])


def purge_folder(folder: Path, catalog: Catalog, pipeline: Pipeline, *, before: datetime) -> Purged:
    """Remove the old runs of the instance in Dagster's folder of a data directory; nothing if there is none."""
    if not (folder / "dagster.yaml").is_file() or not (folder / "history").is_dir():
        return Purged()
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        return purge(instance, before=before, sessions=unfinished_sessions(catalog, pipeline))


def unfinished_sessions(catalog: Catalog, pipeline: Pipeline) -> set[str]:
    """Return the ids of sessions that another program writes, or that an audit has stopped."""
    return set(_unfinished(catalog, pipeline))


def is_own(instance: dg.DagsterInstance, folder: Path) -> bool:
    """Return whether an instance has its files in this folder."""
    return not instance.is_ephemeral and Path(instance.root_directory).resolve() == folder.resolve()


def purge_metadata(purged: Purged) -> dict[str, dg.MetadataValue]:
    """Return the figures of a purge."""
    return {
        "runs removed": dg.MetadataValue.int(purged.runs),
        "events removed": dg.MetadataValue.int(purged.events),
        "files removed": dg.MetadataValue.int(purged.files),
        "bytes removed": dg.MetadataValue.int(purged.bytes),
    }


def _unfinished(catalog: Catalog, pipeline: Pipeline) -> Iterator[str]:
    log = SessionLog(catalog)
    for target in pipeline.targets:
        try:
            state = read_state(catalog, log, target.table)
        except TargetError:
            continue
        if state.blocked:
            yield state.blocked["session_id"]
        if state.opened:
            yield state.opened["plan"]["session_id"]
