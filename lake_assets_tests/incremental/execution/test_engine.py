"""The engine's operations go through the same steps: settle, decide, guard, run. Metadata only: no Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lake_assets.base.hours import hour_start
from lake_assets.errors import TargetGone, UsageError
from lake_assets.incremental.declaration import Subject
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import NoSession, OpenedSession, SessionPlan, SessionReport
from lake_assets_tests.incremental.clicks import (
    CLICKS,
    START,
    at,
    click_fact,
    click_state,
    land_clicks,
    publish_clicks,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

ERASED = "c1-1"
"""The id of the click of hour 1 that `land_clicks` lands in hour 1."""


@pytest.fixture
def engine(catalog: Catalog) -> Engine:
    pipeline = replace(CLICKS, subjects=(Subject("clicker", ("click_id",)),))
    found = Engine(catalog, pipeline, clock=lambda: at(8), erasure_key=lambda: b"key")
    found.create_tables()
    return found


def opened(engine: Engine) -> OpenedSession:
    found = engine.open_session(click_fact)
    assert isinstance(found, OpenedSession)
    return found


def test_a_decision_changes_nothing(engine: Engine) -> None:
    land_clicks(engine.catalog, [1], landing=1)
    engine.erasures.record("clicker", ERASED, "done", erased_at=at(2), now=at(2))
    first = engine.decide(click_fact)
    assert isinstance(first, SessionPlan)
    assert engine.decide(click_fact) == first
    assert (engine.state(click_fact).n, engine.history(click_fact)) == (0, [])
    assert engine.catalog.load_table("raw.clicks").scan().to_arrow().num_rows == 1


def test_open_a_session_of_another_program_stays_as_it_is_until_any_session_is_committed(engine: Engine) -> None:
    land_clicks(engine.catalog, [], landing=1)
    first = opened(engine)
    land_clicks(engine.catalog, [], landing=2)
    assert opened(engine) == first
    assert engine.decide(click_fact) != first.plan
    assert isinstance(engine.run(click_fact), SessionReport), "it blocks nobody"
    with pytest.raises(UsageError, match="has no open session"):
        engine.publish_session(click_fact)
    land_clicks(engine.catalog, [], landing=3)
    assert opened(engine).plan.session_id != first.plan.session_id


def test_guard_erased_rows_are_deleted_and_the_session_is_planned_without_them(engine: Engine) -> None:
    land_clicks(engine.catalog, [1, 2], landing=1)
    engine.erasures.record("clicker", ERASED, "done", erased_at=at(2), now=at(2))
    before = engine.catalog.load_table("raw.clicks").metadata.current_snapshot_id
    plan = opened(engine).plan
    raw = engine.catalog.load_table("raw.clicks")
    assert raw.scan().to_arrow()["click_id"].to_pylist() == ["c1-2"]
    assert plan.sources[0].to_snapshot_id == raw.metadata.current_snapshot_id != before
    assert engine.history(click_fact) == []


def test_run_a_session_without_rows_needs_no_spark(engine: Engine) -> None:
    land_clicks(engine.catalog, [], landing=3)
    report = engine.run(click_fact, run_id="one")
    assert isinstance(report, SessionReport)
    assert (report.status, report.plan.load, report.hours_built) == ("committed", "none", ())
    state = engine.state(click_fact)
    assert state.committed.complete_through == START + 3
    (record,) = engine.history(click_fact)
    assert (record.state, record.run_id, record.published_snapshot_id) == ("committed", "one", None)
    assert (state.n, state.session_id) == (1, record.plan.session_id)
    assert isinstance(engine.run(click_fact), NoSession)


def test_run_a_session_other_than_the_requested_one_is_not_begun(engine: Engine) -> None:
    land_clicks(engine.catalog, [1], landing=1)
    found = engine.run(click_fact, only="click_fact-of-before")
    assert isinstance(found, NoSession)
    assert found.kind == "idle"
    assert engine.history(click_fact) == []


def test_acknowledge_the_changed_hours_of_a_waiting_target_become_pending(engine: Engine) -> None:
    publish_clicks(engine.catalog, [2], complete_through=0)
    report = engine.acknowledge(click_state)
    head = engine.catalog.load_table("core.click_fact").metadata.current_snapshot_id
    state = engine.state(click_state)
    assert isinstance(report, SessionReport)
    assert state.committed.pending == {START + 2}
    assert state.watermarks["core.click_fact"].snapshot_id == head
    assert isinstance(engine.acknowledge(click_state), NoSession)


def test_publish_and_commit_are_refused_without_an_open_session(engine: Engine) -> None:
    for operation in (engine.publish_session, engine.commit_session):
        with pytest.raises(UsageError, match=r"core\.click_fact has no open session"):
            operation(click_fact)
    land_clicks(engine.catalog, [1], landing=1)
    opened(engine)
    with pytest.raises(UsageError, match="is not published"):
        engine.commit_session(click_fact)


def test_run_rows_of_others_in_hours_that_no_session_builds_are_deleted(engine: Engine) -> None:
    land_clicks(engine.catalog, [], landing=2)
    for target in (click_fact, click_state):
        engine.run(target)
    table = engine.catalog.load_table(click_state.table)
    hours = [None, hour_start(START - 1), hour_start(START + 3)]
    rows = [{"click_id": "by hand", "state_hour": hour} for hour in hours]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    assert engine.problem(click_state) is None
    assert isinstance(engine.run(click_state), SessionReport | NoSession)
    assert table.refresh().scan().to_arrow().num_rows == 0
    engine.run(click_state)
    assert isinstance(engine.run(click_state), NoSession)


def test_create_tables_a_target_with_a_watermark_is_not_created_again(engine: Engine) -> None:
    land_clicks(engine.catalog, [], landing=2)
    engine.run(click_fact)
    for target in (click_fact, click_state):
        engine.catalog.drop_table(target.table)
    assert engine.create_tables() == [click_state.table]
    assert isinstance(engine.problem(click_fact), TargetGone)
    with pytest.raises(TargetGone, match=r"lake rebuild core\.click_fact --reset"):
        engine.decide(click_fact)
    assert isinstance(engine.rebuild_all(click_fact), SessionReport)
    assert engine.problem(click_fact) is None
    assert isinstance(engine.run(click_fact), NoSession)
