"""A session dies or is paused at any point, others write meanwhile: what is published is right, and is there once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from lake_assets.demo.membership_simulator import generate
from lake_assets.errors import TargetRolledBack
from lake_assets.incremental.engine.model import NoSession
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
from lake_assets_tests.matrices import one_now

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
    for seconds in (0.5, 1.5, 2.5):  # a session takes about three
        land_until_due(lake, "plan_fact", landings, ["raw.plan_changes"])
        child = start(home, "plan_fact")
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
        assert "committed" in outcomes
        assert outcomes <= {"committed", "idle"}
        lake.assert_true("signup_fact")
        assert_settled(lake, "signup_fact", "raw.signups")


def test_a_session_that_was_undone_before_it_was_logged_stops_its_target(lake: Lake, home: Settings) -> None:
    landings = generate(SMALL)
    land_until_due(lake, "signup_fact", landings, ["raw.signups"])
    lake.session("signup_fact")
    before = lake.main("core.signup_fact")
    assert before is not None
    land_until_due(lake, "signup_fact", landings, ["raw.signups"])
    die(home, "signup_fact", "after-committed")
    published = lake.main("core.signup_fact")
    assert published is not None
    lake.set_main("core.signup_fact", before)
    with pytest.raises(TargetRolledBack, match=str(published)):
        lake.run("signup_fact")
    lake.set_main("core.signup_fact", published)
    assert isinstance(lake.run("signup_fact"), NoSession)
    lake.assert_true("signup_fact")
    assert_settled(lake, "signup_fact", "raw.signups")


def test_a_session_whose_source_snapshots_have_expired_is_planned_anew(lake: Lake, home: Settings) -> None:
    landings = generate(SMALL)
    land_until_due(lake, "signup_fact", landings, ["raw.signups"])
    lake.session("signup_fact")
    land_until_due(lake, "signup_fact", landings, ["raw.signups"])
    die(home, "signup_fact", "after-staged")
    lake.land(next(landings), ["raw.signups"])
    lake.expire("raw.signups")
    lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")
    assert {record.state for record in lake.history("signup_fact")} == {"committed"}
