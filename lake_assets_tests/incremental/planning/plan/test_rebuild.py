"""Rebuilds that a person asks for, by example."""

from __future__ import annotations

from lake_assets.incremental.declaration import Sequential, Stateful
from lake_assets.incremental.engine.model import NoSession, SessionPlan
from lake_assets.incremental.engine.planning import plan, plan_rebuild
from lake_assets_tests.incremental.planning.plan.random_inputs import START
from lake_assets_tests.incremental.planning.plan.world import World, late, loaded, numbers, rebuild, run


def test_a_first_backfill_leaves_all_other_hours_pending_however_old() -> None:
    world = World(Stateful(catchup_threshold=2), ["raw.a"])
    world.land("raw.a", "append", late(0, 1, 2, 9))
    world.through["raw.a"] = START + 9
    rebuild(world, late(9), "first")
    assert (numbers(world.committed.pending), world.committed.complete_through) == ([0, 1, 2], None)
    decision = plan(world.inputs())
    assert isinstance(decision, SessionPlan)
    assert (numbers(decision.hour_numbers), decision.skipped) == (list(range(10)), ())


def test_a_sequential_backfill_leaves_no_gap_before_it() -> None:
    world = World(Sequential(), ["raw.a"])
    world.land("raw.a", "append", late(1, 8))
    world.through["raw.a"] = START + 9
    rebuild(world, late(1), "first")
    assert world.committed.complete_through == START + 1
    inputs = world.inputs(to_watermark=True)
    decision = plan_rebuild(inputs, late(8), present=(), token="second")
    assert isinstance(decision, SessionPlan)
    assert numbers(decision.hour_numbers) == list(range(2, 9))
    assert decision.complete_through is None  # only a session moves it on


def test_a_backfill_leaves_out_what_is_not_complete() -> None:
    world = loaded(["raw.a"], Stateful(), 3)
    inputs = world.inputs(to_watermark=True)
    decision = plan_rebuild(inputs, late(2, 3, 7), present=(), token="t")
    assert isinstance(decision, SessionPlan)
    assert (decision.kind, decision.load, numbers(decision.hour_numbers)) == ("rebuild", "overwrite", [2, 3])
    assert decision.notes == ("left out, not complete yet: 2026-01-01-07:00",)
    assert plan_rebuild(inputs, late(7), present=(), token="t") == NoSession(
        "wait", "2026-01-01-07:00 cannot be rebuilt yet: raw.a, complete through 2026-01-01-03:00"
    )
    other = plan_rebuild(inputs, late(2, 3, 7), present=(), token="another")
    assert isinstance(other, SessionPlan)
    assert other.session_id != decision.session_id


def test_a_source_that_is_declared_later_loses_no_pending_hour() -> None:
    world = loaded(["raw.a"], Stateful(), 3)
    world.land("raw.a", "append", late(2, 6))
    run(world)
    assert numbers(world.committed.pending) == [6]
    world.names.append("raw.b")
    world.land("raw.b", "append", late(1, 3))
    world.through["raw.b"] = START + 3
    rebuild(world, late(3), "first of b")
    assert numbers(world.committed.pending) == [1, 2, 6]
