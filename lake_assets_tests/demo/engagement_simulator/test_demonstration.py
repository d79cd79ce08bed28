"""What the demo promises: its own replay, against the other one; and its broken messages, against a slow judge."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.demo.engagement_lake.scenes import SIMULATION
from lake_assets.demo.engagement_simulator import Simulation, flaws, generate, org_names
from lake_assets.demo.engagement_simulator.replay import FLAWED, erasure, flawed, replay, without_unmatched
from lake_assets.engagement.model.lakes import EMAIL_EVENT, LAKES
from lake_assets_tests.engagement.oracle import truth

SIMULATIONS = st.builds(
    Simulation,
    seed=st.integers(0, 2**40),
    hours=st.integers(1, 12),
    orgs=st.integers(1, 4),
    people=st.integers(0, 60),
    touches=st.integers(0, 300),
    requests=st.floats(0, 1),
    poison=st.just(0.0),
)


@settings(max_examples=40, deadline=None)
@given(SIMULATIONS)
def test_it_leaves_what_a_replay_row_by_row_leaves(simulation: Simulation) -> None:
    messages = list(generate(simulation, EMAIL_EVENT))
    found = replay(messages, EMAIL_EVENT)
    assert found.rows == truth(messages, EMAIL_EVENT, org_names(simulation)).rows
    for person in Counter(found.rows.values()):
        assert person not in found.without(person).values()


@settings(max_examples=40, deadline=None)
@given(SIMULATIONS)
def test_without_requests_that_find_nothing_the_same_rows_are_left(simulation: Simulation) -> None:
    messages = list(generate(simulation, EMAIL_EVENT))
    matched = without_unmatched(messages, EMAIL_EVENT)
    orgs = org_names(simulation)
    assert truth(matched, EMAIL_EVENT, orgs).rows == truth(messages, EMAIL_EVENT, orgs).rows
    assert not replay(matched, EMAIL_EVENT).unmatched


def test_the_demo_sends_no_request_that_would_stay_pending() -> None:
    messages = list(generate(SIMULATION, EMAIL_EVENT))
    assert len(messages) - len(without_unmatched(messages, EMAIL_EVENT)) == 9


def test_every_flaw_has_a_message_which_has_no_other() -> None:
    simulation = Simulation(touches=300, requests=0.3, poison=0)
    for lake in LAKES:
        found = list(flawed(generate(simulation, lake), lake))
        dead = truth([message for message, _ in found], lake, org_names(simulation)).dead
        assert Counter(reason for _, reason in found) == Counter(reason for _, _, reason in dead.elements())
        assert len(found) == sum(len(flaws(lake, name)) for name in FLAWED)


def test_a_request_to_erase_is_sound() -> None:
    for lake, at in product(LAKES, (0, 1_767_225_600_123)):
        message = erasure(("acme", "lead-1"), lake, at)
        assert (message.topic, message.timestamp) == (lake.topic("retention"), at)
        assert b'"requested_at":"' in message.value
