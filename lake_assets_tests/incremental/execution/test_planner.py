"""What the planner asks of a target before it plans, and when a stopped session is not planned again. Without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import WriteAuditPublishDisabled
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.metadata.tables import WAP_ENABLED
from lake_assets.incremental.planning.session import NoSession, OpenedSession, SessionPlan
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
    with pytest.raises(WriteAuditPublishDisabled, match=r"core\.click_fact"):
        engine.decide(click_fact)


def test_a_session_that_an_audit_has_stopped_is_planned_again_when_something_has_changed(engine: Engine) -> None:
    opened = engine.open_session(click_fact)
    assert isinstance(opened, OpenedSession)
    record = engine.state(click_fact).open_session
    assert record is not None
    blocked = engine.store.record(replace(record, state="blocked"), after=record)
    decision = engine.decide(click_fact)
    assert isinstance(decision, NoSession)
    assert (decision.kind, opened.plan.session_id in decision.reason) == ("blocked", True)
    other_code = replace(opened.plan, code_version="before")
    engine.store.record(replace(blocked, plan=other_code), after=blocked)
    assert engine.decide(click_fact) == opened.plan
    again = engine.state(click_fact).session
    assert again is not None
    engine.store.record(replace(blocked, revision=again.revision), after=again)
    assert isinstance(engine.decide(click_fact), NoSession)
    land_clicks(engine.catalog, [2], landing=2)
    assert isinstance(engine.decide(click_fact), SessionPlan)
