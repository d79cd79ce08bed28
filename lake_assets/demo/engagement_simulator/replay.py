"""Replay the messages of a simulation one by one, and make messages for the demo. Pure.

The replay is right only for simulations in which every message is sound and every request finds its engagement in the
end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import networkx as nx
import numpy as np

from lake_assets.demo.engagement_simulator.flaws import Values, decode, encode, flaws
from lake_assets.demo.message import Message
from lake_assets.engagement.model.lake import EngagementLake, StreamName

Person = tuple[str, str]
"""An org, and the id of one of its people."""

RequestKey = tuple[str, str]
"""An org, and the id of one of its requests."""

FLAWED: tuple[StreamName, ...] = ("ingestion", "mutation")
"""The streams that `flawed` makes messages for."""


@dataclass(frozen=True)
class Replayed:
    """The result of a replay.

    Attributes:
        rows: Engagement id → person of the engagement after all requests.
        people: Ids, connected by the requests that were applied.
        unmatched: Requests that changed nothing, because no engagement ever has their old id.
    """

    rows: Mapping[str, Person]
    people: nx.Graph[Person]
    unmatched: frozenset[RequestKey] = frozenset()

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
        values = decode(message.value, lake)
        if message.topic == lake.topic("ingestion"):
            engagements.append(values)
        elif message.topic == lake.topic("mutation"):
            mutations.append(values)
    rows = {values["engagement_id"]: (values["org_id"], values["who_id"]) for values in engagements}
    people: nx.Graph[Person] = nx.Graph()
    unmatched = set()
    for request in _once_in_order(mutations):
        if not _apply(request, rows, people):
            unmatched.add(_key(request))
    return Replayed(rows, people, frozenset(unmatched))


def without_unmatched(messages: Iterable[Message], lake: EngagementLake) -> list[Message]:
    """Return the messages without the requests that never find an engagement. The rows that they leave are the same.

    Such requests would stay pending, and be reported as dead after their attempts.
    """
    all_messages = list(messages)
    unmatched = replay(all_messages, lake).unmatched
    topic = lake.topic("mutation")
    found = []
    for message in all_messages:
        if message.topic != topic or _key(decode(message.value, lake)) not in unmatched:
            found.append(message)
    return found


def _key(request: Values) -> RequestKey:
    return str(request["org_id"]), str(request["request_id"])


def _once_in_order(requests: Iterable[Values]) -> list[Values]:
    first: dict[RequestKey, Values] = {}
    for request in requests:
        first.setdefault(_key(request), request)
    return sorted(first.values(), key=lambda request: str(request["executed_at"]))


def _apply(request: Values, rows: dict[str, Person], people: nx.Graph[Person]) -> bool:
    """Apply a request, and return whether it found a row or carries a record."""
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
    return is_applied


def _rows_of(person: Person, rows: Mapping[str, Person]) -> list[str]:
    return [row for row, owner in rows.items() if owner == person]


def flawed(messages: Iterable[Message], lake: EngagementLake) -> Iterator[tuple[Message, str]]:
    """Yield a message with each possible flaw, made from the first of its stream, and the reason of its dead letter."""
    first: dict[str, Message] = {}
    for message in messages:
        first.setdefault(message.topic, message)
    for name in FLAWED:
        sound = first[lake.topic(name)]
        values = decode(sound.value, lake)
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
    return Message(lake.topic("retention"), org.encode(), encode(values, lake), at)
