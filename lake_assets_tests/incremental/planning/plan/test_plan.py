"""Single plans against the oracle, and the ids of plans."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from lake_assets.incremental.engine.model import NoSession, PlanningInput, SessionPlan
from lake_assets.incremental.engine.planning import plan
from lake_assets_tests.incremental.planning.plan.oracle import Expected, oracle
from lake_assets_tests.incremental.planning.plan.random_inputs import HISTORIES, planning_inputs, thorough, together


@given(planning_inputs())
@settings(thorough, max_examples=2 * HISTORIES)
def test_a_plan_is_what_the_design_says(inputs: PlanningInput) -> None:
    decision, expected = plan(inputs), oracle(inputs)
    if isinstance(decision, NoSession):
        assert decision.kind == expected.load
        return
    assert expected == Expected(
        decision.load,
        frozenset(decision.hour_numbers),
        frozenset(decision.pending),
        frozenset(decision.skipped),
        decision.complete_through,
        frozenset(decision.follows),
    )
    for found in (set(decision.hour_numbers), set(decision.pending), set(decision.skipped), set(decision.follows)):
        assert found == together(found, inputs.grain)
    assert all(planned.reason for planned in decision.hours)
    assert [(s.source, s.to_snapshot_id) for s in decision.sources] == [
        (c.source, c.head.snapshot_id) for c in inputs.changes
    ]
    assert plan(inputs) == decision


@given(planning_inputs(), planning_inputs())
@settings(thorough, max_examples=150)
def test_different_plans_have_different_ids(one: PlanningInput, other: PlanningInput) -> None:
    first, second = plan(one), plan(other)
    if isinstance(first, SessionPlan) and isinstance(second, SessionPlan):
        assert (first.session_id == second.session_id) == (substance(first) == substance(second))
        later = plan(replace(one, revision=one.revision + 1))
        assert isinstance(later, SessionPlan)
        assert later.session_id != first.session_id


def substance(p: SessionPlan) -> tuple[object, ...]:
    spans = tuple((s.source, s.from_snapshot_id, s.to_snapshot_id) for s in p.sources)
    return p.load, spans, p.hour_numbers, p.pending, p.skipped, p.complete_through
