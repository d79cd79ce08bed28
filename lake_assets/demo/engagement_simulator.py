"""Simulated sales engagement as messages of a lake's topics: late, in chains, and with flaws on purpose.

Everything is a function of one `Simulation` and the lake: the same values give the same messages in the same order. An
engagement has the id that its person has at that moment, and may become known later. Each request has a millisecond of
its own. Ids count people of an org, so the same id means different people in different orgs. A lead becomes the contact
of the same number, the contact is merged into another one, and that one is merged again: so chains of ids arise.

The producer is idempotent, so its own retries write nothing twice. If a person sends a simulation again, its messages
are in the topics twice, with the same ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, count, islice
from math import log
from random import Random
from typing import Any

import networkx as nx
from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Delivered

from lake_assets.base.hours import parse_hour
from lake_assets.connections.kafka import client, remedy_of
from lake_assets.demo.message import Message as Message
from lake_assets.engagement.lake import EngagementLake, StreamName
from lake_assets.engagement.messages import NOT_JSON, PATTERNS, UNKNOWN_ORG
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.errors import ServiceError


@dataclass(frozen=True)
class Simulation:
    """Organizations, their people, and what sales reps do. Shares are between 0 and 1.

    Attributes:
        seed: Seed of all that is random. The names of orgs contain it, so two simulations with different seeds have
            nothing in common.
        start: First hour, as an hour key.
        hours: Number of hours in which reps act. The effects of their actions may come later.
        orgs: Number of organizations.
        people: Number of people of all orgs. The n-th org has 1/n of the people of the first, and at least two.
        touches: Number of emails sent and calls made. Opens, replies and bounces are additional engagements.
        late: Share of engagements that become known some hours after they happened.
        requests: Conversions, merges and deletions for each touch.
        deletions: Share of requests that delete.
        missing: Share of requests for an unknown id whose engagement never becomes known; of others it comes later.
        retention: Requests to erase a person or to limit the age of an org's engagements, for each touch.
        poison: Messages that cannot become a row, for each sound message.
    """

    seed: int = 1
    start: str = "2026-01-01-00:00"
    hours: int = 24
    orgs: int = 20
    people: int = 2_000
    touches: int = 5_000
    late: float = 0.03
    requests: float = 0.06
    deletions: float = 0.08
    missing: float = 0.25
    retention: float = 0.004
    poison: float = 0.005


CALLS, BOUNCED, OPENED, REPLIED = 0.25, 0.03, 0.4, 0.25
"""Of touches; of emails; of delivered emails; of opened ones."""

OLD = 0.02
"""Share of engagements that are imported: they happened up to 400 days earlier."""

EARLY, DATED, REPEATED, CYCLES, RECORDS, REPLACING = 0.08, 0.5, 0.03, 0.03, 0.05, 0.5
"""Shares of requests: for an id without a known engagement; bound to their day; sent again; reverted conversions; of
conversions and merges those that carry the record of a call; of these records those that replace an engagement."""

KINDS = ("sent", "opened", "replied", "bounced", "call")
OUTCOMES = (None, "meaningful contact", "not interested", "left voicemail")
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
Values = Mapping[str, Any]
"""The fields of a message."""

Event = Callable[[int], "_Sent | None"]
"""What happens at a moment, in milliseconds since 1970-01-01 UTC: it may cause later events, and send a message."""

_Sent = tuple[StreamName, Values]


def org_names(simulation: Simulation) -> tuple[str, ...]:
    """Return the org_ids of a simulation, largest org first. Simulations with different seeds have different ones."""
    return tuple(f"org-{simulation.seed}-{org:04}" for org in range(simulation.orgs))


def generate(simulation: Simulation, lake: EngagementLake) -> Iterator[Message]:
    """Yield all messages of a simulation, ascending by timestamp. What is still to happen is in memory."""
    random = Random(f"poison {simulation.seed}")
    possible = {stream: flaws(lake, stream) for stream in TIME_FIELDS}
    for moment, (stream, values) in _Play(simulation, lake).messages():
        sound = Message(lake.topic(stream), str(values["org_id"]).encode(), encode(values, lake), moment)
        yield sound
        if random.random() < simulation.poison:
            yield sound._replace(value=random.choice(possible[stream]).spoil(values))


def batches(messages: Iterable[Message], size: int) -> Iterator[list[Message]]:
    """Yield the same messages in lists of `size`; the last list may be shorter."""
    left = iter(messages)
    while batch := list(islice(left, size)):
        yield batch


class _Org:
    """The people of an org, and the ids that they have now."""

    def __init__(self, name: str, people: int) -> None:
        self.name = name
        self.ids = [f"lead-{number}" for number in range(people)]
        self.leads = (f"lead-{number}" for number in count(people))
        self.last: str | None = None  # the engagement that became known last

    def rename(self, old: str, new: str) -> None:
        self.ids = [new if each == old else each for each in self.ids]


class _Play:
    """All events in the order of time."""

    def __init__(self, simulation: Simulation, lake: EngagementLake) -> None:
        self.simulation, self.lake, self.random = simulation, lake, Random(f"engagement {simulation.seed}")
        self.start = parse_hour(simulation.start, where="The simulation's start") * HOUR
        total = sum(1 / number for number in range(1, simulation.orgs + 1))
        shares = [1 / number / total for number in range(1, simulation.orgs + 1)]
        self.orgs = [
            _Org(name, max(2, int(simulation.people * share)))
            for name, share in zip(org_names(simulation), shares, strict=True)
        ]
        self.shares = list(accumulate(shares))
        self.coming: list[tuple[int, int, Event]] = []
        self.numbers, self.requests, self.engagements = count(), count(1), count()
        self.executed = self.start

    def at(self, moment: int, event: Event) -> None:
        heappush(self.coming, (moment, next(self.numbers), event))

    def messages(self) -> Iterator[tuple[int, _Sent]]:
        """Yield each message with its timestamp."""
        touches, length = self.simulation.touches, self.simulation.hours * HOUR
        for touch in range(touches + 1):
            began = self.start + length * touch // max(touches, 1)
            while self.coming and (touch == touches or self.coming[0][0] < began):
                moment, _, event = heappop(self.coming)
                if sent := event(moment):
                    yield moment, sent
            if touch < touches:
                self.at(began + self.random.randrange(max(1, length // touches)), self.touch)

    def touch(self, moment: int) -> None:
        """An email or a call, and at times a request."""
        org, random, simulation = self.some_org(), self.random, self.simulation
        person = random.randrange(len(org.ids))
        kind = "call" if random.random() < CALLS else "sent"
        self.engage(org, person, kind, random.randrange(40), random.randrange(12), random.randrange(8), moment)
        if random.random() < simulation.requests:
            self.request(self.some_org(), max(moment, self.executed + 1))
        if random.random() < simulation.retention:
            self.at(moment, partial(self.retain, self.some_org()))

    def some_org(self) -> _Org:
        return self.random.choices(self.orgs, cum_weights=self.shares)[0]

    def delay(self, minutes: int) -> int:
        """Draw a log-normal delay in milliseconds, 12 hours at most. minutes: median."""
        return min(12 * HOUR, int(self.random.lognormvariate(log(minutes * MINUTE), 1.0)))

    def engage(self, org: _Org, person: int, kind: str, template: int, cadence: int, rep: int, moment: int) -> None:
        """An engagement happens: its message is sent at once or late, and others may follow from it."""
        random = self.random
        engaged = moment - (DAY * random.randint(1, 400) if random.random() < OLD else 0)
        sent = moment + (self.delay(90) if random.random() < self.simulation.late else 0)
        outcome = random.choices(OUTCOMES[1:], (0.2, 0.3, 0.5))[0] if kind == "call" else None
        values = self.engagement(org, org.ids[person], kind, outcome, engaged, (template, cadence, rep))
        self.at(sent, partial(self.send, org, values))
        follow, minutes = None, 0
        if kind == "sent":
            if random.random() < BOUNCED:
                follow, minutes = "bounced", 1
            elif random.random() < OPENED:
                follow, minutes = "opened", 40
        elif kind == "opened" and random.random() < REPLIED:
            follow, minutes = "replied", 20
        if follow:
            self.at(moment + self.delay(minutes), partial(self.engage, org, person, follow, template, cadence, rep))

    def send(self, org: _Org, values: Values, moment: int) -> _Sent:
        org.last = values["engagement_id"]
        return "ingestion", values

    def engagement(
        self, org: _Org, who: str, kind: str, outcome: str | None, engaged: int, of: tuple[int, int, int] = (0, 0, 0)
    ) -> dict[str, Any]:
        number, engaged_at, named = next(self.engagements), _text(engaged), self.lake.simulated_as
        return {
            "org_id": org.name,
            "engagement_id": f"e-{self.simulation.seed}-{number}",
            "who_id": who,
            "kind": named.get(kind, kind),
            "template_id": None if kind == "call" else f"template-{of[0]}",
            "cadence_id": f"cadence-{of[1]}",
            "rep_id": f"rep-{of[2]}",
            "outcome": outcome and named.get(outcome, outcome),
            "engaged_at": engaged_at,
            "engagement": {name: _field(name, kind, number, engaged_at) for name, kind in self.lake.fields.items()},
        }

    def call(self, org: _Org, who: str, engaged: int) -> dict[str, Any]:
        return self.engagement(org, who, "call", OUTCOMES[1], engaged)

    def request(self, org: _Org, moment: int) -> None:
        """Somebody gets another id, or is deleted."""
        self.executed, random, simulation = moment, self.random, self.simulation
        if random.random() < EARLY:
            old = next(org.leads)
            if random.random() >= simulation.missing:
                late = self.call(org, old, moment)
                self.at(moment + random.randint(15, 120) * MINUTE, partial(self.send, org, late))
            self.mutate(org, "convert", old, _contact(old))
            return
        old = random.choice(org.ids)
        if random.random() < simulation.deletions:
            org.rename(old, next(org.leads))
            self.mutate(org, "delete", old)
        elif not old.startswith("lead"):
            new = random.choice(org.ids)
            org.rename(old, new)
            self.mutate(org, "merge", old, new)
        else:
            new = _contact(old)
            self.mutate(org, "convert", old, new)
            if random.random() < CYCLES:
                self.executed += 1
                self.mutate(org, "merge", new, old)
            else:
                org.rename(old, new)

    def mutate(self, org: _Org, op: str, old: str, new: str | None = None) -> None:
        random, moment = self.random, self.executed
        values = self.values(org, op=op, old_id=old)
        if new is not None:
            values["new_id"] = new
        if random.random() < DATED:
            values["engagement_date"] = _text(moment)[: len("2026-01-01")]
        values["executed_at"] = _text(moment)
        if new is not None and random.random() < RECORDS:
            record = values["insert_record"] = self.call(org, new, moment)
            if org.last is not None and random.random() < REPLACING:
                record["engagement_id"] = org.last
        self.at(moment, lambda _: ("mutation", values))
        if random.random() < REPEATED:
            self.at(moment + 15 * MINUTE, lambda _: ("mutation", values))

    def retain(self, org: _Org, moment: int) -> _Sent:
        """A policy of an org, or the erasure of a person."""
        if self.random.random() < 0.5:
            values = self.values(org, op="ttl", ttl_days=self.random.choice((30, 90, 365)))
        else:
            who = self.random.choice(org.ids)
            org.rename(who, next(org.leads))
            values = self.values(org, op="gdpr", who_id=who)
        return "retention", {**values, "requested_at": _text(moment)}

    def values(self, org: _Org, **of: Any) -> dict[str, Any]:
        return {"org_id": org.name, "request_id": f"r-{self.simulation.seed}-{next(self.requests)}", **of}


def _contact(lead: str) -> str:
    return lead.replace("lead", "contact")


def _text(moment: int) -> str:
    """Return milliseconds since 1970-01-01 UTC as ISO 8601, in UTC."""
    found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=moment)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _field(name: str, kind: str, number: int, engaged_at: str) -> Any:
    """Return the value of one of the lake's own fields."""
    if kind == "string":
        return f"{name} {number % 1_000}"
    if kind == "boolean":
        return number % 2 == 0
    if kind == "timestamp":
        return engaged_at
    return engaged_at[: len("2026-01-01")] if kind in PATTERNS else number % 10


RECORD_FIELD = "insert_record"
BAD_VALUE = "soon"
"""Neither a date, nor a number, nor an operation."""

TIME_FIELDS: Mapping[StreamName, str] = {
    "ingestion": "engaged_at",
    "mutation": "executed_at",
    "retention": "requested_at",
}


@dataclass(frozen=True)
class Flaw:
    """One way in which a message can be wrong.

    Attributes:
        reason: Reason of the dead letter.
        spoil: Takes the values of a sound message and returns the bytes of a message with this flaw alone.
    """

    reason: str
    spoil: Callable[[Values], bytes]


def encode(values: Values, lake: EngagementLake) -> bytes:
    """Return a message's value: a JSON object in UTF-8, without spaces, with the keys of the lake's messages."""
    named = _renamed(values, lake.message_keys, RECORD_FIELD)
    return json.dumps(named, separators=(",", ":")).encode()


def decode(value: bytes, lake: EngagementLake) -> Values:
    """Return the fields of a valid message."""
    names = {key: name for name, key in lake.message_keys.items()}
    return _renamed(json.loads(value), names, lake.message_key(RECORD_FIELD))


def _renamed(values: Values, names: Mapping[str, str], record: str) -> dict[str, Any]:
    """Return values under other names, also those of the record that they contain under the name `record`."""
    found = {names.get(name, name): value for name, value in values.items()}
    if values.get(record):
        found[names.get(record, record)] = _renamed(values[record], names, record)
    return found


def flaws(lake: EngagementLake, stream: StreamName) -> tuple[Flaw, ...]:
    """Return every flaw that a message of a stream's topic can have."""

    def changed(reason: str, **wrong: Any) -> Flaw:
        return Flaw(reason, lambda values: encode({**values, **wrong}, lake))

    def bad_field(name: str, kind: str) -> Flaw:
        reason = f"bad {'date' if kind in PATTERNS else kind} engagement.{name}"
        return Flaw(
            reason, lambda values: encode({**values, "engagement": {**values["engagement"], name: BAD_VALUE}}, lake)
        )

    op, time_field = lake.message_key("op"), TIME_FIELDS[stream]
    own = {
        "ingestion": (
            changed(f"missing field {lake.message_key('who_id')}", who_id=" "),
            *(bad_field(name, kind) for name, kind in lake.fields.items() if kind != "string"),
        ),
        "mutation": (
            changed(f"unknown {op}", op=BAD_VALUE, new_id="lead-0"),
            changed(f"missing field {lake.message_key('new_id')}", op="merge", new_id=None),
        ),
        "retention": (changed(f"unknown {op}", op=BAD_VALUE, ttl_days=1, who_id="lead-0"),),
    }
    return (
        Flaw(NOT_JSON, lambda values: encode(values, lake)[:-1]),
        Flaw(NOT_JSON, lambda values: b"\xff\xfe" + encode(values, lake)),
        changed("missing field org_id", org_id=None),
        changed(f"bad date {lake.message_key(time_field)}", **{time_field: BAD_VALUE}),
        changed(UNKNOWN_ORG, org_id="nobody"),
        *own[stream],
    )


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
    engaged = {values["engagement_id"]: str(values["engaged_at"]) for values in engagements}
    people: nx.Graph[Person] = nx.Graph()
    unmatched = set()
    for request in _once_in_order(mutations):
        if not _apply(request, rows, engaged, people):
            unmatched.add(_key(request))
    return Replayed(rows, people, frozenset(unmatched))


def without_unmatched(messages: Iterable[Message], lake: EngagementLake) -> list[Message]:
    """Return the messages without the requests that never find an engagement. The rows that they leave are the same.

    Such requests would be reported: they meet no row.
    """
    found = list(messages)
    topic, unmatched = lake.topic("mutation"), replay(found, lake).unmatched
    return [each for each in found if each.topic != topic or _key(decode(each.value, lake)) not in unmatched]


def _key(request: Values) -> RequestKey:
    return str(request["org_id"]), str(request["request_id"])


def _once_in_order(requests: Iterable[Values]) -> list[Values]:
    first: dict[RequestKey, Values] = {}
    for request in requests:
        first.setdefault(_key(request), request)
    return sorted(first.values(), key=lambda request: str(request["executed_at"]))


def _apply(request: Values, rows: dict[str, Person], engaged: dict[str, str], people: nx.Graph[Person]) -> bool:
    """Apply a request, and return whether it found a row or carries a record.

    Args:
        engaged: Engagement id → when it engaged; no record of a simulation engaged after its request.
    """
    org = str(request["org_id"])
    old = (org, str(request.get("old_id")))
    new = (org, str(request.get("new_id")))
    moved = [row for row, owner in rows.items() if owner == old and _acts_on(request, engaged[row])]
    if request["op"] == "delete":
        for row in moved:
            del rows[row]
    else:
        rows.update(dict.fromkeys(moved, new))
    # A request with a record is applied even if its old id has no row.
    record = request.get("insert_record")
    if record:
        rows[record["engagement_id"]] = (org, record["who_id"])
        engaged[record["engagement_id"]] = str(record["engaged_at"])
    is_applied = bool(moved or record)
    if is_applied and request["op"] != "delete":
        people.add_edge(old, new)
    return is_applied


def _acts_on(request: Values, engaged_at: str) -> bool:
    """Return whether a request acts on a row by its time. A simulation writes all times in one format."""
    day = request.get("engagement_date")
    return engaged_at <= str(request["executed_at"]) and (day is None or engaged_at.startswith(str(day)))


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
    values = {"org_id": org, "request_id": "erasure", "op": "gdpr", "who_id": who_id, "requested_at": _text(at)}
    return Message(lake.topic("retention"), org.encode(), encode(values, lake), at)


DELIVERY_SECONDS = 60


def send(servers: str, messages: Iterable[Message]) -> Counter[str]:
    """Send messages; the key of a message chooses its partition.

    Args:
        servers: Kafka's bootstrap servers: `host:port`, comma-separated.
        messages: Messages of topics that exist.

    Returns:
        The number of messages sent to each topic.

    Raises:
        ServiceError: A topic is missing, or Kafka did not accept a message.
    """
    remedy = "Repair Kafka, then simulate with another seed: the messages that Kafka took stay in the topics."
    failed: list[str] = []
    sent: Counter[str] = Counter()

    def delivered(error: KafkaError | None, message: Delivered) -> None:
        nonlocal remedy
        if error is not None:
            failed.append(f"{message.topic()} for {(message.key() or b'').decode()}: {error.str()}")
            remedy = remedy_of(error, remedy)

    producer = Producer(
        {
            **client(servers),
            "enable.idempotence": True,
            "linger.ms": 20,
            "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
            # Java's clients choose partitions this way, too, so both find an org in the same partition.
            "partitioner": "murmur2_random",
        }
    )
    for message in messages:
        if message.topic not in sent:
            KafkaTopic(servers, message.topic).state()
        topic, value, key, at = message.topic, message.value, message.key, message.timestamp
        while True:
            try:
                producer.produce(topic, value, key, timestamp=at, on_delivery=delivered)
                break
            except BufferError:  # the queue is full: wait for a delivery
                producer.poll(1)
        producer.poll(0)
        sent[topic] += 1
        if failed:
            break
    unanswered = producer.flush(DELIVERY_SECONDS)
    if missing := len(failed) + unanswered:
        reasons = "; ".join(failed[:3]) or "no answer"
        raise ServiceError(
            f"Kafka at {servers} did not take {missing} of {sent.total()} messages: {reasons}.", remedy=remedy
        )
    return sent
