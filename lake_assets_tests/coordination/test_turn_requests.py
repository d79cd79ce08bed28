"""When to ask for a turn: played in a slow model of the lock, and read from a real ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake_assets.coordination.registry import DueStream, LockState, Registry, encode_turn, read_lock_state, why_not_now
from lake_assets.coordination.rules import ANY, Granted, Stream, Turn, decide, stream
from lake_assets_tests.coordination.conftest import Connect
from lake_assets_tests.coordination.turn_model import Model
from lake_assets_tests.coordination.world import PREDECESSORS, World

STREAMS = {name: stream(name, before) for name, before in PREDECESSORS.items()}
USUAL = {**STREAMS, "maintenance": stream("maintenance", ("retention",))}
RING = {
    "ingestion": stream("ingestion", "maintenance", first=True),
    **{name: stream(name, before) for name, before in PREDECESSORS.items() if name != "ingestion"},
    "maintenance": stream("maintenance", "retention"),
}
HOUR = 3600
DAY = 24 * HOUR
SHORT = {"ingestion": 60, "mutation": 60, "retention": 300, "maintenance": 600}
LASTS = {"ingestion": 20, "mutation": 25, "retention": 20, "maintenance": 40}
INTERVALS = st.fixed_dictionaries({name: st.sampled_from([60, 90, 300, 600, 1800]) for name in USUAL})
TIMES = st.fixed_dictionaries({name: st.integers(1, 60) for name in USUAL})


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    order=st.sampled_from([USUAL, RING]),
    seconds=INTERVALS,
    lasts=TIMES,
    off=st.sampled_from([frozenset[str](), frozenset({"maintenance"}), frozenset({"retention", "maintenance"})]),
)
def test_each_stream_gets_its_turn_again_and_again(
    order: dict[str, Stream], seconds: dict[str, int], lasts: dict[str, int], off: frozenset[str]
) -> None:
    """At the latest when all who come before it have had theirs. A sensor that is off stops a ring, but nobody else."""
    found = Model(order, seconds, lasts, by_sensor=True, off=off if order is USUAL else frozenset()).play(6 * HOUR)
    longest = sum(seconds.values()) + 3 * (sum(lasts.values()) + found.patience) + 300
    for name in order:
        if name not in found.off:
            begun = [0, *found.begun[name], 6 * HOUR]
            assert max(later - earlier for earlier, later in pairwise(begun)) <= longest
    assert found.failed == 0


def test_runs_of_three_lakes_at_short_intervals_hold_no_slot_while_they_wait() -> None:
    """Minutes of slots that three lakes hold in a day for nothing but waiting. docs/engagement.md has the figures."""
    before = Model(USUAL, SHORT, LASTS, by_sensor=False).play(DAY)
    after = Model(USUAL, SHORT, LASTS, by_sensor=True).play(DAY)
    minutes = [3 * found.held / 60 for found in (before, after)]
    assert minutes == [223, 0]
    assert after.failed == 0
    turns = [{name: len(found.begun[name]) for name in USUAL} for found in (before, after)]
    assert turns == [
        {"ingestion": 1440, "mutation": 1439, "retention": 288, "maintenance": 1},
        {"ingestion": 1151, "mutation": 1151, "retention": 231, "maintenance": 116},
    ]


NAMES = ("a", "b", "c")
DECLARED = st.fixed_dictionaries(
    {name: st.sets(st.sampled_from((*NAMES, ANY)), min_size=1).map(frozenset) for name in NAMES}
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(DECLARED, st.sampled_from(NAMES), st.fixed_dictionaries({name: st.integers(0, 200) for name in NAMES}))
def test_of_those_who_could_come_next_one_asks_and_later_all(
    declared: dict[str, frozenset[str]], last: str, since: dict[str, int]
) -> None:
    """Nobody asks in vain; and if somebody does not use its occasion, the others go on."""
    due = {name: DueStream(Stream(name, accepts), since[name]) for name, accepts in declared.items()}
    seen = LockState(Turn(last, "done", 1), changed_at=200, contenders=(), waiting={})
    able = [name for name in NAMES if isinstance(decide(due[name].stream, seen.last, {}), Granted)]

    def asking(now: int) -> list[str]:
        others = {name: [due[other] for other in NAMES if other != name] for name in NAMES}
        return [name for name in NAMES if why_not_now(due[name], others[name], seen, now=now, patience=90) is None]

    first = sorted(able, key=lambda name: (ANY in declared[name], since[name], name))[:1]
    assert asking(200) == first
    assert asking(291) == able
    held = LockState(seen.last, 200, ("c",), {})
    assert why_not_now(due["a"], [], held, now=291, patience=90) == "c holds the lock"


@pytest.fixture
def world(zookeeper: str, lock_name: str, tmp_path: Path) -> Iterator[World]:
    with World(zookeeper, lock_name, tmp_path, session_seconds=30) as world:
        yield world


def test_a_look_changes_nothing_and_shows_who_holds_the_lock_and_who_waits(world: World, connect: Connect) -> None:
    zk = connect()
    assert read_lock_state(zk, world.lock_name) == LockState(None, 0.0, (), {})
    with world.coordinator("ingestion", timeout=60).turn(max_wait=60):
        pass
    done = read_lock_state(zk, world.lock_name)
    assert done.last is not None
    assert (done.last.name, done.last.state, done.contenders) == ("ingestion", "done", ())
    assert done.changed_at > 0
    mutation = world.coordinator("mutation", timeout=60)
    with mutation.turn(max_wait=60):
        seen = read_lock_state(zk, world.lock_name)
        assert seen.last is not None
        assert (seen.last.name, seen.last.state, seen.contenders) == ("mutation", "running", ("mutation",))
    assert zk.get_children(f"/coordination/{world.lock_name}/lock") == []


def test_a_turn_and_its_time_are_of_one_read(connect: Connect, lock_name: str) -> None:
    """Of two reads, the second could be of a turn that was recorded between them."""
    looking, working = connect(), connect()
    path = Registry(looking, lock_name).turn_path
    done, running = Turn("ingestion", "done", 7), Turn("mutation", "running", 8)
    looking.create(path, encode_turn(done), makepath=True)
    recorded_at = looking.exists(path).last_modified
    read = looking.get_async

    def read_and_be_overtaken(node: str, *arguments: Any, **options: Any) -> Any:
        answer = read(node, *arguments, **options)
        answer.get()
        if node == path:
            time.sleep(0.01)  # ZooKeeper counts in milliseconds
            working.set(path, encode_turn(running))
        return answer

    looking.get_async = read_and_be_overtaken
    seen = read_lock_state(looking, lock_name)
    assert (seen.last, seen.changed_at) == (done, recorded_at)
    assert read_lock_state(looking, lock_name).last == running
