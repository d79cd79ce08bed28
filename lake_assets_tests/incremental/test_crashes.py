"""A session dies or is paused at any point, others write meanwhile: what is published is right, and is there once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from lake_assets.demo.membership_simulator import generate
from lake_assets.errors import TargetRolledBack
from lake_assets.incremental.planning.session import SessionPlan
from lake_assets_tests.incremental.crash_matrix import (
    SCENARIOS,
    SMALL,
    assert_settled,
    die,
    land_until_due,
    start,
    told,
)
from lake_assets_tests.incremental.scenario import Lake
from lake_assets_tests.journeys import one_now

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings


@pytest.fixture
def lake(catalog: Catalog, spark: SparkSession) -> Lake:
    return Lake(catalog, spark)


@pytest.mark.parametrize("scenario", one_now(SCENARIOS))
def test_p8_p9_wherever_a_session_dies_the_next_attempt_does_what_the_page_says(
    lake: Lake, home: Settings, scenario: str
) -> None:
    assert SCENARIOS[scenario](lake, home) == told(scenario)


def test_a_run_that_is_killed_in_the_middle_is_finished_by_the_next(lake: Lake, home: Settings) -> None:
    landings = generate(SMALL)
    for seconds in (0.1, 0.4, 0.8):
        land_until_due(lake, "plan_fact", landings, ["raw.plan_changes"])
        child = start(home, "plan_fact")
        while lake.engine.store.state("core.plan_fact").open_session is None and child.runs:
            time.sleep(0.02)
        time.sleep(seconds)
        child.kill()
        lake.catch_up("plan_fact")
        lake.assert_true("plan_fact")
        assert_settled(lake, "plan_fact", "raw.plan_changes")


def test_g13_of_two_runs_at_once_one_wins(lake: Lake, home: Settings) -> None:
    landings = generate(SMALL)
    for _ in range(2):
        land_until_due(lake, "signup_fact", landings, ["raw.signups"])
        children = [start(home, "signup_fact"), start(home, "signup_fact")]
        outcomes = {child.said() for child in children}
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
