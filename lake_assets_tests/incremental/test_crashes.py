"""A session dies or is paused at any point, others write meanwhile: what is published is right, and is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import TargetRolledBack
from lake_assets.incremental.failpoints import EXIT_CODE, PAUSE, POINTS
from lake_assets.incremental.session import SessionPlan, Waiting
from lake_assets.membership.simulator import Arrival, Population, Simulation, generate
from lake_assets_tests.incremental.scenario import Lake

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.membership.simulator import Landing
    from lake_assets.settings import Settings

SMALL = Simulation(
    Population(accounts=40, hours=len(POINTS) + 2, seed=3, request=0.3, involuntary_cancel=0.3),
    Arrival(tail=0.1, twice=0.05, again=0.05, bad=0.1),
)
STAGED = POINTS[POINTS.index("after-staged") : POINTS.index("after-published")]


@pytest.fixture
def lake(catalog: Catalog, spark: SparkSession) -> Lake:
    return Lake(catalog, spark)


def start(home: Settings, target: str, failpoint: str = "") -> subprocess.Popen[str]:
    """One run of a target in a process of its own."""
    command = [sys.executable, "-m", "lake_assets_tests.incremental.child", target]
    variables = {"LAKE_HOME": str(home.home), "LAKE_SPARK_REMOTE": str(home.spark_remote), "LAKE_FAILPOINT": failpoint}
    return subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)


def die(home: Settings, target: str, point: str) -> None:
    child = start(home, target, point)
    child.communicate(timeout=120)
    assert child.returncode == EXIT_CODE, f"the run did not come to {point}"


def land_until_due(lake: Lake, target: str, landings: Iterator[Landing], only: list[str]) -> None:
    while isinstance(lake.engine.decide(lake.target(target)), Waiting):
        lake.land(next(landings), only)


def assert_settled(lake: Lake, target: str, source: str) -> None:
    """Nothing is open, all is acknowledged, each session is published once, each bad row is set aside once."""
    table = f"core.{target}"
    state = lake.engine.store.state(table)
    assert state.open_session is None
    assert state.watermarks[source].snapshot_id == lake.main(source)
    published = lake.published(table)
    assert len(set(published)) == len(published)
    aside = [row["row_hash"] for row in lake.quarantined(table)]
    assert len(set(aside)) == len(aside)
    assert len(aside) == lake.bad_rows(source)


def test_an_append_that_dies_anywhere_is_finished_as_planned_and_later_rows_come_once(
    lake: Lake, home: Settings
) -> None:
    landings = generate(SMALL)
    for point in POINTS:
        land_until_due(lake, "signup_fact", landings, ["raw.signups"])
        die(home, "signup_fact", point)
        planned = lake.truth()["core.signup_fact"]
        opened = lake.engine.store.state("core.signup_fact").open_session is not None
        lake.land(next(landings), ["raw.signups"])
        lake.session("signup_fact")
        expected = planned if opened else lake.truth()["core.signup_fact"]
        assert lake.rows("core.signup_fact")["core.signup_fact"] == expected, point
    lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")
    assert_settled(lake, "signup_fact", "raw.signups")


def test_an_overwrite_that_dies_anywhere_is_finished_even_if_another_writer_moved_main(
    lake: Lake, home: Settings
) -> None:
    all_landings = list(generate(SMALL))
    for landing in all_landings:
        lake.land(landing, ["raw.cancel_requests"])
    lake.catch_up("cancel_request_fact")
    landings = iter(all_landings)
    for point in POINTS:
        land_until_due(lake, "cancel_fact", landings, ["raw.cancels"])
        die(home, "cancel_fact", point)
        if point in STAGED and lake.main("core.cancel_fact"):
            lake.compact("core.cancel_fact")
        lake.catch_up("cancel_fact")
        lake.assert_true("cancel_fact", note=point)
        assert_settled(lake, "cancel_fact", "raw.cancels")


def test_a_session_that_dies_again_at_each_point_is_published_once(lake: Lake, home: Settings) -> None:
    first, second, *_ = generate(SMALL)
    lake.land(first)
    lake.land(second)
    lake.catch_up("signup_fact", "plan_fact", "cancel_request_fact", "cancel_fact")
    for point in POINTS:
        if point != "after-published-recorded":  # the attempt after the publishing one has nothing to publish
            die(home, "account_state_dim", point)
    assert isinstance(lake.run("account_state_dim"), Waiting)
    lake.assert_true()
    assert len(lake.published("core.account_state_dim")) == 1


def test_a_run_that_is_paused_while_another_finishes_its_session_stops_without_harm(lake: Lake, home: Settings) -> None:
    landings, outcomes = generate(SMALL), {}
    for point in POINTS:
        land_until_due(lake, "signup_fact", landings, ["raw.signups"])
        child = start(home, "signup_fact", PAUSE + point)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        lake.catch_up("signup_fact")
        child.send_signal(signal.SIGCONT)
        outcomes[point] = child.communicate(timeout=120)[0].strip()
        lake.assert_true("signup_fact", note=point)
    assert outcomes == dict.fromkeys(POINTS[:-1], "StateMoved") | {"after-committed": "committed"}
    assert_settled(lake, "signup_fact", "raw.signups")


def test_a_run_that_is_killed_in_the_middle_is_finished_by_the_next(lake: Lake, home: Settings) -> None:
    landings = generate(SMALL)
    for seconds in (0.1, 0.4, 0.8):
        land_until_due(lake, "plan_fact", landings, ["raw.plan_changes"])
        child = start(home, "plan_fact")
        while lake.engine.store.state("core.plan_fact").open_session is None and child.poll() is None:
            time.sleep(0.02)
        time.sleep(seconds)
        child.kill()
        child.communicate()
        lake.catch_up("plan_fact")
        lake.assert_true("plan_fact")
        assert_settled(lake, "plan_fact", "raw.plan_changes")


def test_of_two_runs_at_once_one_wins(lake: Lake, home: Settings) -> None:
    landings = generate(SMALL)
    for _ in range(2):
        land_until_due(lake, "signup_fact", landings, ["raw.signups"])
        children = [start(home, "signup_fact"), start(home, "signup_fact")]
        outcomes = {child.communicate(timeout=120)[0].strip() for child in children}
        assert outcomes & {"committed", "already_committed"}
        assert outcomes - {"committed", "already_committed"} <= {"StateMoved", "idle"}
        lake.assert_true("signup_fact")
        assert_settled(lake, "signup_fact", "raw.signups")


def test_a_publishing_that_was_undone_before_it_was_acknowledged_is_not_acknowledged(
    lake: Lake, home: Settings
) -> None:
    landings = generate(SMALL)
    land_until_due(lake, "signup_fact", landings, ["raw.signups"])
    lake.session("signup_fact")
    before = lake.main("core.signup_fact")
    assert before is not None
    land_until_due(lake, "signup_fact", landings, ["raw.signups"])
    die(home, "signup_fact", "after-published")
    published = lake.main("core.signup_fact")
    assert published is not None
    lake.set_main("core.signup_fact", before)
    with pytest.raises(TargetRolledBack, match=str(published)):
        lake.run("signup_fact")
    lake.set_main("core.signup_fact", published)
    assert lake.session("signup_fact").status == "already_committed"
    lake.assert_true("signup_fact")


def test_a_session_whose_source_snapshots_have_expired_is_planned_anew(lake: Lake, home: Settings) -> None:
    landings = generate(SMALL)
    land_until_due(lake, "signup_fact", landings, ["raw.signups"])
    lake.session("signup_fact")
    land_until_due(lake, "signup_fact", landings, ["raw.signups"])
    die(home, "signup_fact", "after-staged")
    left = lake.engine.decide(lake.target("signup_fact"))
    lake.land(next(landings), ["raw.signups"])
    lake.expire("raw.signups")
    lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")
    assert isinstance(left, SessionPlan)
    states = {r.plan.session_id: r.state for r in lake.engine.store.history("core.signup_fact")}
    assert states.pop(left.session_id) == "abandoned"
    assert set(states.values()) == {"committed"}
