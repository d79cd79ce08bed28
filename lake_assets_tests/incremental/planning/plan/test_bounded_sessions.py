"""A session of any mode builds a bounded number of hours; the others are pending, and are built by the next ones."""

from __future__ import annotations

import pytest

from lake_assets.base.hours import DAY
from lake_assets.incremental.declaration import Mode, Sequential, Stateful, Stateless
from lake_assets.incremental.engine.model import SessionPlan
from lake_assets.incremental.engine.planning import plan, plan_rebuild
from lake_assets_tests.incremental.planning.plan.random_inputs import START
from lake_assets_tests.incremental.planning.plan.world import World, late, loaded, numbers, played, rebuild

EVERY_MODE = [Stateless(), Stateful(), Stateful("changed"), Sequential(), Sequential(catchup_threshold=8, load="all")]


@pytest.mark.parametrize("mode", EVERY_MODE, ids=repr)
def test_a_first_load_is_cut_and_is_complete_as_far_as_it_is_built(mode: Mode) -> None:
    world = World(mode, ["raw.a"], max_hours=200)
    world.land("raw.a", "append", frozenset(range(START, START + 450)))
    world.through["raw.a"] = START + 460
    first = plan(world.inputs())
    assert isinstance(first, SessionPlan)
    assert (first.load, numbers(first.hour_numbers)) == ("overwrite", list(range(200)))
    assert first.complete_through == START + 199
    assert "each builds 200 at most" in first.notes[-1]
    lengths = []
    while isinstance(decision := plan(world.inputs()), SessionPlan):
        new = [hour for hour in decision.hour_numbers if hour > (world.committed.last_built or 0)]
        lengths.append(len(new))
        assert world.commit(decision)
    assert max(lengths) == 200
    assert sum(lengths) in (450, 461)
    assert (world.committed.complete_through, world.committed.pending) == (START + 460, frozenset())


def test_late_hours_come_after_those_that_others_wait_for() -> None:
    world = loaded(["raw.a"], Stateless(), 9)
    world.max_hours = 3
    world.land("raw.a", "append", late(0, 2, 4, 6, 10, 11))
    world.through["raw.a"] = START + 11
    assert [hours for hours, _, _ in played(world)] == [[0, 10, 11], [2, 4, 6]]


def test_rows_that_are_appended_to_few_hours_are_still_appended() -> None:
    world = loaded(["raw.a"], Stateless(), 9)
    world.max_hours = 3
    world.land("raw.a", "append", late(0, 2, 4))
    found = plan(world.inputs())
    assert isinstance(found, SessionPlan)
    assert (found.load, numbers(found.hour_numbers)) == ("append", [0, 2, 4])


def test_a_day_is_never_cut() -> None:
    world = World(Stateful("changed"), ["raw.a"], DAY, max_hours=30)
    world.land("raw.a", "append", frozenset(range(START, START + 72)))
    world.through["raw.a"] = START + 71
    assert [len(hours) for hours, _, _ in played(world)] == [48, 24]


def test_a_backfill_of_many_hours_is_cut() -> None:
    for mode in (Stateless(), Stateful(), Sequential(chunk_hours=2)):
        world = loaded(["raw.a"], mode, 13)
        world.max_hours = 5
        decision = plan_rebuild(world.inputs(to_watermark=True), late(*range(14)), present=(), token="t")
        assert isinstance(decision, SessionPlan)
        assert numbers(decision.hour_numbers) == list(range(5))
        assert numbers(decision.pending) == list(range(5, 14))
        rebuild(world, late(*range(14)), "t")
        assert [hours for hours, _, _ in played(world)] == [[*range(5, 10)], [*range(10, 14)]]
        assert not world.committed.pending
