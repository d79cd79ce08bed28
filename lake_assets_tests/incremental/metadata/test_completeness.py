"""Declaring a raw table complete by hand. Metadata only: no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import InvalidCompleteThrough, UsageError
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.complete import Completed, declare_complete
from lake_assets.incremental.engine.engine import Engine, utc_now
from lake_assets.incremental.engine.model import SessionPlan
from lake_assets_tests.incremental.clicks import CLICKS, START, click_fact, land_clicks

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@pytest.fixture
def engine(catalog: Catalog) -> Engine:
    engine = Engine(catalog, CLICKS, clock=utc_now)
    engine.create_tables()
    return engine


def through(engine: Engine) -> int | None:
    return iceberg.complete_through(iceberg.load(engine.catalog, "raw.clicks"), "raw.clicks")


def test_a_silent_source_is_declared_complete_and_its_readers_go_on(engine: Engine) -> None:
    land_clicks(engine.catalog, [0], landing=0, complete=False)
    assert declare_complete(engine.catalog, CLICKS, "clicks", START + 3) == Completed("raw.clicks", None, START + 3)
    plan = engine.decide(click_fact)
    assert isinstance(plan, SessionPlan)
    assert plan.complete_through == START + 3


def test_it_goes_back_only_by_force(engine: Engine) -> None:
    declare_complete(engine.catalog, CLICKS, "raw.clicks", START + 3)
    with pytest.raises(UsageError, match=r"through 2026-01-01-03:00 already(.|\n)*--force"):
        declare_complete(engine.catalog, CLICKS, "raw.clicks", START + 2)
    assert through(engine) == START + 3
    assert declare_complete(engine.catalog, CLICKS, "raw.clicks", START + 2, force=True).after == START + 2
    assert through(engine) == START + 2


def test_the_same_hour_again_commits_nothing(engine: Engine) -> None:
    declare_complete(engine.catalog, CLICKS, "raw.clicks", START + 3)
    before = iceberg.load(engine.catalog, "raw.clicks").metadata_location
    declare_complete(engine.catalog, CLICKS, "raw.clicks", START + 3)
    assert iceberg.load(engine.catalog, "raw.clicks").metadata_location == before


@pytest.mark.parametrize(
    ("name", "message"),
    [("core.click_fact", "is a target"), ("click_fact", "is a target"), ("raw.taps", "no raw table 'raw.taps'")],
)
def test_only_raw_tables_are_declared(engine: Engine, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"{message}.*\n.*raw.clicks"):
        declare_complete(engine.catalog, CLICKS, name, START)


def test_a_malformed_hour_is_replaced_only_by_force_and_the_error_says_so(engine: Engine) -> None:
    with iceberg.load(engine.catalog, "raw.clicks").transaction() as transaction:
        transaction.set_properties({iceberg.COMPLETE_THROUGH: "soon"})
    message = r"raw\.clicks is 'soon'(.|\n)*`lake complete raw\.clicks HOUR --force`"
    with pytest.raises(InvalidCompleteThrough, match=message):
        declare_complete(engine.catalog, CLICKS, "raw.clicks", START + 3)
    forced = declare_complete(engine.catalog, CLICKS, "raw.clicks", START + 3, force=True)
    assert forced == Completed("raw.clicks", None, START + 3)
    assert through(engine) == START + 3
