"""Maintenance through Dagster: a run of the job, with figures of each table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg

from lake_assets.incremental.dagster.lake_resource import LAKE
from lake_assets.incremental.dagster.maintenance import maintenance_definitions
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.engine.erasures import Erasure
from lake_assets.incremental.operations.maintain import Policy
from lake_assets.membership import PIPELINE
from lake_assets.settings import settings
from lake_assets_tests.incremental.scenario import START, Lake, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

FIGURES = ("rows dropped", "snapshots expired", "files removed", "erasures unfinished")


def test_a_run_maintains_all_tables_and_finishes_erasures(
    catalog: Catalog, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(catalog, spark)
    for hour in range(3):
        lake.append("raw.signups", [signup(1, hour)])
    lake.complete("raw.signups", START + 2)
    lake.session("signup_fact")
    heard: list[Sequence[Erasure]] = []
    found = maintenance_definitions(
        PIPELINE,
        clock=utc_now,
        policy=Policy(retain=timedelta(0), newest=1),
        cron="17 3 * * *",
        folder=tmp_path,
        days=30,
        elsewhere=heard.append,
    )
    succeeded, figures = run(lake, found)
    assert succeeded
    (signups,) = [row for row in figures["maintain_tables"]["tables"] if row["table"] == "raw.signups"]
    assert (signups["snapshots before"], signups["snapshots"]) == (3, 1)
    assert (signups["files before"], signups["files"]) == (3, 3)
    assert figures["finish_erasures"] == dict.fromkeys(FIGURES, 0)

    erasures = lake.engine.erasures
    erasures.record("account", "a", "requested", erased_at=utc_now(), now=utc_now())
    succeeded, figures = run(lake, found)
    assert (succeeded, figures["finish_erasures"]["erasures unfinished"]) == (False, 1)
    assert lake.rows("raw.signups")["raw.signups"] == []
    assert [[erasure.state for erasure in among] for among in heard] == [["requested"]]

    catalog.drop_table("raw.cancels")
    succeeded, figures = run(lake, found)
    assert not succeeded
    assert figures["maintain_tables"].keys() == {"raw.cancels"}  # the others were maintained all the same


def run(lake: Lake, found: dg.Definitions) -> tuple[bool, dict[str, Any]]:
    """A run of the job: whether it has succeeded, and op → the figures of its output, or of its failure."""
    handed = SimpleNamespace(catalog=lambda: lake.catalog, spark_session=lake.spark, settings=settings)
    resources = dg.Definitions(resources={LAKE: dg.ResourceDefinition.hardcoded_resource(handed)})
    job = dg.Definitions.merge(found, resources).resolve_job_def("maintenance")
    result = job.execute_in_process(raise_on_error=False)
    figures: dict[str, Any] = {}
    for event in result.all_events:
        if event.is_successful_output:
            figures[str(event.step_key)] = event.step_output_data.metadata
        elif event.is_step_failure and event.step_failure_data.user_failure_data:
            figures[str(event.step_key)] = event.step_failure_data.user_failure_data.metadata
    return result.success, {op: plain(metadata) for op, metadata in figures.items()}


def plain(metadata: Any) -> dict[str, Any]:
    found = {}
    for name, value in metadata.items():
        found[name] = [row.data for row in value.records] if hasattr(value, "records") else value.value
    return found
