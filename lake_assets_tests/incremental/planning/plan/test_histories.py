"""Histories of plans against a full rebuild: whatever happens in whatever order, no changed hour is lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.base.hours import HOUR, Grain
from lake_assets.incremental.declaration import Mode, Sequential, Stateful, Stateless
from lake_assets.incremental.engine.model import MAX_HOURS, NoSession
from lake_assets.incremental.engine.planning import plan
from lake_assets_tests.incremental.planning.plan.random_inputs import (
    HISTORIES,
    SHIFT,
    SPAN,
    START,
    grains,
    hours,
    modes,
    some_hours,
    thorough,
    together,
)
from lake_assets_tests.incremental.planning.plan.world import World, act, run

EVERY_MODE: list[Mode] = [
    Stateless(),
    Stateful(),
    Stateful("changed"),
    Stateful("range", 4),
    Sequential(),
    Sequential(5),
    Sequential(chunk_hours=3),
]

KINDS = [
    *("append", "append", "rewrite", "none", "complete", "complete", "run", "run", "rebuild"),
    *("break", "mend", "new code"),
]

actions = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 2),
        some_hours,
        hours,
    ),
    max_size=25,
)


@given(modes, grains, st.integers(1, 3), actions, st.sampled_from([2, 5, MAX_HOURS]))
@settings(thorough, max_examples=HISTORIES)
def test_no_changed_hour_is_ever_lost(
    mode: Mode, grain: Grain, count: int, steps: list[tuple[str, int, frozenset[int], int]], max_hours: int
) -> None:
    names = [f"raw.s{i}" for i in range(1 if isinstance(mode, Stateless) else count)]
    world = World(mode, names, grain, max_hours=max_hours)
    for step in steps:
        act(world, step)
    end = max(together({START + SPAN - 1}, grain))
    world.through = dict.fromkeys(world.names, end)
    run(world, rounds=3 + 2 * SPAN)
    world.land(world.names[0], "rewrite", frozenset(world.bad))
    world.bad.clear()
    run(world, rounds=3 + 2 * SPAN)
    assert isinstance(plan(world.inputs()), NoSession), "it comes to rest"
    assert not world.committed.pending | world.committed.held_hours
    assert world.committed.complete_through == end
    world.check()


@pytest.mark.slow
def test_no_changed_hour_is_ever_lost_in_long_histories() -> None:
    for seed in range(HISTORIES):
        r = random.Random(seed)
        mode = r.choice(EVERY_MODE)
        names = [f"raw.s{i}" for i in range(1 if isinstance(mode, Stateless) else r.randint(1, 3))]
        world = World(mode, names, r.choice([HOUR, SHIFT]))
        for _ in range(60):
            kind = r.choice(KINDS)
            touched = frozenset(r.sample(range(START, START + SPAN), r.randint(0, 3)))
            act(world, (kind, r.randint(0, 2), touched, START + r.randrange(SPAN)))
