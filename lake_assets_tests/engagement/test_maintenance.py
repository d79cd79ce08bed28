"""When maintenance may take its turn. What it leaves of an erasure is held by `test_memory.py`."""

from __future__ import annotations

import pytest

from lake_assets.coordination import check_ring, stream
from lake_assets.coordination.rules import Granted, Refused, Turn, decide
from lake_assets.engagement.maintenance import AFTER, MAINTENANCE
from lake_assets.engagement.turn import PREDECESSORS

RING = {name: stream(name, predecessor) for name, predecessor in {**PREDECESSORS, MAINTENANCE: AFTER}.items()}


def test_the_streams_of_a_lake_and_its_maintenance_go_round() -> None:
    check_ring(RING.values())


@pytest.mark.parametrize("last", RING)
def test_it_comes_when_no_row_waits_for_mutation_and_no_batch_is_open(last: str) -> None:
    found = decide(RING[MAINTENANCE], Turn(last, "done", 1), {})
    assert isinstance(found, Granted if last in ("retention", MAINTENANCE) else Refused)
    interrupted = decide(RING[MAINTENANCE], Turn(last, "running", 1), {})
    assert isinstance(interrupted, Granted if last == MAINTENANCE else Refused)


def test_after_it_ingestion_goes_on_unless_somebody_waits_for_just_that() -> None:
    assert isinstance(decide(RING["ingestion"], Turn(MAINTENANCE, "done", 1), {}), Granted)
    waiting = {MAINTENANCE: frozenset(AFTER)}
    assert isinstance(decide(RING["ingestion"], Turn("retention", "done", 1), waiting), Refused)
