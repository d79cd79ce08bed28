"""A target that has to wait may acknowledge what it has seen: its watermark moves, and changed hours become pending."""

from __future__ import annotations

from lake_assets.incremental.declaration import Stateful, Stateless
from lake_assets.incremental.engine.model import NoSession, SessionPlan
from lake_assets.incremental.engine.planning import plan
from lake_assets_tests.incremental.planning.plan.random_inputs import START
from lake_assets_tests.incremental.planning.plan.world import World, late, loaded, numbers


def test_the_changed_hours_of_a_target_that_waits_become_pending() -> None:
    world = loaded(["raw.a", "raw.b"], Stateful(), 5)
    world.land("raw.a", "append", late(7))
    assert isinstance(plan(world.inputs()), NoSession)
    found = plan(world.inputs(), acknowledge=True)
    assert isinstance(found, SessionPlan)
    assert (found.load, found.hours, numbers(found.pending)) == ("none", (), [7])
    assert [source.to_snapshot_id for source in found.sources] == [2, 1]
    assert world.commit(found)
    world.land("raw.b", "append", late(8))
    found = plan(world.inputs(), acknowledge=True)
    assert isinstance(found, SessionPlan)
    assert numbers(found.pending) == [7, 8]


def test_what_can_be_planned_is_planned_and_nothing_new_is_not_acknowledged() -> None:
    world = loaded(["raw.a"], Stateful(), 5)
    assert isinstance(plan(world.inputs(), acknowledge=True), NoSession)
    world.land("raw.a", "append", late(2))
    assert plan(world.inputs(), acknowledge=True) == plan(world.inputs())


def test_a_target_without_a_complete_hour_has_nothing_that_could_be_pending() -> None:
    """Its first session reads everything anyway."""
    world = World(Stateful(), ["raw.a"])
    world.land("raw.a", "append", late(1))
    waiting = plan(world.inputs())
    assert isinstance(waiting, NoSession)
    assert plan(world.inputs(), acknowledge=True) == waiting
    world.through["raw.a"] = START
    assert isinstance(plan(world.inputs(), acknowledge=True), SessionPlan)
    world.mode = Stateless()
    world.through.clear()
    assert plan(world.inputs(), acknowledge=True) == plan(world.inputs())
