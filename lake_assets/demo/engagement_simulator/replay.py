"""What the messages of a simulation come to when they are replayed one by one, and messages for a demonstration. Pure.

Only for simulations in which every message is sound, and every request meets its engagement in the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from lake_assets.demo.engagement_simulator.flaws import encode, flaws
from lake_assets.demo.engagement_simulator.traffic import Message
from lake_assets.engagement.model.lake import EngagementLake, StreamName

Person = tuple[str, str]
"""An org, and the id of one of its people."""

FLAWED: tuple[StreamName, ...] = ("ingestion", "mutation")


@dataclass(frozen=True)
class Replayed:
    """rows: engagement id → whose it is in the end. people: their ids, connected by the requests that were applied."""

    rows: Mapping[str, Person]
    people: nx.Graph[Person]

    def ids(self, person: Person) -> set[Person]:
        """All ids of a person."""
        return set(nx.node_connected_component(self.people, person)) if person in self.people else {person}

    def without(self, person: Person) -> dict[str, Person]:
        """The rows that are left when a person is erased under every id."""
        ids = self.ids(person)
        return {row: whose for row, whose in self.rows.items() if whose not in ids}


def replay(messages: Iterable[Message], lake: EngagementLake) -> Replayed:
    """Engagements first, then each request in the order of time, on every row: as if nothing had come late."""
    values = [(message.topic, json.loads(message.value)) for message in messages]
    engagements, mutations = ([v for topic, v in values if topic == lake.topic(name)] for name in FLAWED)
    rows = {v["engagement_id"]: (v["org_id"], v["who_id"]) for v in engagements}
    people: nx.Graph[Person] = nx.Graph()
    once: dict[Person, Any] = {}
    for request in mutations:
        once.setdefault((request["org_id"], request["request_id"]), request)
    for request in sorted(once.values(), key=lambda v: str(v["executed_at"])):
        _act(request, rows, people)
    return Replayed(rows, people)


def _act(request: Mapping[str, Any], rows: dict[str, Person], people: nx.Graph[Person]) -> None:
    old, new = ((str(request["org_id"]), str(request.get(name))) for name in ("old_id", "new_id"))
    moved = [row for row, whose in rows.items() if whose == old]
    for row in moved:
        if request["op"] == "delete":
            del rows[row]
        else:
            rows[row] = new
    record = request.get("insert_record")
    if record:  # such a request waits for no row of its old id
        rows[record["engagement_id"]] = (str(request["org_id"]), record["who_id"])
    if (moved or record) and request["op"] != "delete":
        people.add_edge(old, new)


def flawed(messages: Iterable[Message], lake: EngagementLake) -> Iterator[tuple[Message, str]]:
    """A message with each flaw there is, made of the first of its stream, and the reason of its dead letter."""
    first = {message.topic: message for message in reversed(list(messages))}
    for name in FLAWED:
        sound = first[lake.topic(name)]
        for flaw in flaws(lake, name):
            yield sound._replace(value=flaw.spoil(json.loads(sound.value))), flaw.reason


def erasure(person: Person, lake: EngagementLake, at: int) -> Message:
    """A request to erase a person. at: when it was made and sent, in milliseconds since 1970."""
    org, who_id = person
    moment = str(np.datetime_as_string(np.datetime64(at, "ms"), timezone="UTC"))
    values = {"org_id": org, "request_id": "erasure", "op": "gdpr", "who_id": who_id, "requested_at": moment}
    return Message(lake.topic("retention"), org.encode(), encode(values), at)
