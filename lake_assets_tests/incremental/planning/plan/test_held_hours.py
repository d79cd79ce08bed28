"""Plans around hours that audits hold back, by example."""

from __future__ import annotations

import pytest

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import Sequential, Stateful, Stateless
from lake_assets.incremental.engine.model import NoSession, SessionPlan
from lake_assets.incremental.engine.planning import committed_after, plan, plan_rebuild
from lake_assets_tests.incremental.planning.plan.random_inputs import START
from lake_assets_tests.incremental.planning.plan.world import late, loaded, numbers, played, rebuild


def test_a_held_hour_is_a_session_of_its_own_behind_all_others() -> None:
    world = loaded(["raw.a"], Stateful(chunk_hours=3), 5)
    world.bad = {START + 2}
    world.land("raw.a", "append", late(2))
    assert played(world) == [([2, 3, 4], [5], []), ([5], [], [])]
    assert numbers(world.committed.held_hours) == [2]
    # What follows from the held hour is built all the same, and it is tried again, once.
    world.land("raw.a", "append", late(2, 6))
    world.through["raw.a"] = START + 6
    assert played(world) == [([6], [2, 3, 4, 5], []), ([3, 4, 5], [2, 6], []), ([6], [2], []), ([2], [], [])]
    assert world.committed.complete_through == START + 6
    world.code_version = "mended"
    world.bad.clear()
    assert played(world) == [([2], [], [])]
    assert not world.committed.held


def test_a_target_with_held_hours_becomes_sequential_only_once_they_are_built() -> None:
    world = loaded(["raw.a"], Stateful(), 5)
    world.bad = {START + 2, START + 4}
    world.land("raw.a", "append", late(2, 4))
    played(world)
    world.mode = Sequential()
    words = r"hours 2026-01-01-02:00, 2026-01-01-04:00: .*\n.*rebuild \S+ 2026-01-01-02:00 2026-01-01-04:00`"
    with pytest.raises(ConfigurationError, match=words):
        plan(world.inputs())
    with pytest.raises(ConfigurationError, match="hold back its hour 2026-01-01-02:00: "):
        plan_rebuild(world.inputs(), late(3), present=(), token="from behind the first")
    decision = plan_rebuild(world.inputs(), late(2, 4), present=(), token="mended")
    assert isinstance(decision, SessionPlan)
    assert numbers(decision.hour_numbers) == [2, 3, 4, 5]
    world.committed = committed_after(world.mode, world.committed, decision, decision.hour_numbers)
    assert isinstance(plan(world.inputs()), NoSession)


def test_complete_through_stays_below_a_held_hour_until_it_is_built() -> None:
    world = loaded(["raw.a"], Stateless(), 3)
    world.bad = {START + 5}
    world.land("raw.a", "append", late(4, 5, 6))
    world.through["raw.a"] = START + 6
    assert played(world) == [([4, 5, 6], [], [])]
    assert world.committed.complete_through == START + 4
    waiting = plan(world.inputs())
    assert waiting == NoSession(
        "idle",
        "no new snapshot of raw.a; hour 2026-01-01-05:00 is held back by audit x: 1 bad;"
        " it waits for a change of a source or the code",
    )
    rebuild(world, late(5), "in vain")
    assert numbers(world.committed.held_hours) == [5]
    world.bad.clear()
    rebuild(world, late(5), "mended")
    assert played(world) == [([], [], [])]
    assert world.committed.complete_through == START + 6
