"""When maintenance may take its turn. What it leaves of an erasure is held by `test_memory.py`."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake_assets.coordination import stream
from lake_assets.coordination.rules import Granted, Refused, Turn, decide
from lake_assets.engagement import maintenance, turn, turn_order
from lake_assets.engagement.dagster.assets import engagement_definitions
from lake_assets.engagement.lake import ANY_TURN, STREAMS, TURNS
from lake_assets.engagement.lakes import LAKES
from lake_assets.engagement.turn_order import MAINTENANCE, MAINTENANCE_PREDECESSORS, check_turns
from lake_assets.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES: Any = SimpleNamespace(lake=LAKES[0])
NOTHING: tuple[Any, Any] = (None, None)
"""Instead of a client and a session: neither is looked at."""
TURN_ORDER = {name: stream(name, predecessor) for name, predecessor in turn_order.TURN_ORDER.items()}


def test_the_streams_of_a_lake_and_its_maintenance_go_round() -> None:
    for lake in LAKES:
        check_turns(lake)
        assert {name: declared.accepts for name, declared in turn_order.turn_order(lake).items()} == {
            "ingestion": {"*"},
            "mutation": {"ingestion"},
            "retention": {"mutation"},
            "maintenance": {"retention", "maintenance"},
        }


ORDERS = st.fixed_dictionaries({name: st.sets(st.sampled_from((*TURNS, ANY_TURN)), min_size=1) for name in TURNS})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ORDERS)
def test_maintenance_and_retention_come_only_after_mutation_has_seen_all_rows(order: dict[str, set[str]]) -> None:
    """Whatever a file says: an accepted order is walked turn by turn, and never lets one come too early."""
    lake = replace(LAKES[0], turns={name: tuple(sorted(accepted)) for name, accepted in order.items()})
    try:
        check_turns(lake)
    except ConfigurationError:
        return
    declared = turn_order.turn_order(lake)
    reached, left = set(), [(name, name == "ingestion") for name in TURNS if declared[name].starts]
    while left:
        last, has_new_rows = left.pop()
        assert not (has_new_rows and last in ("retention", MAINTENANCE))
        reached.add((last, has_new_rows))
        for name in TURNS:
            if isinstance(decide(declared[name], Turn(last, "done", 1), {}), Granted):
                then = (name, name == "ingestion" or (has_new_rows and name != "mutation"))
                left += [then] if then not in reached else []
    assert {name for name, _ in reached} == set(TURNS)


def defined() -> None:
    engagement_definitions(
        LAKES[:1],
        seconds=dict.fromkeys(STREAMS, 1),
        maintenance_seconds=1,
        retain_hours=1,
        max_wait=1,
        clock=datetime.now,
    )


@pytest.mark.parametrize(
    "begin",
    [
        defined,
        lambda: turn.coordinator(cast("Any", SimpleNamespace(name="ingestion", tables=TABLES)), *NOTHING, timeout=1),
        lambda: maintenance.coordinator(TABLES, *NOTHING, timeout=1),
    ],
    ids=["Dagster", "a stream", "maintenance"],
)
def test_a_wrong_ring_is_refused_before_anything_is_touched(
    begin: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_order, "TURN_ORDER", {**turn_order.TURN_ORDER, "mutation": "nobody"})
    with pytest.raises(ConfigurationError, match="mutation waits for nobody, but no stream has that name"):
        begin()


@pytest.mark.parametrize("last", TURN_ORDER)
def test_it_comes_when_no_row_waits_for_mutation_and_no_batch_is_open(last: str) -> None:
    found = decide(TURN_ORDER[MAINTENANCE], Turn(last, "done", 1), {})
    assert isinstance(found, Granted if last in ("retention", MAINTENANCE) else Refused)
    interrupted = decide(TURN_ORDER[MAINTENANCE], Turn(last, "running", 1), {})
    assert isinstance(interrupted, Granted if last == MAINTENANCE else Refused)


def test_after_it_ingestion_goes_on_unless_somebody_waits_for_just_that() -> None:
    assert isinstance(decide(TURN_ORDER["ingestion"], Turn(MAINTENANCE, "done", 1), {}), Granted)
    waiting = {MAINTENANCE: frozenset(MAINTENANCE_PREDECESSORS)}
    assert isinstance(decide(TURN_ORDER["ingestion"], Turn("retention", "done", 1), waiting), Refused)
