"""An open session is taken up if it can still be finished as it was planned, else it is abandoned. Without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lake_assets.incremental.declaration import RawTable, Source, Stateful, Target
from lake_assets.incremental.execution.driver import Driver
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.execution.planner import Planner
from lake_assets.incremental.execution.session_log import SessionRecord
from lake_assets.incremental.planning.session import OpenedSession, SessionReport
from lake_assets_tests.incremental.clicks import CLICKS, at, click_fact, land_clicks

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

RAW = "raw.clicks"
TAPS = RawTable("raw.taps", CLICKS.raw[0].columns, time_column="event_ts")
WITH_TAPS = replace(click_fact, sources=(*click_fact.sources, Source("raw.taps", time_column="event_ts")))


@pytest.fixture
def engine(catalog: Catalog) -> Engine:
    """The first session of click_fact, without rows, is committed. Then a click lands."""
    found = Engine(catalog, replace(CLICKS, raw=(*CLICKS.raw, TAPS)), clock=lambda: at(8))
    found.create_tables()
    land_clicks(catalog, [], landing=1)
    assert isinstance(found.run(click_fact), SessionReport)
    land_clicks(catalog, [2], landing=2)
    return found


def open_session(engine: Engine) -> SessionRecord:
    found = engine.open_session(click_fact)
    assert isinstance(found, OpenedSession)
    record = engine.store.state(click_fact.table).open_session
    assert record is not None
    return record


def expire(engine: Engine, snapshot_id: int | None) -> None:
    assert snapshot_id is not None
    engine.catalog.load_table(RAW).maintenance.expire_snapshots().by_id(snapshot_id).commit()


def settled(engine: Engine, target: Target = click_fact) -> SessionRecord | None:
    """The session that a driver of the target takes up."""
    driver = Driver(
        target,
        Planner(engine.catalog, engine.pipeline, target),
        engine.store,
        engine.erasure_guard,
        clock=lambda: at(9),
        create_tables=engine.create_tables,
    )
    attempt = driver.settle()
    return attempt.record if attempt else None


def newest(engine: Engine) -> SessionRecord:
    found = engine.store.state(click_fact.table).session
    assert found is not None
    return found


def test_an_append_needs_both_ends_of_its_range_and_an_overwrite_only_the_last(engine: Engine) -> None:
    append = open_session(engine)
    (span,) = append.plan.sources
    assert append.plan.load == "append"
    assert settled(engine) == append
    expire(engine, span.from_snapshot_id)
    assert settled(engine) is None
    assert newest(engine) == replace(append, state="abandoned", ended_at=at(9), revision=append.revision + 1)
    assert settled(engine) is None

    overwrite = open_session(engine)
    assert overwrite.plan.load == "overwrite"
    assert overwrite.plan.sources[0].from_snapshot_id == span.from_snapshot_id
    assert settled(engine) == overwrite
    land_clicks(engine.catalog, [3], landing=3)
    expire(engine, span.to_snapshot_id)
    assert settled(engine) is None
    assert newest(engine).state == "abandoned"


def test_a_session_that_was_planned_for_other_sources_or_another_mode_is_abandoned(engine: Engine) -> None:
    opened = open_session(engine)
    assert settled(engine, replace(click_fact, audits=())) == opened
    assert settled(engine, WITH_TAPS) is None
    assert newest(engine).state == "abandoned"
    open_session(engine)
    assert settled(engine, replace(click_fact, mode=Stateful())) is None
    assert newest(engine).state == "abandoned"
