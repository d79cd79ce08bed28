"""Old runs of a real Dagster on files are removed, and what the UI shows of assets, partitions and checks stays."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster import AssetKey, AssetRecordsFilter, DagsterInstance, DagsterRunStatus
from dagster._core.test_utils import create_run_for_test
from pyiceberg.catalog import Catalog

from lake_assets.incremental.dagster.lake_resource import LAKE
from lake_assets.incremental.dagster.maintenance import maintenance_definitions, purge, purge_folder
from lake_assets.incremental.dagster.session_runs import SESSION_TAG
from lake_assets.incremental.declaration import Pipeline, RawTable
from lake_assets.incremental.operations.maintain import Policy

DAYS = dg.StaticPartitionsDefinition(["mon", "tue", "wed"])
FACT = AssetKey("fact")
CHECK = dg.AssetCheckKey(FACT, "right")


@dg.asset(partitions_def=DAYS, check_specs=[dg.AssetCheckSpec("right", asset="fact")])
def fact(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    print("written by a step")
    yield dg.MaterializeResult(metadata={"run": context.run.run_id})
    yield dg.AssetCheckResult(passed=context.partition_key != "tue")


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[DagsterInstance]:
    """An instance on files, as `lake up` has it."""
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


def build(instance: DagsterInstance, partition: str, **tags: str) -> str:
    result = dg.materialize([fact], instance=instance, partition_key=partition, tags=tags)
    assert result.success
    return result.run_id


def now() -> datetime:
    return datetime.now(UTC)


def files_of(instance: DagsterInstance, run_id: str) -> list[str]:
    root = Path(instance.root_directory)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if run_id in str(path) and path.is_file())


def shown(instance: DagsterInstance) -> object:
    """What the UI shows of the asset: its newest materialization, that of each partition, and its check."""
    partitions = {}
    for partition in DAYS.get_partition_keys():
        wanted = AssetRecordsFilter(FACT, asset_partitions=[partition])
        newest = instance.fetch_materializations(wanted, limit=1).records
        partitions[partition] = [(record.storage_id, record.run_id) for record in newest]
    event = instance.get_latest_materialization_event(FACT)
    (check,) = instance.event_log_storage.get_asset_check_summary_records([CHECK]).values()
    execution = check.last_check_execution_record
    assert event is not None
    assert execution is not None
    return (
        event.run_id,
        instance.get_materialized_partitions(FACT),
        partitions,
        (execution.status, execution.run_id, execution.event is not None),
        instance.event_log_storage.get_latest_tags_by_partition(
            FACT, dg.DagsterEventType.ASSET_MATERIALIZATION, ["dagster/data_version"]
        ),
    )


def test_old_runs_go_and_what_is_shown_stays(stored: DagsterInstance) -> None:
    long_ago = now()
    replaced = build(stored, "mon")
    only_tuesday = build(stored, "tue")
    of_open_session = build(stored, "mon", **{SESSION_TAG: "fact-open"})
    of_done_session = build(stored, "mon", **{SESSION_TAG: "fact-done"})
    at_work = create_run_for_test(stored, job_name="at_work", status=DagsterRunStatus.STARTED).run_id
    line = now()
    newest = build(stored, "wed")
    before = shown(stored)
    removed = {replaced, only_tuesday, of_done_session}
    assert all(len(files_of(stored, run_id)) >= 2 for run_id in removed)

    assert purge(stored, before=long_ago, sessions={"fact-open"}).runs == 0
    assert len(stored.get_runs()) == 6
    purged = purge(stored, before=line, sessions={"fact-open"})

    assert {run.run_id for run in stored.get_runs()} == {of_open_session, at_work, newest}
    assert shown(stored) == before
    assert (purged.runs, purged.files >= 6, purged.bytes > 0) == (3, True, True)
    assert [files_of(stored, run_id) for run_id in removed] == [[], [], []]
    assert stored.all_logs(newest) != []
    assert stored.run_storage.get_run_tags(["dagster/partition"]) == [("dagster/partition", {"mon", "wed"})]
    assert purge(stored, before=line, sessions={"fact-open"}).runs == 0


def test_the_newest_run_of_an_asset_stays_however_old_it_is(stored: DagsterInstance) -> None:
    older = build(stored, "mon")
    newest = build(stored, "tue")
    before = shown(stored)
    purge(stored, before=now() + timedelta(days=400))
    assert [run.run_id for run in stored.get_runs()] == [newest]
    assert stored.get_run_by_id(older) is None
    assert shown(stored) == before


def test_replaced_events_go_whoever_stored_them(stored: DagsterInstance) -> None:
    """Sensors report materializations and evaluations without a run: their number is bounded, too."""
    for _ in range(5):
        for partition in ("mon", "tue"):
            stored.report_runless_asset_event(dg.AssetMaterialization(FACT, partition=partition))
        stored.report_runless_asset_event(dg.AssetCheckEvaluation(FACT, "right", passed=True))
    before = shown(stored)
    purge(stored, before=now() + timedelta(days=1))
    assert shown(stored) == before
    found = stored.fetch_materializations(FACT, limit=100).records
    assert len(found) == 2
    history = stored.event_log_storage.get_asset_check_execution_history(CHECK, limit=100)
    assert len(history) == 1


def test_files_without_a_run_go_once_they_are_old(stored: DagsterInstance) -> None:
    """`delete_run` of Dagster leaves them, and a purge that dies before its end."""
    forgotten = build(stored, "mon")
    build(stored, "tue")
    stored.delete_run(forgotten)
    assert files_of(stored, forgotten) != []
    line = now() - timedelta(days=1)
    purge(stored, before=line)
    assert files_of(stored, forgotten) != []
    root = Path(stored.root_directory)
    for path in root.rglob("*"):
        if forgotten in path.name:
            os.utime(path, (0, 0))
    purge(stored, before=line)
    assert files_of(stored, forgotten) == []


def test_upstream_deletes_what_partitions_are_shown_by(stored: DagsterInstance) -> None:
    """If this fails after an upgrade of Dagster, `purge` may call `delete_run`."""
    only = build(stored, "mon")
    build(stored, "tue")
    stored.delete_run(only)
    assert stored.get_materialized_partitions(FACT) == {"tue"}
    assert files_of(stored, only) != []


PIPELINE = Pipeline(
    raw=(RawTable("raw.clicks", {"click_id": "string", "at": "timestamptz"}, time_column="at"),),
    targets=(),
    start="2026-01-01-00:00",
)


def test_the_job_and_the_command_purge_only_the_instance_of_the_data_directory(
    stored: DagsterInstance, catalog: Catalog, tmp_path: Path
) -> None:
    old = build(stored, "mon")
    build(stored, "tue")
    in_a_year = now() + timedelta(days=365)
    assert runs_removed(tmp_path / "elsewhere", in_a_year, stored, catalog) is None
    assert purge_folder(tmp_path / "elsewhere", catalog, PIPELINE, before=in_a_year).runs == 0
    assert stored.has_run(old)
    assert runs_removed(tmp_path, in_a_year, stored, catalog) >= 1
    assert not stored.has_run(old)
    later = build(stored, "mon")
    build(stored, "tue")
    assert purge_folder(tmp_path, catalog, PIPELINE, before=in_a_year).runs == 3  # with the runs of the job
    assert not stored.has_run(later)


def runs_removed(folder: Path, moment: datetime, instance: DagsterInstance, catalog: Catalog) -> Any:
    """By the job of a data directory; None if it has looked at nothing."""
    found = maintenance_definitions(
        PIPELINE, clock=lambda: moment, policy=Policy(), cron="17 3 * * *", folder=folder, days=30
    )
    lake = dg.ResourceDefinition.hardcoded_resource(SimpleNamespace(catalog=lambda: catalog))
    job = dg.Definitions.merge(found, dg.Definitions(resources={LAKE: lake})).resolve_job_def("maintenance")
    result = job.get_subset(op_selection=["remove_old_runs"]).execute_in_process(instance=instance)
    (output,) = [event.step_output_data for event in result.all_events if event.is_successful_output]
    removed = output.metadata.get("runs removed")
    return removed.value if removed else None
