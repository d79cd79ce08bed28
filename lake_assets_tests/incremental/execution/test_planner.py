"""What the planner asks of a target before it plans, and when a stopped session is not planned again. Without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import TargetError
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import WAP_ENABLED
from lake_assets.incremental.engine.model import NoSession, OpenedSession, SessionPlan
from lake_assets.incremental.engine.state import BLOCKED
from lake_assets_tests.incremental.clicks import CLICKS, at, click_fact, land_clicks

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@pytest.fixture
def engine(catalog: Catalog) -> Engine:
    found = Engine(catalog, CLICKS, clock=lambda: at(8))
    found.create_tables()
    land_clicks(catalog, [1], landing=1)
    return found


def test_a_target_has_a_plan_before_it_has_a_table(engine: Engine) -> None:
    engine.catalog.drop_table(click_fact.table)
    assert isinstance(engine.decide(click_fact), SessionPlan)


def test_a_target_that_cannot_stage_is_refused_before_anything_is_planned(engine: Engine) -> None:
    with engine.catalog.load_table(click_fact.table).transaction() as transaction:
        transaction.set_properties({WAP_ENABLED: "false"})
    with pytest.raises(TargetError, match=r"core\.click_fact"):
        engine.decide(click_fact)


def test_a_session_that_an_audit_has_stopped_is_planned_again_when_something_has_changed(engine: Engine) -> None:
    plan = engine.decide(click_fact)
    assert isinstance(plan, SessionPlan)
    stop(engine, plan)
    decision = engine.decide(click_fact)
    assert isinstance(decision, NoSession)
    assert (decision.kind, plan.session_id in decision.reason) == ("blocked", True)
    assert "unique_key: 2 repeated" in decision.reason
    planner = engine.planner(engine.catalog, CLICKS, click_fact)
    assert planner.next_session(engine.state(click_fact), retry_blocked=True) == plan
    stop(engine, replace(plan, code_version="before"))
    assert engine.decide(click_fact) == plan
    stop(engine, plan)
    assert isinstance(engine.decide(click_fact), NoSession)
    land_clicks(engine.catalog, [2], landing=2)
    assert isinstance(engine.decide(click_fact), SessionPlan)


def test_another_program_may_try_again_what_an_audit_has_stopped(engine: Engine) -> None:
    """The program may have been repaired, which no code version says."""
    plan = engine.decide(click_fact)
    assert isinstance(plan, SessionPlan)
    stop(engine, plan)
    opened = engine.open_session(click_fact)
    assert isinstance(opened, OpenedSession)
    assert opened.plan == plan


def stop(engine: Engine, plan: SessionPlan) -> None:
    """As an audit stops a session."""
    stopped = {
        "session_id": plan.session_id,
        "code_version": plan.code_version,
        "failed": {"unique_key": "2 repeated"},
        "run_id": "run-1",
        "n": 1,
    }
    with engine.catalog.load_table(click_fact.table).transaction() as transaction:
        transaction.set_properties({BLOCKED: json.dumps(stopped)})
