"""Freshness and alerts through Dagster, with a real receiver. Metadata only: no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData

from lake_assets.base.hours import hour_key
from lake_assets.errors import ServiceError
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.assets import incremental_definitions
from lake_assets.incremental.dagster.lake_resource import LAKE
from lake_assets.incremental.dagster.session_runs import CODE_VERSION_TAG, SESSION_TAG
from lake_assets.incremental.dagster.watch import watch_definitions
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import COMPLETE_THROUGH
from lake_assets.incremental.engine.model import Committed, SessionPlan, Waiting
from lake_assets.incremental.engine.planner import declare_complete
from lake_assets.incremental.operations.alerts import Webhook
from lake_assets.incremental.operations.health import OF_LANDING, Problem
from lake_assets_tests.incremental.clicks import (
    CLICKS,
    START,
    at,
    click_fact,
    click_state,
    land_clicks,
    publish_clicks,
    write_clicks,
)
from lake_assets_tests.incremental.committing import block, commit
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon
from lake_assets_tests.incremental.receiver import Receiver, receiver

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.engine.model import Decision

PUNCTUAL = replace(click_fact, max_delay=timedelta(minutes=30))
PIPELINE = replace(CLICKS, targets=(PUNCTUAL, click_state))
FACT = asset_key("core.click_fact")


@dataclass
class Watch:
    """A location with the watching definitions, a clock that a test moves, and a receiver of alerts."""

    catalog: Catalog
    instance: dg.DagsterInstance
    hook: Receiver
    now: datetime = field(default_factory=lambda: at(0))
    elsewhere: Callable[[], list[Problem]] = list

    def __post_init__(self) -> None:
        handed = {LAKE: SimpleNamespace(catalog=lambda: self.catalog, spark_session=None)}
        resources = {k: dg.ResourceDefinition.hardcoded_resource(v) for k, v in handed.items()}
        webhook = Webhook(self.hook.url, wait=0.01)
        definitions = dg.Definitions.merge(
            incremental_definitions(CLICKS, clock=self.clock, end=hour_key(START + 20)),
            watch_definitions(
                PIPELINE, clock=self.clock, webhook=webhook, elsewhere={OF_LANDING: lambda _: self.elsewhere()}
            ),
            dg.Definitions(resources=resources),
        )
        self.daemon = InProcessDaemon(PIPELINE, self.instance, definitions.get_repository_def(), dict(resources))
        self.engine = Engine(self.catalog, PIPELINE, clock=self.clock)
        self.engine.create_tables()

    def clock(self) -> datetime:
        return self.now

    def tick(self, sensor: str) -> SensorExecutionData:
        return self.daemon.tick(sensor)

    def alerts(self, state: str = "open") -> list[dict[str, object]]:
        """What one tick sends of problems that begin, or that are over."""
        before = len(self.hook.got)
        self.tick("alerts_sensor")
        return [alert for alert in self.hook.got[before:] if alert["state"] == state]


@pytest.fixture
def watch(catalog: Catalog) -> Iterator[Watch]:
    with dg.instance_for_test() as instance, receiver() as hook:
        yield Watch(catalog, instance, hook)


def planned(watch: Watch) -> SessionPlan:
    decision = watch.engine.decide(PUNCTUAL)
    assert isinstance(decision, SessionPlan)
    return decision


def test_a_target_turns_red_while_nothing_runs_and_green_again(watch: Watch) -> None:
    def verdicts() -> list[bool]:
        return [event.passed for event in watch.tick("freshness_sensor").asset_events]  # type: ignore[union-attr]

    publish_clicks(watch.catalog, [0, 1], complete_through=1)
    watch.now = at(3, 20)
    assert verdicts() == [True]
    assert verdicts() == []
    watch.now = at(3, 40)
    assert verdicts() == [False]
    publish_clicks(watch.catalog, [2], complete_through=2)
    assert verdicts() == [True]
    key = dg.AssetCheckKey(FACT, "freshness")
    (newest,) = watch.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert newest.status.value == "SUCCEEDED"


def test_of_a_target_that_cannot_be_judged_the_verdict_says_why(watch: Watch) -> None:
    with watch.catalog.load_table("core.click_fact").transaction() as transaction:
        transaction.set_properties({COMPLETE_THROUGH: "soon"})
    (verdict,) = watch.tick("freshness_sensor").asset_events
    assert isinstance(verdict, dg.AssetCheckEvaluation)
    for found in (verdict, run_by_hand(watch)):
        assert not found.passed
        assert "is 'soon', which is not an hour key" in (found.description or "")


def run_by_hand(watch: Watch) -> dg.AssetCheckEvaluation:
    job = watch.daemon.repository.get_implicit_job_def_for_assets([FACT])
    assert job is not None
    subset = job.get_subset(asset_selection=set(), asset_check_selection={dg.AssetCheckKey(FACT, "freshness")})
    result = subset.execute_in_process(instance=watch.instance, raise_on_error=False)
    (evaluation,) = result.get_asset_check_evaluations()
    return evaluation


def test_the_check_can_be_run_by_hand(watch: Watch) -> None:
    watch.now = at(5)
    evaluation = run_by_hand(watch)
    assert not evaluation.passed
    assert "raw.clicks is not complete through 2026-01-01-00:00" in (evaluation.description or "")


def test_a_late_target_is_told_once_until_it_is_late_again(watch: Watch) -> None:
    watch.now = at(2)
    (alert,) = watch.alerts()
    assert (alert["target"], alert["kind"], alert["session_id"]) == ("core.click_fact", "not_fresh", None)
    assert "lake complete" in str(alert["remedy"])
    assert watch.alerts() == []
    publish_clicks(watch.catalog, [0], complete_through=5)
    (over,) = watch.alerts("over")
    assert (over["target"], over["kind"], over["what"]) == ("core.click_fact", "not_fresh", alert["what"])
    assert watch.alerts("over") == []
    watch.now = at(8)
    assert [a["kind"] for a in watch.alerts()] == ["not_fresh"]


def test_an_alert_that_was_not_delivered_comes_with_the_next_tick(watch: Watch) -> None:
    watch.now, watch.hook.statuses = at(2), [500]
    told = watch.tick("alerts_sensor")
    assert told.skip_message == "Alerts: 0 sent, 1 still to be sent, 0 sent before."
    watch.hook.statuses = [200]
    assert [a["kind"] for a in watch.alerts()] == ["not_fresh"]


def test_that_a_problem_is_over_is_sent_once_although_the_receiver_was_down(watch: Watch) -> None:
    watch.now = at(2)
    watch.alerts()
    publish_clicks(watch.catalog, [0], complete_through=5)
    watch.hook.statuses = [500]
    watch.alerts()
    watch.hook.statuses = [200]
    assert [alert["kind"] for alert in watch.alerts("over")] == ["not_fresh"]
    assert watch.alerts("over") == []


def test_a_problem_of_landing_is_told_once_and_that_it_is_over(watch: Watch) -> None:
    gone = Problem("zone b", "zone_gone", "The files of zone b are gone.", "Mount the folder.")
    few = Problem("orders", "few_dead_letters", "orders has 1 dead letters.", "Look at them.")
    watch.elsewhere = lambda: [gone, few]
    (alert,) = watch.alerts()
    assert (alert["target"], alert["kind"], alert["remedy"]) == ("zone b", "zone_gone", "Mount the folder.")
    assert watch.alerts() == []

    def nobody_knows() -> list[Problem]:
        raise ServiceError("The manifest cannot be opened.", remedy="Start it.")

    watch.elsewhere = nobody_knows
    assert watch.alerts("over") == []
    watch.elsewhere = list
    assert [(over["target"], over["kind"]) for over in watch.alerts("over")] == [("zone b", "zone_gone")]


def test_a_problem_that_comes_back_before_its_end_was_sent_is_not_sent_again(watch: Watch) -> None:
    watch.now = at(2)
    watch.alerts()
    publish_clicks(watch.catalog, [0], complete_through=5)
    watch.hook.statuses = [500]
    watch.alerts()
    watch.now, watch.hook.statuses = at(8), [200]
    assert watch.alerts() == []


def test_of_a_target_that_cannot_be_planned_no_other_problem_is_over(watch: Watch) -> None:
    land_clicks(watch.catalog, [0], landing=0)
    block(watch.engine, PUNCTUAL, {"unique_key": "3 repeated"})
    assert [alert["kind"] for alert in watch.alerts()] == ["audit_failed"]
    with watch.catalog.load_table("core.click_fact").transaction() as transaction:
        transaction.set_properties({COMPLETE_THROUGH: "soon"})
    assert [alert["kind"] for alert in watch.alerts()] == ["cannot_plan"] * 2, "also that of its reader"
    with watch.catalog.load_table("core.click_fact").transaction() as transaction:
        transaction.remove_properties(COMPLETE_THROUGH)
    assert [alert["kind"] for alert in watch.alerts("over")] == ["cannot_plan"] * 2


def test_the_cursor_of_the_version_before_sends_nothing_twice(watch: Watch) -> None:
    watch.now = at(2)
    cursor = json.dumps(["core.click_fact|not_fresh|None"])
    watch.daemon.cursors["alerts_sensor"] = cursor
    assert watch.alerts() == []
    publish_clicks(watch.catalog, [0], complete_through=5)
    assert [alert["kind"] for alert in watch.alerts("over")] == ["not_fresh"]


def test_an_alert_that_is_refused_keeps_no_other_waiting(watch: Watch) -> None:
    watch.now = at(2)
    land_clicks(watch.catalog, [0], landing=0)
    block(watch.engine, PUNCTUAL, {"unique_key": "3 repeated"})
    watch.hook.statuses = [413, 200]
    assert [a["kind"] for a in watch.alerts()] == ["audit_failed", "not_fresh"]
    watch.hook.statuses = [200]
    assert [a["kind"] for a in watch.alerts()] == ["audit_failed"]


def test_a_failed_audit_is_told_with_its_session_and_run(watch: Watch) -> None:
    land_clicks(watch.catalog, [0], landing=0)
    plan = block(watch.engine, PUNCTUAL, {"unique_key": "3 repeated"})
    (alert,) = watch.alerts()
    assert (alert["kind"], alert["session_id"], alert["run_id"]) == ("audit_failed", plan.session_id, "run-7")
    assert alert["what"] == "core.click_fact was not published: unique_key: 3 repeated."


def test_hours_that_are_held_back_are_told_for_each_session_that_holds_them(watch: Watch) -> None:
    land_clicks(watch.catalog, [0, 1, 2], landing=2)
    watch.now = at(2)
    held = {START + n: Waiting("held", "audit x: 1 bad", 0, f"s{n % 2}", planned(watch).code_version) for n in range(3)}
    commit(watch.engine, PUNCTUAL, Committed(waiting=held))
    told = [a for a in watch.alerts() if a["kind"] == "hours_held"]
    assert [a["session_id"] for a in told] == ["s0", "s1"]
    assert told[1]["what"] == f"core.click_fact: hour {hour_key(START + 1)} is held back by audit x: 1 bad."
    assert "lake rebuild core.click_fact" in str(told[0]["remedy"])
    assert "hours_held" not in [a["kind"] for a in watch.alerts()]


def test_a_session_without_attempts_left_is_told_with_its_last_run(watch: Watch) -> None:
    land_clicks(watch.catalog, [0], landing=0)
    plan = planned(watch)
    job = watch.daemon.repository.get_job("__ASSET_JOB").get_subset(asset_selection={FACT})
    for code_version in ("before", plan.code_version):
        assert watch.alerts() == []  # with other code there are attempts left
        tags = {SESSION_TAG: plan.session_id, CODE_VERSION_TAG: code_version}
        runs = [
            watch.instance.create_run_for_job(
                job, asset_selection=frozenset({FACT}), tags=tags, status=dg.DagsterRunStatus.FAILURE
            )
            for _ in range(4)
        ]
    (alert,) = watch.alerts()
    assert (alert["kind"], alert["session_id"], alert["run_id"]) == (
        "session_failed",
        plan.session_id,
        runs[-1].run_id,
    )


def test_a_target_without_a_problem_is_looked_at_when_something_moves(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[str] = []
    decide = Engine.decide

    def noted(engine: Engine, target: Target) -> Decision:
        planned.append(target.name)
        return decide(engine, target)

    assert watch.alerts() == []
    monkeypatch.setattr(Engine, "decide", noted)
    assert watch.alerts() == []
    assert planned == []
    publish_clicks(watch.catalog, [3], complete_through=3)
    assert watch.alerts() == []
    assert set(planned) == {"click_fact", "click_state"}
    planned.clear()
    watch.now = at(5, 40)  # from 05:30 on, the fact is late
    assert [alert["kind"] for alert in watch.alerts()] == ["not_fresh"]
    assert "click_fact" in planned


def test_what_cannot_be_planned_is_told(watch: Watch) -> None:
    watch.now = at(0, 10)
    declare_complete(watch.catalog, PIPELINE, "raw.clicks", START)
    watch.catalog.drop_table("raw.clicks")
    (alert,) = watch.alerts()
    assert (alert["target"], alert["kind"]) == ("core.click_fact", "cannot_plan")
    assert "raw.clicks is not in the catalog" in str(alert["what"])


def test_a_target_that_others_change_is_due_and_one_that_they_drop_turns_red_while_nothing_runs(watch: Watch) -> None:
    def verdicts() -> dict[str, bool]:
        events = watch.tick("targets_sensor").asset_events
        return {event.asset_key.path[-1]: event.passed for event in events}  # type: ignore[union-attr]

    land_clicks(watch.catalog, [], landing=0)
    watch.now = at(0, 10)
    watch.engine.run(PUNCTUAL)  # a session without rows: the target has a watermark
    assert verdicts() == {"click_fact": True, "click_state": True}
    assert verdicts() == {}
    write_clicks(watch.catalog, [3])  # by hand
    assert verdicts() == {}
    assert planned(watch).hour_numbers == (START + 3,)
    watch.catalog.drop_table("core.click_fact")
    assert verdicts() == {"click_fact": False, "click_state": False}
    key = dg.AssetCheckKey(FACT, "intact")
    (newest,) = watch.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert newest.status.value == "FAILED"
    assert "lake rebuild core.click_fact --reset" in str(newest.event)


def test_the_check_of_a_target_is_red_while_an_audit_stops_it(watch: Watch) -> None:
    land_clicks(watch.catalog, [0], landing=0)
    block(watch.engine, PUNCTUAL, {"unique_key": "3 repeated"})
    events = watch.tick("targets_sensor").asset_events
    found = {event.asset_key.path[-1]: (event.passed, event.description) for event in events}  # type: ignore[union-attr]
    assert found["click_state"] == (True, None)
    passed, why = found["click_fact"]
    assert not passed
    assert "was not published: unique_key: 3 repeated." in str(why)
