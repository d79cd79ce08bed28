"""Batch by batch, with rows and requests late, the pure parts of mutation leave what replay leaves of all at once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from lake_assets.demo.engagement_simulator import Message, Simulation, generate
from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.engagement.requests import Alias, MutationRequest, aliases, changed_aliases, place_records
from lake_assets_tests.engagement.oracle import request_of, truth
from lake_assets_tests.engagement.requests.test_aliases import follow
from lake_assets_tests.engagement.requests.test_identity import START, chain

INGESTION = EMAIL_EVENT.topic("ingestion")
LATE = Simulation(orgs=6, people=150, touches=1000, poison=0, missing=0, retention=0, late=0.3, requests=0.4)
Row = tuple[str, datetime]
"""Its id, and when it engaged."""


@dataclass
class Org:
    """The rows of an org by their engagement, and its requests."""

    rows: dict[str, Row] = field(default_factory=dict)
    known: list[MutationRequest] = field(default_factory=list)

    def batch(self, arrived: dict[str, Row], requests: Sequence[MutationRequest]) -> None:
        """A turn of ingestion, and one of mutation."""
        set_aside = {request.record.engagement_id for request in self.known if request.record}
        self._move({row: found for row, found in arrived.items() if row not in set_aside}, requests)
        self.known += requests

    def _move(self, arrived: dict[str, Row], carried: Sequence[MutationRequest]) -> None:
        usual = by_id(aliases(carried))
        late = by_id(changed_aliases(self.known, carried, {who for who, _ in arrived.values()}))
        places = {row: (follow(usual[who], who, at), at) for row, (who, at) in self.rows.items()}
        for row, (who, at) in arrived.items():
            places[row] = follow(late[who], who, at), at
        days = {request.request_id: request.record.day or START for request in carried if request.record}
        for record in place_records(carried):
            day = days[record.request_id]
            places[record.engagement_id] = record.who_id, datetime(day.year, day.month, day.day, tzinfo=UTC)
        self.rows = {row: (who, at) for row, (who, at) in places.items() if who is not None}


def by_id(found: Iterable[Alias]) -> defaultdict[str, list[Alias]]:
    spans: defaultdict[str, list[Alias]] = defaultdict(list)
    for alias in found:
        spans[alias.old_id].append(alias)
    return spans


def cut(messages: Sequence[Message], batches: int) -> Iterator[Sequence[Message]]:
    size = -(-len(messages) // batches)
    return (messages[start : start + size] for start in range(0, len(messages), size))


def played(messages: Sequence[Message], batches: int) -> dict[str, tuple[str, str]]:
    """Engagement → its org and its id, after so many batches."""
    orgs: defaultdict[str, Org] = defaultdict(Org)
    seen: set[tuple[str, str]] = set()
    offset = 0
    for part in cut(messages, batches):
        arrived: defaultdict[str, dict[str, Row]] = defaultdict(dict)
        asked: defaultdict[str, list[MutationRequest]] = defaultdict(list)
        for message in part:
            values, offset = json.loads(message.value), offset + 1
            org = values["org_id"]
            if message.topic == INGESTION:
                engaged_at = datetime.fromisoformat(values["engaged_at"])
                arrived[org][values["engagement_id"]] = values["who_id"], engaged_at
            elif (org, values["request_id"]) not in seen:
                seen.add((org, values["request_id"]))
                asked[org].append(request_of(values, offset))
        for org in {*orgs, *arrived, *asked}:
            orgs[org].batch(arrived[org], asked[org])
    return {row: (org, who) for org, state in orgs.items() for row, (who, _) in state.rows.items()}


@pytest.mark.parametrize("seed", [0, 9])
def test_however_a_simulation_is_cut_replay_is_what_it_leaves(seed: int) -> None:
    messages = list(generate(Simulation(**{**vars(LATE), "seed": seed}), EMAIL_EVENT))
    expected = truth(messages, EMAIL_EVENT, {json.loads(message.value)["org_id"] for message in messages})
    assert [batches for batches in (1, 8, 24) if played(messages, batches) != expected.rows] == []


def left(*batches: tuple[str, Iterable[MutationRequest]]) -> dict[str, str]:
    """Row → its id, all rows having engaged before any request. batches: ids of rows that come, and requests."""
    org = Org()
    for number, (ids, requests) in enumerate(batches):
        org.batch({f"{i}{number}": (i, START - timedelta(minutes=1)) for i in ids}, list(requests))
    return {row: who for row, (who, _) in org.rows.items()}


def test_a_row_that_comes_after_requests_of_its_id_goes_on_as_those_before_it_did() -> None:
    first, second, third = chain("a>b b>c c>d")
    assert left(("b", [first, second]), ("a", [])) == {"b0": "c", "a1": "c"}
    assert left(("b", [first, second]), ("a", [third])) == {"b0": "d", "a1": "d"}
    assert left(("b", [second, first]), ("", [third]), ("a", [])) == {"b0": "d", "a2": "d"}
