"""What a simulation sends: always the same, of every kind, and never under an id that was given up."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cache
from itertools import chain, islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.demo.engagement_simulator import Simulation, batches, flaws, generate, org_names
from lake_assets.demo.engagement_simulator.activity import KINDS, OUTCOMES
from lake_assets.demo.engagement_simulator.flaws import encode
from lake_assets.engagement.model.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.model.lakes import EMAIL_EVENT, LAKES, MEETING_EVENT
from lake_assets.engagement.model.messages import Format, ingestion_format, mutation_format
from lake_assets.errors import ConfigurationError
from lake_assets_tests.engagement.judge import reason
from lake_assets_tests.engagement.oracle import truth

SIMULATIONS = st.builds(
    Simulation,
    seed=st.integers(0, 2**40),
    hours=st.integers(1, 30),
    orgs=st.integers(1, 30),
    people=st.integers(0, 300),
    touches=st.integers(0, 400),
    requests=st.floats(0, 1),
    retention=st.floats(0, 0.2),
    poison=st.floats(0, 0.2),
)
BUSY = Simulation(orgs=8, people=100, touches=3_000, requests=0.2, retention=0.02, late=0.1, poison=0.0)


@cache
def busy(stream: StreamName) -> tuple[dict[str, Any], ...]:
    """The values of a stream's messages in a busy simulation, all sound, in the order in which they are sent."""
    topic = EMAIL_EVENT.topic(stream)
    return tuple(json.loads(message.value) for message in generate(BUSY, EMAIL_EVENT) if message.topic == topic)


def formats(lake: EngagementLake) -> dict[str, Format]:
    return {lake.topic("ingestion"): ingestion_format(lake), lake.topic("mutation"): mutation_format(lake)}


@settings(max_examples=25, deadline=None)
@given(SIMULATIONS, st.integers(1, 500))
def test_a_seed_gives_the_same_messages_in_order_whatever_the_batches(simulation: Simulation, size: int) -> None:
    messages = list(generate(simulation, EMAIL_EVENT))
    assert list(chain.from_iterable(batches(generate(simulation, EMAIL_EVENT), size))) == messages
    assert messages == sorted(messages, key=lambda message: message.timestamp)
    dead = truth(messages, EMAIL_EVENT, org_names(simulation)).dead
    assert simulation.poison or not dead


def test_the_first_messages_are_those_of_a_simulation_that_ends_sooner() -> None:
    short, long = (Simulation(hours=hours, touches=200 * hours) for hours in (2, 6))
    first = list(islice(generate(short, EMAIL_EVENT), 300))
    assert list(islice(generate(long, EMAIL_EVENT), 300)) == first


def test_another_seed_has_other_orgs_and_sizes_differ_much() -> None:
    orgs = Counter(values["org_id"] for values in busy("ingestion"))
    assert set(orgs) == set(org_names(BUSY))
    assert not set(orgs) & set(org_names(Simulation(seed=2)))
    assert max(orgs.values()) > 5 * min(orgs.values())


def test_everything_happens() -> None:
    engagements, requests, retention = (busy(stream) for stream in STREAMS)
    assert {(e["kind"], e["outcome"]) for e in engagements} == {
        *((kind, None) for kind in KINDS if kind != "call"),
        *(("call", outcome) for outcome in OUTCOMES if outcome),
    }
    assert {request["op"] for request in requests} == {"convert", "merge", "delete"}
    assert any(request["old_id"] == request.get("new_id") for request in requests)
    carried = {request["insert_record"]["engagement_id"] for request in requests if "insert_record" in request}
    assert carried & {e["engagement_id"] for e in engagements}
    assert carried - {e["engagement_id"] for e in engagements}
    assert max(Counter(request["request_id"] for request in requests).values()) == 2
    assert max(map(len, _ways(requests))) >= 4
    assert {tuple(request) for request in retention} == {
        ("org_id", "request_id", "op", "ttl_days", "requested_at"),
        ("org_id", "request_id", "op", "who_id", "requested_at"),
    }
    ids = [engagement["engagement_id"] for engagement in engagements]
    assert len(set(ids)) == len(ids) > BUSY.touches


def _ways(requests: tuple[dict[str, Any], ...]) -> list[list[str]]:
    """The ways that ids went, each from an id that nothing was moved to: cycles are passed over."""
    ways: dict[tuple[str, str], list[str]] = {}
    for request in requests:
        if request["op"] == "delete" or request["old_id"] == request["new_id"]:
            continue
        way = ways.get((request["org_id"], request["old_id"]), [request["old_id"]])
        if request["new_id"] not in way:
            ways[request["org_id"], request["new_id"]] = [*way, request["new_id"]]
    return list(ways.values())


def test_some_requests_come_before_their_engagement() -> None:
    sent: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    early = 0
    for message in generate(BUSY, EMAIL_EVENT):
        values = json.loads(message.value)
        if message.topic == EMAIL_EVENT.topic("mutation"):
            sent[values["org_id"], values["old_id"]].add(values["executed_at"])
        elif message.topic == EMAIL_EVENT.topic("ingestion"):
            early += any(at >= values["engaged_at"] for at in sent[values["org_id"], values["who_id"]])
    assert early > 20


def test_nothing_that_happened_after_a_request_is_concerned_by_it() -> None:
    """So it makes no difference how much was known when requests were carried out: the truth is one."""
    followed = {}
    once: dict[str, dict[str, Any]] = {}
    for request in busy("mutation"):
        once.setdefault(request["request_id"], request)
    requests = sorted(once.values(), key=lambda request: request["executed_at"])
    for engagement in busy("ingestion"):
        since = [request for request in requests if request["executed_at"] >= engagement["engaged_at"]]
        followed[engagement["engagement_id"]] = engagement["org_id"], _led(engagement["who_id"], engagement, since)
    for place, request in enumerate(requests):
        if record := request.get("insert_record"):
            who = _led(record["who_id"], request, requests[place + 1 :])
            followed[record["engagement_id"]] = request["org_id"], who
    followed = {engagement: of for engagement, of in followed.items() if of[1] is not None}
    assert followed == truth(generate(BUSY, EMAIL_EVENT), EMAIL_EVENT, org_names(BUSY)).rows


def _led(who: str | None, of: dict[str, Any], requests: list[dict[str, Any]]) -> str | None:
    """Where requests of its org lead an id; None: nowhere."""
    for request in requests:
        if (request["org_id"], request["old_id"]) == (of["org_id"], who):
            who = request.get("new_id")
    return who


def test_nobody_is_engaged_or_renamed_under_an_id_after_its_erasure() -> None:
    erased = {
        (request["org_id"], request["who_id"]): request["requested_at"]
        for request in busy("retention")
        if request["op"] == "gdpr"
    }
    assert erased
    for values in chain(busy("ingestion"), busy("mutation")):
        at = values.get("engaged_at") or values["executed_at"]
        assert at <= erased.get((values["org_id"], values.get("who_id") or values["old_id"]), at)


@pytest.mark.parametrize("stream", ["ingestion", "mutation"])
@pytest.mark.parametrize("lake", LAKES, ids=lambda lake: lake.name)
def test_each_flaw_has_its_reason(lake: EngagementLake, stream: StreamName) -> None:
    """Each alone: the message that it is made from has none."""
    [message] = islice((m for m in generate(BUSY, lake) if m.topic == lake.topic(stream)), 1)
    shape, orgs, values = formats(lake)[message.topic], org_names(BUSY), json.loads(message.value)
    assert reason(encode(values, lake), shape, orgs) is None
    expected = [flaw.reason for flaw in flaws(lake, stream)]
    assert [reason(flaw.spoil(values), shape, orgs) for flaw in flaws(lake, stream)] == expected


def test_a_lake_names_what_is_simulated() -> None:
    topic = MEETING_EVENT.topic("ingestion")
    sent = [json.loads(message.value) for message in generate(BUSY, MEETING_EVENT) if message.topic == topic]
    assert {values["kind"] for values in sent} == {"invited", "accepted", "rescheduled", "declined", "held"}
    assert {values["outcome"] for values in sent} == {None, "next step", "no interest", "no show"}


def test_a_step_stays_small_at_any_scale() -> None:
    large = Simulation(touches=10_000_000, hours=1)
    assert max(map(large.touches_of, range(large.steps))) <= 10_000
    assert sum(map(large.touches_of, range(large.steps))) == large.touches


@pytest.mark.parametrize("wrong", [{"orgs": 0}, {"late": 1.5}, {"hours": 0}])
def test_a_simulation_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Simulation(**wrong)
