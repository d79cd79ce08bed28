"""Sessions through Dagster: which partitions a run marks, which checks turn red, what a backfill does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partialmethod
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from lake_assets.base.hours import hour_key
from lake_assets.demo.membership_simulator import bad_batch, land, repair, worked_example
from lake_assets.incremental.dagster.assets import incremental_definitions
from lake_assets.incremental.dagster.watch import check_definitions
from lake_assets.incremental.declaration import Sequential, SessionContext
from lake_assets.incremental.engine.engine import Engine, utc_now
from lake_assets.incremental.engine.model import Committed, PlanningInput, SessionReport
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.clicks import CLICKS, START, click_fact, click_state, land_clicks, publish_clicks
from lake_assets_tests.incremental.committing import commit
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon, in_process_daemon
from lake_assets_tests.incremental.scenario import with_target

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

SIGNUPS = "core.signup_fact"
STATE_CHECKS = {"quarantine", "quarantine_limit", "ties", "pending_hours"}


@pytest.fixture
def daemon(catalog: Catalog, spark: SparkSession) -> Iterator[InProcessDaemon]:
    Engine(catalog, PIPELINE, clock=utc_now).create_tables()
    with in_process_daemon(PIPELINE, catalog, utc_now, end=hour_key(START + 20), spark=spark) as daemon:
        yield daemon


def chosen(first: int, last: int) -> dict[str, str]:
    """The tags of a backfill in one run, as the UI launches it."""
    return {
        "dagster/asset_partition_range_start": hour_key(START + first),
        "dagster/asset_partition_range_end": hour_key(START + last),
    }


def red_checks(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """Failed checks of a run, with their offending keys."""
    failed = (e for e in result.get_asset_check_evaluations() if not e.passed)
    return {e.check_name: str(e.metadata["offending keys"].value) for e in failed if "offending keys" in e.metadata}


@pytest.mark.slow
def test_g1_g3_g4_a_failed_audit_is_red_and_marks_nothing_until_the_source_is_repaired(
    daemon: InProcessDaemon, catalog: Catalog, spark: SparkSession
) -> None:
    for landing in worked_example():
        land(catalog, landing)
    daemon.catch_up("signup_fact")
    before = daemon.hours_of(SIGNUPS)
    bad = bad_batch()
    land(catalog, bad.landing)

    request = (daemon.tick("signup_fact_sensor").run_requests or [])[0]
    result = daemon.run(request)
    assert not result.success
    assert red_checks(result) == {"not_null_account_id": "\n".join(f"- `{key}`" for key in sorted(bad.right))}
    assert daemon.hours_of(SIGNUPS) == before

    blocked = daemon.tick("signup_fact_sensor")
    assert not blocked.run_requests
    assert "was stopped by an audit" in (blocked.skip_message or "")

    repair(spark, bad)
    assert daemon.catch_up("signup_fact") == {"signup_fact": [[8]]}


@pytest.mark.journey
def test_a_backfill_rebuilds_what_was_chosen_and_leaves_the_watermark(
    daemon: InProcessDaemon, catalog: Catalog
) -> None:
    first, late, _ = worked_example()
    land(catalog, first)
    daemon.catch_up("signup_fact", "plan_fact")
    engine = Engine(catalog, PIPELINE, clock=utc_now)
    watermarks = engine.state(PIPELINE.target("signup_fact")).watermarks
    rows = catalog.load_table(SIGNUPS).scan().to_arrow().sort_by("signup_id")
    land(catalog, late)  # it must wait for its own session

    result = daemon.execute(SIGNUPS, "core.plan_fact", tags=chosen(1, 3))

    assert result.success
    assert sorted(set(daemon.hours_marked(result))) == [1, 2, 3]
    assert catalog.load_table(SIGNUPS).scan().to_arrow().sort_by("signup_id") == rows
    assert engine.state(PIPELINE.target("signup_fact")).watermarks == watermarks
    assert daemon.catch_up("signup_fact") == {"signup_fact": [[2, 3, 6]]}


@pytest.mark.journey
def test_a_backfill_marks_no_hour_beyond_complete_through(daemon: InProcessDaemon, catalog: Catalog) -> None:
    land(catalog, worked_example()[0])
    daemon.catch_up("signup_fact")
    assert daemon.hours_marked(daemon.execute(SIGNUPS, tags=chosen(4, 9))) == [4, 5]


@pytest.mark.journey
def test_a_backfill_of_more_hours_than_a_session_builds_marks_each_that_was_built(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanningInput, "__init__", partialmethod(PlanningInput.__init__, max_hours=5))
    hours = range(12)
    engine = Engine(catalog, CLICKS, clock=utc_now, spark=lambda: spark)
    engine.create_tables()
    land_clicks(catalog, hours, landing=12)
    with in_process_daemon(CLICKS, catalog, utc_now, end=hour_key(START + 20), spark=spark) as daemon:
        result = daemon.execute(click_fact.table, tags=chosen(0, 11))
        assert result.success
        assert sorted(daemon.hours_marked(result)) == [*hours]
    assert catalog.load_table(click_fact.table).scan().count() == len(hours)
    assert [len(session.built) for session in engine.history(click_fact)] == [5, 5, 2]
    assert not engine.state(click_fact).committed.pending

    catalog.load_table(click_fact.table).delete("click_id != 'c12-7'")
    repaired = engine.repair(click_fact)
    assert isinstance(repaired, SessionReport)
    assert len(repaired.hours_built) == len(hours) - 1
    assert catalog.load_table(click_fact.table).scan().count() == len(hours)


def test_a_run_without_partitions_fails_in_plain_words(daemon: InProcessDaemon) -> None:
    result = daemon.execute(SIGNUPS, tags={})
    failure = result.failure_data_for_node("core__signup_fact")
    assert failure is not None
    assert failure.user_failure_data is not None
    assert "names no partition" in (failure.user_failure_data.description or "")


def test_skipped_hours_are_a_warning_also_of_a_session_that_builds_none(catalog: Catalog) -> None:
    near = replace(click_state, mode=Sequential(catchup_threshold=2))
    pipeline = with_target(CLICKS, near)
    engine = Engine(catalog, pipeline, clock=utc_now)
    engine.create_tables()
    publish_clicks(catalog, [9], complete_through=9)
    commit(engine, near, Committed(last_built=START + 9, complete_through=START + 9))
    publish_clicks(catalog, [3], complete_through=9)
    with in_process_daemon(pipeline, catalog, utc_now, end=hour_key(START + 20)) as daemon:
        request = (daemon.tick("click_state_sensor").run_requests or [])[0]
        result = daemon.run(request)
    (found,) = [each for each in result.get_asset_check_evaluations() if each.check_name == "skipped_hours"]
    assert (found.check_name, found.passed, found.severity) == ("skipped_hours", False, dg.AssetCheckSeverity.WARN)
    assert found.metadata["skipped hours"].value == hour_key(START + 3)


@pytest.mark.slow
def test_hours_that_were_built_outside_dagster_are_marked_once(
    daemon: InProcessDaemon, catalog: Catalog, spark: SparkSession
) -> None:
    land(catalog, worked_example()[0])
    Engine(catalog, PIPELINE, clock=utc_now, spark=lambda: spark).run(PIPELINE.target("signup_fact"))

    told = daemon.tick("signup_fact_sensor")

    assert not told.run_requests
    marked = [event for event in told.asset_events if isinstance(event, dg.AssetMaterialization)]
    assert [event.partition for event in marked] == [hour_key(START + hour) for hour in range(6)]
    checks = {event.check_name for event in told.asset_events if isinstance(event, dg.AssetCheckEvaluation)}
    assert checks == {*(audit.name for audit in PIPELINE.target("signup_fact").audits), *STATE_CHECKS}
    assert daemon.hours_of(SIGNUPS) == list(range(6))
    assert not daemon.tick("signup_fact_sensor").asset_events


def canceled(session: SessionContext, clicks: DataFrame) -> DataFrame:
    """A person cancels the run while it builds this."""
    signal.raise_signal(signal.SIGINT)
    return clicks.selectExpr("click_id", "event_ts AS clicked_at")


def test_checks_of_a_run_that_is_canceled_stay_as_they_were(catalog: Catalog, spark: SparkSession) -> None:
    pipeline = replace(CLICKS, targets=(replace(click_fact, transform=canceled),))
    Engine(catalog, pipeline, clock=utc_now).create_tables()
    land_clicks(catalog, range(2), landing=2)
    check = dg.AssetCheckKey(dg.AssetKey(["core", "click_fact"]), "quarantine")
    with in_process_daemon(pipeline, catalog, utc_now, end=hour_key(START + 20), spark=spark) as daemon:
        evaluated = dg.AssetCheckEvaluation(check.asset_key, check.name, passed=True, metadata={})
        daemon.instance.report_runless_asset_event(evaluated)
        with suppress(dg.DagsterExecutionInterruptedError):
            daemon.execute(click_fact.table, tags=chosen(0, 1))
        assert [run.is_failure_or_canceled for run in daemon.instance.get_runs()] == [True]
        assert daemon.hours_of(click_fact.table) == []
        found = daemon.instance.event_log_storage.get_latest_asset_check_execution_by_key([check])[check]
        assert found.status.value == "SUCCEEDED"


def test_checks_of_other_steps_stay_as_they_were_if_a_run_builds_nothing(catalog: Catalog) -> None:
    Engine(catalog, CLICKS, clock=utc_now).create_tables()
    intact = dg.AssetCheckKey(dg.AssetKey(["core", "click_state"]), "intact")
    with in_process_daemon(CLICKS, catalog, utc_now, end=hour_key(START + 20)) as daemon:
        tables = incremental_definitions(CLICKS, clock=utc_now, end=hour_key(START + 20))
        others = dg.Definitions(asset_checks=check_definitions(CLICKS, utc_now), resources=daemon.resources)
        whole = replace(daemon, repository=dg.Definitions.merge(tables, others).get_repository_def())
        wrong = dg.AssetCheckEvaluation(intact.asset_key, intact.name, passed=False, metadata={})
        whole.instance.report_runless_asset_event(wrong)

        result = whole.execute(click_state.table, tags=chosen(4, 5))  # its source is not complete through any hour

        assert (result.success, whole.hours_marked(result)) == (True, [])
        assert [event.step_key for event in result.all_events if event.is_step_skipped] == ["core__click_state_intact"]
        found = whole.instance.event_log_storage.get_latest_asset_check_execution_by_key([intact])[intact]
        assert (found.run_id, found.status.value) == (result.run_id, "FAILED")
