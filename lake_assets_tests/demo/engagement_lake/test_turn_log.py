"""The turns that the demo draws: from states in order, and as a real coordinator records them."""

from __future__ import annotations

import time
from pathlib import Path

from lake_assets.coordination.rules import Turn
from lake_assets.demo.engagement import DoneTurn, RecordedTurn, TurnLog, done_turns
from lake_assets.pages.charts import TakenTurn
from lake_assets_tests.coordination.conftest import lock_name
from lake_assets_tests.coordination.world import World

__all__ = ["lock_name"]


def test_a_turn_lasts_from_its_first_state_until_it_is_done() -> None:
    """A turn that went on after its process had died has two beginnings with tokens of its own."""
    records = [
        RecordedTurn(Turn("retention", "done", 3), 100.0),  # the watch began after it
        RecordedTurn(Turn("ingestion", "running", 7), 101.0),
        RecordedTurn(Turn("ingestion", "running", 9), 130.0),
        RecordedTurn(Turn("ingestion", "done", 9), 135.0),
        RecordedTurn(Turn("mutation", "running", 12, "ingestion"), 140.0),
        RecordedTurn(Turn("retention", "running", 15, "mutation"), 150.0),  # mutation was done shortly before
    ]
    assert [done.taken for done in done_turns(records)] == [
        TakenTurn("retention", 100.0, 100.0),
        TakenTurn("ingestion", 130.0, 135.0),
        TakenTurn("mutation", 140.0, 150.0),
    ]


def test_the_turns_of_other_clients_are_seen(zookeeper: str, lock_name: str, tmp_path: Path) -> None:
    with World(zookeeper, lock_name, tmp_path, session_seconds=30) as world:
        log = TurnLog(world.client(), lock_name)
        for number, name in enumerate(("ingestion", "mutation"), start=1):
            with world.coordinator(name, timeout=60).turn(max_wait=60):
                pass
            seen = wait_for(log, number)
    turns = [(done.turn.name, done.turn.predecessor, done.turn.state) for done in seen]
    assert turns == [("ingestion", None, "done"), ("mutation", "ingestion", "done")]
    assert all(0 < done.taken.began <= done.taken.ended for done in seen)


def wait_for(log: TurnLog, turns: int) -> list[DoneTurn]:
    """A watch comes after the change that it reports."""
    deadline = time.monotonic() + 120
    while len(log.done()) < turns and time.monotonic() < deadline:
        time.sleep(0.05)
    return log.done()
