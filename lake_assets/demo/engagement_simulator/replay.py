"""Replay the messages of a simulation one by one, and make messages for the demo. Pure.

The replay is right only for simulations in which every message is sound and every request finds its engagement in the
end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from lake_assets.demo.engagement_simulator.flaws import Values, encode, flaws
from lake_assets.demo.message import Message
from lake_assets.engagement.model.lake import EngagementLake, StreamName

Person = tuple[str, str]
"""An org, and the id of one of its people."""

FLAWED: tuple[StreamName, ...] = ("ingestion", "mutation")
"""The streams that `flawed` makes messages for."""


@dataclass(frozen=True)
class Replayed:
    """The result of a replay.

    Attributes:
        rows: Engagement id → person of the engagement after all requests.
        people: Ids, connected by the requests that were applied.
    """

    rows: Mapping[str, Person]
    people: nx.Graph[Person]

    def ids(self, person: Person) -> set[Person]:
        """Return all ids of a person."""
        if person not in self.people:
            return {person}
        return set(nx.node_connected_component(self.people, person))

    def without(self, person: Person) -> dict[str, Person]:
        """Return the rows that are left after a person was erased under every id."""
        erased = self.ids(person)
        return {row: owner for row, owner in self.rows.items() if owner not in erased}


def replay(messages: Iterable[Message], lake: EngagementLake) -> Replayed:
    """Insert all engagements, then apply each request once, in the order of time: the result without late messages."""
    engagements: list[Values] = []
    mutations: list[Values] = []
    for message in messages:
        values = json.loads(message.value)
        if message.topic == lake.topic("ingestion"):
            engagements.append(values)
        elif message.topic == lake.topic("mutation"):
            mutations.append(values)
    rows = {values["engagement_id"]: (values["org_id"], values["who_id"]) for values in engagements}
    people: nx.Graph[Person] = nx.Graph()
    for request in _once_in_order(mutations):
        _apply(request, rows, people)
    return Replayed(rows, people)


def _once_in_order(requests: Iterable[Values]) -> list[Values]:
    first: dict[tuple[str, str], Values] = {}
    for request in requests:
        first.setdefault((request["org_id"], request["request_id"]), request)
    return sorted(first.values(), key=lambda request: str(request["executed_at"]))


def _apply(request: Values, rows: dict[str, Person], people: nx.Graph[Person]) -> None:
    org = str(request["org_id"])
    old = (org, str(request.get("old_id")))
    new = (org, str(request.get("new_id")))
    moved = _rows_of(old, rows)
    if request["op"] == "delete":
        for row in moved:
            del rows[row]
    else:
        rows.update(dict.fromkeys(moved, new))
    # A request with a record is applied even if its old id has no row.
    record = request.get("insert_record")
    if record:
        rows[record["engagement_id"]] = (org, record["who_id"])
    is_applied = bool(moved or record)
    if is_applied and request["op"] != "delete":
        people.add_edge(old, new)


def _rows_of(person: Person, rows: Mapping[str, Person]) -> list[str]:
    return [row for row, owner in rows.items() if owner == person]


def flawed(messages: Iterable[Message], lake: EngagementLake) -> Iterator[tuple[Message, str]]:
    """Yield a message with each possible flaw, made from the first of its stream, and the reason of its dead letter."""
    first: dict[str, Message] = {}
    for message in messages:
        first.setdefault(message.topic, message)
    for name in FLAWED:
        sound = first[lake.topic(name)]
        values: dict[str, Any] = json.loads(sound.value)
        for flaw in flaws(lake, name):
            yield sound._replace(value=flaw.spoil(values)), flaw.reason


def erasure(person: Person, lake: EngagementLake, at: int) -> Message:
    """Return a request to erase a person.

    Args:
        person: The person, under any id.
        lake: The lake whose retention topic gets the request.
        at: When the request is made and sent, in milliseconds since 1970-01-01 UTC.
    """
    org, who_id = person
    requested_at = str(np.datetime_as_string(np.datetime64(at, "ms"), timezone="UTC"))
    values = {
        "org_id": org,
        "request_id": "erasure",
        "op": "gdpr",
        "who_id": who_id,
        "requested_at": requested_at,
    }
    return Message(lake.topic("retention"), org.encode(), encode(values), at)
