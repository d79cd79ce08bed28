"""What a simulation sends: everything that a lake must cope with."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cache
from itertools import islice
from typing import Any

import pytest

from lake_assets.demo.engagement_simulator import KINDS, OUTCOMES, Simulation, encode, flaws, generate, org_names
from lake_assets.engagement.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.lakes import EMAIL_EVENT, LAKES
from lake_assets.engagement.messages import Format, ingestion_format, mutation_format
from lake_assets_tests.engagement.judge import reason

BUSY = Simulation(orgs=8, people=100, touches=3_000, requests=0.2, retention=0.02, late=0.1, poison=0.0)


@cache
def busy(stream: StreamName) -> tuple[dict[str, Any], ...]:
    """The values of a stream's messages in a busy simulation, all sound, in the order in which they are sent."""
    topic = EMAIL_EVENT.topic(stream)
    return tuple(json.loads(message.value) for message in generate(BUSY, EMAIL_EVENT) if message.topic == topic)


def formats(lake: EngagementLake) -> dict[str, Format]:
    return {lake.topic("ingestion"): ingestion_format(lake), lake.topic("mutation"): mutation_format(lake)}


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


@pytest.mark.parametrize("stream", ["ingestion", "mutation"])
@pytest.mark.parametrize("lake", LAKES, ids=lambda lake: lake.name)
def test_each_flaw_has_its_reason(lake: EngagementLake, stream: StreamName) -> None:
    """Each alone: the message that it is made from has none."""
    [message] = islice((m for m in generate(BUSY, lake) if m.topic == lake.topic(stream)), 1)
    shape, orgs, values = formats(lake)[message.topic], org_names(BUSY), json.loads(message.value)
    assert reason(encode(values, lake), shape, orgs) is None
    expected = [flaw.reason for flaw in flaws(lake, stream)]
    assert [reason(flaw.spoil(values), shape, orgs) for flaw in flaws(lake, stream)] == expected
