"""A simulation as messages of a lake's topics, in the order in which they are sent. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from lake_assets.demo.engagement_simulator.activity import CALL, KINDS, OUTCOMES, Activity, Rows
from lake_assets.demo.engagement_simulator.flaws import TIME_FIELDS, Values, encode, flaws
from lake_assets.demo.engagement_simulator.model import Simulation
from lake_assets.demo.engagement_simulator.people import Ints, People, id_name, org_name, org_names
from lake_assets.demo.engagement_simulator.requests import Request, Requests
from lake_assets.engagement.model.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.model.messages import PATTERNS

POISON = 4
COLUMNS = ("sent", "number", "org", "who", "kind", "outcome", "template", "cadence", "rep")
TEXTS, COUNTS = 1_000, 10
"""So many values a field of a lake has, if it is text or a number."""


class Message(NamedTuple):
    """A message of a topic. key: the org, so that an org's messages stay in order. timestamp: ms since 1970."""

    topic: str
    key: bytes
    value: bytes
    timestamp: int


class _Sound(NamedTuple):
    """A message that has no flaw yet."""

    sent: int
    stream: StreamName
    org: str
    values: Values


def generate(simulation: Simulation, lake: EngagementLake) -> Iterator[Message]:
    """All messages, ascending by timestamp, until the last engagement is known. A step at a time is in memory."""
    people = People(simulation)
    activity = Activity(simulation, people)
    requests = Requests(simulation, people, activity)
    poison = _Poison(simulation, lake)
    for step in count():
        if step >= simulation.steps and activity.over and requests.over:
            return
        last = simulation.step_start(step + 1) - 1
        engagements = _engagements(simulation, lake, activity.live(step))
        mutations = _requests(simulation, lake, requests.mutations(step), "mutation", last)
        retention = _requests(simulation, lake, requests.retention(step), "retention", last)
        yield from poison.mixed_in(step, [*engagements, *mutations, *retention])


def batches(messages: Iterable[Message], size: int) -> Iterator[list[Message]]:
    """The same messages in lists of so many; the last may be shorter."""
    left = iter(messages)
    while batch := list(islice(left, size)):
        yield batch


class _Poison:
    """Spoiled copies of sound messages, each sent right after its original."""

    def __init__(self, simulation: Simulation, lake: EngagementLake) -> None:
        self._simulation = simulation
        self._topics = {stream: lake.topic(stream) for stream in STREAMS}
        self._flaws = {stream: flaws(lake, stream) for stream in STREAMS}

    def mixed_in(self, step: int, messages: list[_Sound]) -> Iterator[Message]:
        rng = np.random.default_rng((self._simulation.seed, POISON, step))
        spoiled = set(np.flatnonzero(rng.random(len(messages)) < self._simulation.poison).tolist())
        for place, message in enumerate(messages):
            yield self._message(message, encode(message.values))
            if place in spoiled:
                possible = self._flaws[message.stream]
                yield self._message(message, possible[int(rng.integers(len(possible)))].spoil(message.values))

    def _message(self, message: _Sound, value: bytes) -> Message:
        return Message(self._topics[message.stream], message.org.encode(), value, message.sent)


def _engagements(simulation: Simulation, lake: EngagementLake, rows: Rows) -> Iterator[_Sound]:
    orgs = org_names(simulation)
    columns = [rows[name].tolist() for name in COLUMNS]
    for row, engaged_at in zip(zip(*columns, strict=True), _times(rows["engaged"]), strict=True):
        sent, number, org, who, kind, outcome, template, cadence, rep = row
        values = {
            "org_id": orgs[org],
            "engagement_id": f"e-{simulation.seed}-{number}",
            "who_id": id_name(who),
            "kind": KINDS[kind],
            "template_id": None if kind == CALL else f"template-{template}",
            "cadence_id": f"cadence-{cadence}",
            "rep_id": f"rep-{rep}",
            "outcome": OUTCOMES[outcome],
            "engaged_at": engaged_at,
            "engagement": {name: _value(name, of, number, engaged_at) for name, of in lake.fields.items()},
        }
        yield _Sound(sent, "ingestion", orgs[org], values)


def _requests(
    simulation: Simulation, lake: EngagementLake, requests: list[Request], stream: StreamName, sent: int
) -> Iterator[_Sound]:
    executed_at = _times(np.array([request.executed_at for request in requests], dtype=np.int64))
    for request, at in zip(requests, executed_at, strict=True):
        org = org_name(simulation, request.org)
        values = {"org_id": org, **request.values, TIME_FIELDS[stream]: at}
        if request.record is not None:
            [engagement] = _engagements(simulation, lake, request.record)
            values["insert_record"] = engagement.values
        yield _Sound(sent, stream, org, values)


def _times(moments: Ints) -> list[str]:
    """Milliseconds since 1970 as ISO 8601, in UTC."""
    texts: list[str] = np.datetime_as_string(moments.astype("datetime64[ms]"), timezone="UTC").tolist()
    return texts


def _value(name: str, kind: str, number: int, engaged_at: str) -> Any:
    """What a field of a lake, of this type, holds in the engagement of this number."""
    if kind == "string":
        return f"{name} {number % TEXTS}"
    if kind == "boolean":
        return number % 2 == 0
    if kind in PATTERNS:
        return engaged_at if kind == "timestamp" else engaged_at[:10]
    return number % COUNTS
