"""What the sensors request, and what they say when they request nothing. Metadata only: no Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from dagster._core.loader import LoadingContextForTest
from dagster._core.storage.partition_status_cache import get_partition_subsets

from lake_assets.base.hours import hour_key
from lake_assets.incremental.dagster.sensors import NOT_WAITING
from lake_assets.incremental.dagster.session_runs import (
    CODE_VERSION_TAG,
    SESSION_TAG,
    heads_of,
)
from lake_assets.incremental.engine.engine import Engine, utc_now
from lake_assets.incremental.engine.model import SessionPlan
from lake_assets_tests.incremental.clicks import CLICKS, START, at, click_fact, click_state, land_clicks, publish_clicks
from lake_assets_tests.incremental.committing import commit
from lake_assets_tests.incremental.crash_matrix import told
from lake_assets_tests.incremental.dagster.conftest import Hands
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon
from lake_assets_tests.incremental.scenario import with_target
from lake_assets_tests.incremental.tick_matrix import TICK_SCENARIOS, clicks_daemon

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.incremental.declaration import Target

KEYS = [hour_key(START + hour) for hour in range(24)]


@pytest.fixture
def daemon(catalog: Catalog, clock: Hands) -> Iterator[InProcessDaemon]:
    with clicks_daemon(catalog, clock) as daemon:
        yield daemon


def end_a_run(daemon: InProcessDaemon, tags: dict[str, str], status: dg.DagsterRunStatus) -> None:
    key = dg.AssetKey(["core", "click_fact"])
    daemon.instance.create_run_for_job(
        daemon.repository.get_job("__ASSET_JOB").get_subset(asset_selection={key}),
        asset_selection=frozenset({key}),
        tags=tags,
        status=status,
    )


def test_g10_a_session_is_requested_as_one_run_with_its_first_hours_and_heads(
    daemon: InProcessDaemon, catalog: Catalog
) -> None:
    land_clicks(catalog, [2, 3, 6], landing=6)
    plan = Engine(catalog, CLICKS, clock=lambda: at(8)).decide(click_fact)
    assert isinstance(plan, SessionPlan)

    request = (daemon.tick("click_fact_sensor").run_requests or [])[0]

    assert request.run_key == f"{plan.session_id}:1"
    assert request.asset_selection == [dg.AssetKey(["core", "click_fact"])]
    assert {name: value for name, value in request.tags.items() if name.startswith(("lake", "dagster/asset"))} == {
        "dagster/asset_partition_range_start": KEYS[2],
        "dagster/asset_partition_range_end": KEYS[3],
        "lake/session_id": plan.session_id,
        "lake.snapshot/raw.clicks": str(catalog.load_table("raw.clicks").metadata.current_snapshot_id),
        "lake.complete_through/raw.clicks": KEYS[6],
        "lake/code_version": click_fact.code_version,
    }
    assert request.asset_check_keys == []  # G19: a check that is planned and not evaluated is shown as skipped


def test_hours_between_those_of_a_session_are_not_shown_as_failed_when_its_run_fails(
    daemon: InProcessDaemon, catalog: Catalog
) -> None:
    land_clicks(catalog, range(6), landing=6)
    commit(Engine(catalog, CLICKS, clock=lambda: at(8)), click_fact)
    daemon.tick("click_fact_sensor")
    land_clicks(catalog, [1, 5], landing=7)
    assert not daemon.run((daemon.tick("click_fact_sensor").run_requests or [])[0]).success  # there is no Spark

    key = dg.AssetKey(["core", "click_fact"])
    partitions = daemon.repository.asset_graph.get(key).partitions_def
    shown = get_partition_subsets(
        daemon.instance, LoadingContextForTest(daemon.instance), key, daemon.instance, partitions
    )
    built, failed, _ = ([] if each is None else sorted(each.get_partition_keys()) for each in asyncio.run(shown))
    assert (built, failed) == (KEYS[:7], KEYS[1:2])


def test_g9_a_tick_that_was_lost_is_simply_repeated(daemon: InProcessDaemon, catalog: Catalog) -> None:
    land_clicks(catalog, [0], landing=0)
    first, second = daemon.tick("click_fact_sensor"), daemon.tick("click_fact_sensor")
    assert [r.run_key for r in first.run_requests or ()] == [r.run_key for r in second.run_requests or ()]


@pytest.mark.parametrize("scenario", TICK_SCENARIOS)
def test_g9_wherever_a_tick_dies_the_next_does_what_the_page_says(
    daemon: InProcessDaemon, catalog: Catalog, scenario: str
) -> None:
    assert TICK_SCENARIOS[scenario](daemon, catalog) == told(scenario)


def test_a_run_of_a_session_that_others_have_followed_takes_nothing_back(
    daemon: InProcessDaemon, catalog: Catalog
) -> None:
    engine = Engine(catalog, CLICKS, clock=lambda: at(8))
    requests: list[dg.RunRequest] = []
    for hour in range(3):
        land_clicks(catalog, [hour], landing=hour)
        requests += daemon.tick("click_fact_sensor").run_requests or ()
        commit(engine, click_fact)
    before = engine.state(click_fact)
    assert daemon.execute(click_fact.table, tags=dict(requests[1].tags)).success  # executed again, its tags are copied
    assert engine.state(click_fact) == before


def test_a_run_of_the_version_before_has_its_heads_as_json(daemon: InProcessDaemon, catalog: Catalog) -> None:
    land_clicks(catalog, [0], landing=0)
    plan = Engine(catalog, CLICKS, clock=lambda: at(8)).decide(click_fact)
    assert isinstance(plan, SessionPlan)
    tags = (daemon.tick("click_fact_sensor").run_requests or [])[0].tags
    heads = {"raw.clicks": (catalog.load_table("raw.clicks").metadata.current_snapshot_id, START)}
    of_before = {
        each.source: {"from": None, "to": each.to_snapshot_id, "complete_through": each.complete_through}
        for each in plan.sources
    }
    assert heads_of(tags) == heads_of({"lake/snapshots": json.dumps(of_before)}) == heads
    assert heads_of({}) == {}


def test_pending_hours_are_reported_when_they_change(daemon: InProcessDaemon, catalog: Catalog, clock: Hands) -> None:
    def reported() -> list[tuple[str | None, bool, dict[str, object]]]:
        events = daemon.tick("click_state_sensor").asset_events
        checks = [event for event in events if isinstance(event, dg.AssetCheckEvaluation)]
        return [(each.description, each.passed, {k: v.value for k, v in each.metadata.items()}) for each in checks]

    waits = "core.click_fact: complete-through is not set yet, so no hour is known to be complete"
    assert reported() == [(waits, False, {"pending hours": "none", "why": waits})]
    assert reported() == []

    publish_clicks(catalog, [0, 1, 4], complete_through=1)
    commit(Engine(catalog, CLICKS, clock=clock), click_state)
    waits = f"hours {KEYS[4]} wait for core.click_fact, complete through {KEYS[1]}"
    assert reported() == [(waits, False, {"pending hours": KEYS[4], "why": waits})]
    assert reported() == []

    publish_clicks(catalog, [], complete_through=4)
    commit(Engine(catalog, CLICKS, clock=clock), click_state)
    assert reported() == [("No hour that has changed waits to be built.", True, {"pending hours": "none"})]


def test_without_news_it_says_so(daemon: InProcessDaemon) -> None:
    found = daemon.tick("click_fact_sensor")
    assert not found.run_requests
    assert found.skip_message == "no new snapshot of raw.clicks"


def test_g13_a_run_of_the_target_is_waited_for_whoever_started_it(daemon: InProcessDaemon, catalog: Catalog) -> None:
    land_clicks(catalog, [0], landing=0)
    end_a_run(daemon, {}, dg.DagsterRunStatus.STARTED)
    found = daemon.tick("click_fact_sensor")
    assert not found.run_requests
    assert (found.skip_message or "").endswith("of core/click_fact is started.")


def test_g7_a_crashed_session_is_requested_again_three_times_then_a_person_is_called(
    daemon: InProcessDaemon, catalog: Catalog, clock: Hands
) -> None:
    land_clicks(catalog, [0], landing=0)
    keys = []
    for rest in (0, 30, 120, 480):
        clock.now = utc_now()
        assert rest == 0 or not daemon.tick("click_fact_sensor").run_requests
        clock.now = utc_now() + timedelta(seconds=rest)
        request = (daemon.tick("click_fact_sensor").run_requests or [])[0]
        keys.append(str(request.run_key).rsplit(":")[1])
        end_a_run(daemon, dict(request.tags), dg.DagsterRunStatus.FAILURE)
    clock.now += timedelta(days=1)
    last = daemon.tick("click_fact_sensor")
    assert keys == ["1", "2", "3", "4"]
    assert not last.run_requests
    assert "no more attempts" in (last.skip_message or "")


def test_g7_a_change_of_code_is_a_fresh_start_for_a_session_without_attempts(
    daemon: InProcessDaemon, catalog: Catalog
) -> None:
    land_clicks(catalog, [0], landing=0)
    before = replace(click_fact, code_version="before")
    plan = Engine(catalog, with_target(CLICKS, before), clock=lambda: at(8)).decide(before)
    assert isinstance(plan, SessionPlan)
    for _ in range(4):
        end_a_run(daemon, {SESSION_TAG: plan.session_id, CODE_VERSION_TAG: "before"}, dg.DagsterRunStatus.FAILURE)
    request = (daemon.tick("click_fact_sensor").run_requests or [])[0]
    assert request.run_key == f"{plan.session_id}:5"
    assert request.tags[CODE_VERSION_TAG] == click_fact.code_version


def test_a_target_waits_for_upstream_to_settle_but_not_for_ever(
    daemon: InProcessDaemon, catalog: Catalog, clock: Hands
) -> None:
    publish_clicks(catalog, [0, 1], complete_through=1)
    land_clicks(catalog, [2], landing=2)  # click_fact is about to change again

    waiting = daemon.tick("click_state_sensor")
    assert not waiting.run_requests
    assert "waits for upstream to settle, 60 s at most: core.click_fact is about to change" in (
        waiting.skip_message or ""
    )

    clock.now += timedelta(seconds=40)
    publish_clicks(catalog, [1], complete_through=1)  # another plan, but the wait goes on
    assert not daemon.tick("click_state_sensor").run_requests

    clock.now += timedelta(seconds=20)
    assert daemon.tick("click_state_sensor").run_requests
    assert daemon.cursors["click_state_sensor"] == NOT_WAITING


def test_a_settled_target_does_not_wait(daemon: InProcessDaemon, catalog: Catalog) -> None:
    publish_clicks(catalog, [0, 1], complete_through=1)
    assert click_state.table == "core.click_state"
    assert daemon.tick("click_state_sensor").run_requests


def test_a_target_takes_what_upstream_commits_during_its_tick(
    daemon: InProcessDaemon, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_clicks(catalog, [0], complete_through=0)
    looked = Engine.unsettled

    def commits_just_then(engine: Engine, target: Target) -> str | None:
        publish_clicks(catalog, [1, 2], complete_through=2)
        return looked(engine, target)

    monkeypatch.setattr(Engine, "unsettled", commits_just_then)
    requests = daemon.tick("click_state_sensor").run_requests
    assert requests
    assert requests[0].tags["dagster/asset_partition_range_end"] == KEYS[2]
