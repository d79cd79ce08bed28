"""The truth of some messages, written down by hand."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from lake_assets.demo.engagement_simulator import Message
from lake_assets.engagement.model.lakes import EMAIL_EVENT
from lake_assets_tests.engagement.oracle import Truth, truth
from lake_assets_tests.engagement.scenario import email

INGESTION, MUTATION = EMAIL_EVENT.topic("ingestion"), EMAIL_EVENT.topic("mutation")


def message(topic: str, values: dict[str, Any]) -> Message:
    return Message(topic, b"", json.dumps(values).encode(), 0)


def engagement(number: int, who_id: str, **values: Any) -> Message:
    """Engagement `e<number>` of acme."""
    return message(INGESTION, email(number, **{"org_id": "acme", "who_id": who_id, **values}))


def request(number: int, op: str, old_id: str, new_id: str | None = None, *, hour: int = 10, **values: Any) -> Message:
    """Request `r<number>` of acme."""
    named = {"org_id": "acme", "request_id": f"r{number}", "op": op, "old_id": old_id, "new_id": new_id}
    return message(MUTATION, {**named, "executed_at": f"2026-01-01T{hour:02}:00:00Z", **values})


def rows(*messages: Message) -> dict[str, tuple[str, str]]:
    found = truth(messages, EMAIL_EVENT, ("acme", "globex"))
    assert not found.dead
    return dict(found.rows)


def test_a_chain_is_followed_in_the_order_of_time() -> None:
    chain = (request(1, "merge", "b", "c", hour=11), request(2, "convert", "a", "b", hour=10))
    assert rows(engagement(1, "a"), engagement(2, "c"), *chain) == {"e1": ("acme", "c"), "e2": ("acme", "c")}


def test_at_the_same_instant_the_first_that_was_sent_counts_first() -> None:
    swap = (request(1, "merge", "a", "b"), request(2, "merge", "b", "a"))
    assert rows(engagement(1, "a"), engagement(2, "b"), *swap) == {"e1": ("acme", "a"), "e2": ("acme", "a")}


def test_a_request_may_come_before_its_engagement_and_counts_once() -> None:
    early = (request(1, "convert", "a", "b"), request(2, "merge", "b", "a", hour=12), request(1, "convert", "a", "b"))
    assert rows(*early, engagement(1, "a")) == {"e1": ("acme", "a")}


def test_a_deletion_is_of_one_org_alone() -> None:
    other = engagement(2, "a", org_id="globex")
    assert rows(engagement(1, "a"), other, request(1, "delete", "a")) == {"e2": ("globex", "a")}


def test_what_is_not_sound_is_dead_with_its_reason() -> None:
    dead = {
        engagement(1, "a")._replace(value=b"{"): "not JSON",
        engagement(1, " "): "missing field who_id",
        engagement(1, "a", engaged_at="2026-02-30T00:00:00Z"): "bad date engaged_at",
        engagement(1, "a", engagement={"opens": "many"}): "bad int engagement.opens",
        engagement(1, "a", org_id="initech"): "unknown org",
        request(1, "rename", "a", "b"): "unknown op",
        request(1, "merge", "a"): "missing field new_id",
    }
    found = truth([engagement(2, "a"), *dead], EMAIL_EVENT, ("acme", "globex"))
    assert found == Truth({"e2": ("acme", "a")}, Counter((m.topic, m.value, why) for m, why in dead.items()))
