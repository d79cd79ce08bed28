"""A simulation as messages of a lake's topics, in the order in which they are sent. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from lake_assets.demo.engagement_simulator.activity import CALL, KINDS, OUTCOMES, Activity, Rows
from lake_assets.demo.engagement_simulator.flaws import RECORD_FIELD, TIME_FIELDS, Values, encode, flaws
from lake_assets.demo.engagement_simulator.model import Simulation
from lake_assets.demo.engagement_simulator.people import Ints, People, id_name, org_name, org_names
from lake_assets.demo.engagement_simulator.requests import Request, Requests
from lake_assets.demo.message import Message
from lake_assets.engagement.model.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.model.messages import PATTERNS

POISON = 4
"""Number of this use of random numbers, as in `activity.py`."""

DISTINCT_TEXTS = 1_000
DISTINCT_NUMBERS = 10
"""How many different values a field of an engagement has."""

DATE_LENGTH = len("2026-01-01")


class _Row(NamedTuple):
    """Columns of an engagement that its message is made of."""

    sent: int
    number: int
    org: int
    who: int
    kind: int
    outcome: int
    template: int
    cadence: int
    rep: int
    engaged_at: str


NUMBERS = _Row._fields[:-1]
"""Columns that a row has as they are; `engaged_at` is formatted."""


class _Sound(NamedTuple):
    """A message without a flaw, not encoded yet."""

    sent: int
    stream: StreamName
    org: str
    values: Values


def generate(simulation: Simulation, lake: EngagementLake) -> Iterator[Message]:
    """Yield all messages of a simulation, ascending by timestamp. One step at a time is in memory."""
    people = People(simulation)
    activity = Activity(simulation, people)
    requests = Requests(simulation, people, activity)
    poison = _Poison(simulation, lake)
    for step in count():
        if step >= simulation.steps and activity.over and requests.over:
            return
        end = simulation.step_start(step + 1) - 1
        # The order of these three matters: each changes what people and activity hold.
        messages = list(_engagements(simulation, lake, activity.live(step)))
        messages += _requests(simulation, lake, requests.mutations(step), "mutation", end)
        messages += _requests(simulation, lake, requests.retention(step), "retention", end)
        yield from poison.mixed_in(step, messages)


def batches(messages: Iterable[Message], size: int) -> Iterator[list[Message]]:
    """Yield the same messages in lists of `size`; the last list may be shorter."""
    left = iter(messages)
    batch = list(islice(left, size))
    while batch:
        yield batch
        batch = list(islice(left, size))


class _Poison:
    """Adds spoiled copies of sound messages, each right after its original."""

    def __init__(self, simulation: Simulation, lake: EngagementLake) -> None:
        self._simulation = simulation
        self._lake = lake
        self._topics = {stream: lake.topic(stream) for stream in STREAMS}
        self._flaws = {stream: flaws(lake, stream) for stream in STREAMS}

    def mixed_in(self, step: int, messages: list[_Sound]) -> Iterator[Message]:
        rng = np.random.default_rng((self._simulation.seed, POISON, step))
        is_spoiled = (rng.random(len(messages)) < self._simulation.poison).tolist()
        for message, spoiled in zip(messages, is_spoiled, strict=True):
            yield self._encoded(message, encode(message.values, self._lake))
            if spoiled:
                possible = self._flaws[message.stream]
                flaw = possible[int(rng.integers(len(possible)))]
                yield self._encoded(message, flaw.spoil(message.values))

    def _encoded(self, message: _Sound, value: bytes) -> Message:
        topic = self._topics[message.stream]
        return Message(topic, message.org.encode(), value, message.sent)


def _engagements(simulation: Simulation, lake: EngagementLake, rows: Rows) -> Iterator[_Sound]:
    orgs = org_names(simulation)
    columns = [rows[name].tolist() for name in NUMBERS]
    columns.append(_format_times(rows["engaged"]))
    for row in map(_Row, *columns):
        org = orgs[row.org]
        message = {
            "org_id": org,
            "engagement_id": f"e-{simulation.seed}-{row.number}",
            "who_id": id_name(row.who),
            "kind": _named(lake, KINDS[row.kind]),
            "template_id": None if row.kind == CALL else f"template-{row.template}",
            "cadence_id": f"cadence-{row.cadence}",
            "rep_id": f"rep-{row.rep}",
            "outcome": _named(lake, OUTCOMES[row.outcome]),
            "engaged_at": row.engaged_at,
            "engagement": _fields(lake, row.number, row.engaged_at),
        }
        yield _Sound(row.sent, "ingestion", org, message)


def _requests(
    simulation: Simulation,
    lake: EngagementLake,
    requests: list[Request],
    stream: StreamName,
    sent: int,
) -> Iterator[_Sound]:
    moments = np.array([request.executed_at for request in requests], dtype=np.int64)
    for request, executed_at in zip(requests, _format_times(moments), strict=True):
        org = org_name(simulation, request.org)
        values = {"org_id": org, **request.values, TIME_FIELDS[stream]: executed_at}
        if request.record is not None:
            [engagement] = _engagements(simulation, lake, request.record)
            values[RECORD_FIELD] = engagement.values
        yield _Sound(sent, stream, org, values)


def _format_times(moments: Ints) -> list[str]:
    """Return milliseconds since 1970-01-01 UTC as ISO 8601, in UTC."""
    texts: list[str] = np.datetime_as_string(moments.astype("datetime64[ms]"), timezone="UTC").tolist()
    return texts


def _named(lake: EngagementLake, word: str | None) -> str | None:
    """Return a kind or an outcome of the simulator as the lake calls it."""
    return None if word is None else lake.simulated_as.get(word, word)


def _fields(lake: EngagementLake, number: int, engaged_at: str) -> dict[str, Any]:
    """Return the lake's own fields of an engagement."""
    return {name: _value(name, kind, number, engaged_at) for name, kind in lake.fields.items()}


def _value(name: str, kind: str, number: int, engaged_at: str) -> Any:
    if kind == "string":
        return f"{name} {number % DISTINCT_TEXTS}"
    if kind == "boolean":
        return number % 2 == 0
    if kind == "timestamp":
        return engaged_at
    if kind in PATTERNS:
        return engaged_at[:DATE_LENGTH]
    return number % DISTINCT_NUMBERS
