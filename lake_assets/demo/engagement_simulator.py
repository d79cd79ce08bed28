"""Simulated sales engagement as messages of a lake's topics: late, in chains, and with flaws on purpose.

Everything is a function of one `Simulation` and the lake: the same values give the same messages in the same order. In
order: the parameters; orgs of very different size, and the ids of their people; emails and calls, and when they become
known; conversions, merges, deletions, erasures and retention policies; the possible flaws of a message, with the
reason of its dead letter; all of it as messages, in the order in which they are sent; the rows that are right after
all messages; and a producer, which alone is not pure.

Time advances in steps of a quarter of an hour or less, so that a step is small at any scale. Engagements happen during
a step. All requests of a step are executed in its last millisecond. An engagement has the id that its person has at
that moment: no engagement happens under an id after its conversion, merge or deletion, but it may become known later.

An id is a number within its org. A lead has an even number. When a lead is converted, the contact has the next number.
All orgs number their leads from 0, so the same id means different people in different orgs. Chains of ids arise by
themselves: a lead becomes a contact, the contact is merged into another one, and that one is merged again.

The producer is idempotent, so its own retries write nothing twice. If a person sends a simulation again, its messages
are in the topics twice, with the same ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import count, islice
from typing import Any, NamedTuple, Protocol

import networkx as nx
import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Delivered

from lake_assets.base.hours import HOUR_MICROSECONDS, parse_hour
from lake_assets.connections.kafka import client, remedy_of
from lake_assets.demo.message import Message as Message
from lake_assets.engagement.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.messages import NOT_JSON, PATTERNS, UNKNOWN_ORG
from lake_assets.engagement.requests import Op
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.errors import ConfigurationError, ServiceError

HOUR_MS = HOUR_MICROSECONDS // 1000
QUARTER_MS = HOUR_MS // 4
DAY_MS = 24 * HOUR_MS
QUARTERS_PER_HOUR = 4

MAX_TOUCHES_PER_STEP = 10_000
"""Approximate; the touches of a step are in memory at once."""

MAX_COUNT = 10**9
COUNT_LIMITS = {
    "seed": (0, 2**63),
    "hours": (1, MAX_COUNT),
    "orgs": (1, MAX_COUNT),
    "people": (0, MAX_COUNT),
    "touches": (0, MAX_COUNT),
}
"""Smallest and largest value of the parameters that are counts."""

SHARE_LIMITS = (0, 1)


@dataclass(frozen=True)
class Simulation:
    """Organizations, their people, and what sales reps do. Shares are between 0 and 1.

    Attributes:
        seed: Seed of all random streams. The names of orgs contain it, so two simulations with different seeds have
            nothing in common.
        start: First hour, as an hour key.
        hours: Number of hours in which reps act. The effects of their actions may come later.
        orgs: Number of organizations.
        people: Number of people of all orgs. The n-th org has 1/n of the people of the first, and at least two.
        touches: Number of emails sent and calls made. Opens, replies and bounces are additional engagements.
        calls: Share of touches that are calls.
        bounced: Share of emails that bounce.
        opened: Share of delivered emails that are opened.
        replied: Share of opened emails that are replied to.
        late: Share of engagements that become known some hours after they happened.
        old: Share of engagements that are imported: they happened up to 400 days earlier.
        requests: Conversions, merges and deletions for each touch.
        deletions: Share of requests that delete.
        cycles: Share of conversions that are reverted at once.
        repeated: Share of requests that are sent again in the next step.
        records: Share of conversions and merges that carry the record of a call. Half of these records replace an
            engagement.
        early: Share of requests for an id without any known engagement.
        dated: Share of conversions, merges and deletions that act on the engagements of their day alone.
        missing: Share of early requests whose engagement never becomes known.
        retention: Requests to erase a person or to limit the age of an org's engagements, for each touch.
        poison: Messages that cannot become a row, for each sound message.
    """

    seed: int = 1
    start: str = "2026-01-01-00:00"
    hours: int = 24
    orgs: int = 20
    people: int = 2_000
    touches: int = 5_000
    calls: float = 0.25
    bounced: float = 0.03
    opened: float = 0.4
    replied: float = 0.25
    late: float = 0.03
    old: float = 0.02
    requests: float = 0.06
    deletions: float = 0.08
    cycles: float = 0.03
    repeated: float = 0.03
    records: float = 0.05
    early: float = 0.08
    dated: float = 0.5
    missing: float = 0.25
    retention: float = 0.004
    poison: float = 0.005

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "start":
                self._check_limits(field.name)

    @cached_property
    def start_ms(self) -> int:
        """The first moment, in milliseconds since 1970-01-01 UTC."""
        return parse_hour(self.start, where="The simulation's start") * HOUR_MS

    @cached_property
    def step_ms(self) -> int:
        """The length of a step in milliseconds. A quarter of an hour is a whole number of steps."""
        quarters = self.hours * QUARTERS_PER_HOUR
        steps_per_quarter = max(1, -(-self.touches // (quarters * MAX_TOUCHES_PER_STEP)))
        while QUARTER_MS % steps_per_quarter:
            steps_per_quarter += 1
        return QUARTER_MS // steps_per_quarter

    @property
    def steps(self) -> int:
        """The number of steps in which reps act."""
        return self.hours * HOUR_MS // self.step_ms

    def step_start(self, step: int) -> int:
        """Return the first moment of a step, in milliseconds since 1970-01-01 UTC."""
        return self.start_ms + step * self.step_ms

    def touches_of(self, step: int) -> int:
        """Return the number of touches in a step. The steps share all touches evenly."""
        if step >= self.steps:
            return 0
        before = self.touches * step // self.steps
        after = self.touches * (step + 1) // self.steps
        return after - before

    def _check_limits(self, name: str) -> None:
        value = getattr(self, name)
        smallest, largest = COUNT_LIMITS.get(name, SHARE_LIMITS)
        if not smallest <= value <= largest:
            raise ConfigurationError(
                f"{name} of the simulation is {value}.",
                remedy=f"Set it to a value between {smallest} and {largest:,}.",
            )


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Random = np.random.Generator

MIN_PEOPLE = 2
IDS_PER_PERSON = 2


def org_name(simulation: Simulation, org: int) -> str:
    """Return the org_id of an org. Simulations with different seeds have different org_ids."""
    return f"org-{simulation.seed}-{org:04}"


def org_names(simulation: Simulation) -> tuple[str, ...]:
    """Return the org_ids of a simulation, largest org first."""
    return tuple(org_name(simulation, org) for org in range(simulation.orgs))


def is_contact(number: int) -> bool:
    """Return whether an id belongs to a contact; otherwise it belongs to a lead."""
    return number % IDS_PER_PERSON == 1


def id_name(number: int) -> str:
    """Return the who_id of an id."""
    kind = "contact" if is_contact(number) else "lead"
    return f"{kind}-{number // IDS_PER_PERSON}"


class People:
    """The people of all orgs with their current ids. A person is a number; the people of an org are consecutive."""

    def __init__(self, simulation: Simulation) -> None:
        weights: Floats = 1 / np.arange(1, simulation.orgs + 1)
        shares: Floats = weights / weights.sum()
        counts = (simulation.people * weights / weights.sum()).astype(np.int64)
        self._cumulative_shares: Floats = np.cumsum(shares)
        self._counts: Ints = np.maximum(MIN_PEOPLE, counts)
        self._first: Ints = np.cumsum(self._counts) - self._counts
        persons = np.arange(self._counts.sum())
        first_of_own_org = np.repeat(self._first, self._counts)
        self._ids: Ints = IDS_PER_PERSON * (persons - first_of_own_org)
        self._next_lead: Ints = IDS_PER_PERSON * self._counts

    def draw_orgs(self, rng: Random, count: int) -> Ints:
        """Return random orgs; large orgs are drawn more often."""
        found: Ints = np.searchsorted(self._cumulative_shares, rng.random(count), side="right")
        last = len(self._cumulative_shares) - 1
        return np.minimum(found, last)

    def draw(self, rng: Random, orgs: Ints) -> Ints:
        """Return a random person of each of these orgs."""
        places = rng.random(len(orgs)) * self._counts[orgs]
        return self._first[orgs] + places.astype(np.int64)

    def ids(self, persons: Ints) -> Ints:
        """Return the current ids of people."""
        return self._ids[persons]

    def someone(self, rng: Random, org: int) -> int:
        """Return the current id of a random person of an org."""
        person = self.draw(rng, np.array([org]))
        return int(self.ids(person)[0])

    def new_lead(self, org: int) -> int:
        """Return an id that nobody of the org has had so far, and reserve it."""
        lead = int(self._next_lead[org])
        self._next_lead[org] += IDS_PER_PERSON
        return lead

    def rename(self, org: int, old: int, new: int) -> None:
        """Give the id `new` to everybody of an org who has the id `old`."""
        ids = self._ids_of(org)
        ids[ids == old] = new

    def forget(self, org: int, old: int) -> None:
        """Give a new id to everybody of an org who has the id `old`."""
        self.rename(org, old, self.new_lead(org))

    def _ids_of(self, org: int) -> Any:
        first = self._first[org]
        return self._ids[first : first + self._counts[org]]


ACTIVITY = 1
"""Number of this use of random numbers. Each random stream has the seed (seed, number of its use, ...)."""

SENT, OPENED, REPLIED, BOUNCED, CALL = range(5)
KINDS = ("sent", "opened", "replied", "bounced", "call")
OUTCOMES = (None, "meaningful contact", "not interested", "left voicemail")
OUTCOME_SHARES = (0.2, 0.3, 0.5)
NO_OUTCOME, MEANINGFUL_CONTACT = 0, 1
NOBODY = -1

MINUTE_MS = 60_000
MAX_DELAY_MS = 12 * 60 * MINUTE_MS
DELAY_SIGMA = 1.0
BOUNCE_MINUTES = 1
OPEN_MINUTES = 40
REPLY_MINUTES = 20
LATE_MINUTES = 90
MAX_AGE_DAYS = 400

TEMPLATES = 40
CADENCES = 12
REPS_PER_ORG = 8

Rows = npt.NDArray[np.void]
ENGAGEMENT = np.dtype(
    [
        ("number", np.int64),
        ("org", np.int64),
        ("person", np.int64),
        ("who", np.int64),
        ("engaged", np.int64),
        ("sent", np.int64),
        ("kind", np.int16),
        ("outcome", np.int16),
        ("template", np.int16),
        ("cadence", np.int16),
        ("rep", np.int16),
    ]
)
"""A row for each engagement.

person: `NOBODY` if the id belongs to nobody. who: the id, which is known once the engagement happens.
engaged, sent: when it happened and when its message is sent, in milliseconds since 1970-01-01 UTC.
"""


class Transit:
    """Engagements that belong to a later step."""

    def __init__(self) -> None:
        self._by_step: dict[int, list[Rows]] = {}

    @property
    def empty(self) -> bool:
        """Whether no engagement is left."""
        return not self._by_step

    def put(self, rows: Rows, steps: Ints) -> None:
        """Add engagements. steps: the step of each row."""
        for step in np.unique(steps):
            waiting = self._by_step.setdefault(int(step), [])
            waiting.append(rows[steps == step])

    def take(self, step: int) -> Rows:
        """Remove the engagements of a step and return them."""
        no_rows = np.empty(0, ENGAGEMENT)
        return np.concatenate([no_rows, *self._by_step.pop(step, [])])


class Activity:
    """The actions of reps and of the people whom they contact, step by step."""

    def __init__(self, simulation: Simulation, people: People) -> None:
        self._simulation = simulation
        self._people = people
        self._future = Transit()
        self._undelivered = Transit()
        self._count = 0
        self._last_number: dict[int, int] = {}

    @property
    def over(self) -> bool:
        """Whether every engagement has happened and is known."""
        return self._future.empty and self._undelivered.empty

    def live(self, step: int) -> Rows:
        """Play a step and return the engagements that become known in it, in the order of their messages."""
        rng = np.random.default_rng((self._simulation.seed, ACTIVITY, step))
        touches = self._touches(rng, step)
        emails = touches[touches["kind"] == SENT]
        for rows in (touches, *self._follow_ups(rng, emails)):
            self._future.put(rows, self._step_of(rows["engaged"]))
        happened = self._future.take(step)
        happened["who"] = self._people.ids(happened["person"])
        self._deliver(rng, happened)
        known = self._undelivered.take(step)
        self._remember(known)
        in_order = np.lexsort((known["number"], known["sent"]))
        return known[in_order]

    def deliver_late(self, org: int, who: int, engaged: int, sent: int) -> None:
        """Add a call to an id without any known engagement. It becomes known at `sent`, in a later step."""
        row = _call(org, who, engaged, sent)
        self._number(row)
        self._undelivered.put(row, self._step_of(row["sent"]))

    def record(self, org: int, who: int, engaged: int, *, anew: bool) -> Rows:
        """Return one call for a request to carry.

        Args:
            org: The org.
            who: The id of the call.
            engaged: When the call happened, in milliseconds since 1970-01-01 UTC.
            anew: True for a new engagement; False to replace the last known engagement of the org, if there is one.
        """
        row = _call(org, who, engaged, engaged)
        if anew or org not in self._last_number:
            self._number(row)
        else:
            row["number"] = self._last_number[org]
        return row

    def _touches(self, rng: Random, step: int) -> Rows:
        count = self._simulation.touches_of(step)
        rows = np.zeros(count, ENGAGEMENT)
        rows["org"] = self._people.draw_orgs(rng, count)
        rows["person"] = self._people.draw(rng, rows["org"])
        moments = np.sort(rng.integers(0, self._simulation.step_ms, count))
        rows["engaged"] = self._simulation.step_start(step) + moments
        is_call = rng.random(count) < self._simulation.calls
        outcomes = rng.choice(len(OUTCOME_SHARES), count, p=OUTCOME_SHARES) + 1
        rows["kind"] = np.where(is_call, CALL, SENT)
        rows["outcome"] = np.where(is_call, outcomes, NO_OUTCOME)
        rows["template"] = rng.integers(0, TEMPLATES, count)
        rows["cadence"] = rng.integers(0, CADENCES, count)
        rows["rep"] = rng.integers(0, REPS_PER_ORG, count)
        return rows

    def _follow_ups(self, rng: Random, emails: Rows) -> tuple[Rows, Rows, Rows]:
        """Return the bounces, opens and replies of emails."""
        simulation = self._simulation
        is_bounced = rng.random(len(emails)) < simulation.bounced
        bounced = _later(rng, emails[is_bounced], BOUNCED, minutes=BOUNCE_MINUTES)
        delivered = emails[~is_bounced]
        is_opened = rng.random(len(delivered)) < simulation.opened
        opened = _later(rng, delivered[is_opened], OPENED, minutes=OPEN_MINUTES)
        is_replied = rng.random(len(opened)) < simulation.replied
        replied = _later(rng, opened[is_replied], REPLIED, minutes=REPLY_MINUTES)
        return bounced, opened, replied

    def _deliver(self, rng: Random, happened: Rows) -> None:
        """Number the engagements of a step and send their messages: at once or late, some with an old date."""
        count = len(happened)
        self._number(happened)
        is_late = rng.random(count) < self._simulation.late
        delays = _delays(rng, count, minutes=LATE_MINUTES)
        happened["sent"] = happened["engaged"] + np.where(is_late, delays, 0)
        is_old = rng.random(count) < self._simulation.old
        age_days = rng.integers(1, MAX_AGE_DAYS, count)
        happened["engaged"] -= DAY_MS * np.where(is_old, age_days, 0)
        self._undelivered.put(happened, self._step_of(happened["sent"]))

    def _remember(self, known: Rows) -> None:
        for org, number in zip(known["org"].tolist(), known["number"].tolist(), strict=True):
            self._last_number[org] = number

    def _number(self, rows: Rows) -> None:
        end = self._count + len(rows)
        rows["number"] = np.arange(self._count, end)
        self._count = end

    def _step_of(self, moments: Any) -> Ints:
        steps: Ints = (moments - self._simulation.start_ms) // self._simulation.step_ms
        return steps


def _call(org: int, who: int, engaged: int, sent: int) -> Rows:
    """Return one call without a number, to an id that may belong to nobody."""
    row = np.zeros(1, ENGAGEMENT)
    row["org"] = org
    row["person"] = NOBODY
    row["who"] = who
    row["engaged"] = engaged
    row["sent"] = sent
    row["kind"] = CALL
    row["outcome"] = MEANINGFUL_CONTACT
    return row


def _later(rng: Random, rows: Rows, kind: int, *, minutes: int) -> Rows:
    """Return copies of another kind that happen after a random delay. minutes: median delay."""
    found = rows.copy()
    found["kind"] = kind
    found["engaged"] += _delays(rng, len(found), minutes=minutes)
    return found


def _delays(rng: Random, count: int, *, minutes: int) -> Ints:
    """Return log-normal delays in milliseconds, 12 hours at most. minutes: median."""
    drawn = rng.lognormal(np.log(minutes * MINUTE_MS), DELAY_SIGMA, count)
    return np.minimum(drawn, MAX_DELAY_MS).astype(np.int64)


REQUESTS, RETENTION, RECORDS, DATES = 2, 3, 5, 6
"""Numbers of these uses of random numbers, as in `activity.py`."""

TTL_DAYS = (30, 90, 365)
POLICY_SHARE = 0.5
NEW_RECORD_SHARE = 0.5
MAX_STEPS_LATE = 8
"""An engagement that follows its request becomes known at most this many steps later."""


@dataclass(frozen=True)
class Request:
    """A request of an org.

    Attributes:
        org: The org.
        executed_at: Milliseconds since 1970-01-01 UTC.
        values: Fields of the message, without the org's id, the moment and the record.
        new: Id that the rows get; None if they are deleted.
        record: The engagement that the request carries; None if it carries none.
    """

    org: int
    executed_at: int
    values: Mapping[str, Any]
    new: int | None = None
    record: Rows | None = None


class Requests:
    """The requests, step by step. They change the ids of people."""

    def __init__(self, simulation: Simulation, people: People, activity: Activity) -> None:
        self._simulation = simulation
        self._people = people
        self._activity = activity
        self._to_repeat: list[Request] = []
        self._count = 0

    @property
    def over(self) -> bool:
        """Whether no request is left to be sent again."""
        return not self._to_repeat

    def mutations(self, step: int) -> list[Request]:
        """Return the requests of the mutation topic in a step: repeated ones first, then new ones."""
        rng = self._random(REQUESTS, step)
        count = rng.binomial(self._simulation.touches_of(step), self._simulation.requests)
        made: list[Request] = []
        for org in self._people.draw_orgs(rng, count).tolist():
            if rng.random() < self._simulation.early:
                made += self._early(rng, org, step)
            else:
                made += self._known(rng, org, step)
        made = self._with_dates(self._with_records(made, step), step)
        repeated = self._to_repeat
        self._to_repeat = [request for request in made if rng.random() < self._simulation.repeated]
        return repeated + made

    def retention(self, step: int) -> list[Request]:
        """Return the requests of the retention topic in a step: policies of orgs and erasures of people, one to one."""
        rng = self._random(RETENTION, step)
        count = rng.binomial(self._simulation.touches_of(step), self._simulation.retention)
        found = []
        for org in self._people.draw_orgs(rng, count).tolist():
            if rng.random() < POLICY_SHARE:
                found.append(self._policy(rng, org, step))
            else:
                found.append(self._erasure(rng, org, step))
        return found

    def _random(self, use: int, step: int) -> Random:
        return np.random.default_rng((self._simulation.seed, use, step))

    def _with_records(self, requests: list[Request], step: int) -> list[Request]:
        """Add the record of a call to some requests, under the id that their rows get."""
        rng = self._random(RECORDS, step)
        engaged = self._simulation.step_start(step)
        found = []
        for request in requests:
            if request.new is not None and rng.random() < self._simulation.records:
                anew = rng.random() < NEW_RECORD_SHARE
                record = self._activity.record(request.org, request.new, engaged, anew=anew)
                request = replace(request, record=record)
            found.append(request)
        return found

    def _with_dates(self, requests: list[Request], step: int) -> list[Request]:
        """Bind some requests to the day of the step."""
        rng = self._random(DATES, step)
        day = str(np.datetime64(self._simulation.step_start(step), "ms").astype("datetime64[D]"))
        dated = [replace(each, values={**each.values, "engagement_date": day}) for each in requests]
        is_dated = rng.random(len(requests)) < self._simulation.dated
        return [dated[place] if is_dated[place] else each for place, each in enumerate(requests)]

    def _known(self, rng: Random, org: int, step: int) -> Iterator[Request]:
        """Yield the requests about an id that somebody has now."""
        old = self._people.someone(rng, org)
        if rng.random() < self._simulation.deletions:
            self._people.forget(org, old)
            yield self._mutation(org, step, "delete", old)
        elif is_contact(old):
            new = self._people.someone(rng, org)
            self._people.rename(org, old, new)
            yield self._mutation(org, step, "merge", old, new)
        else:
            contact = old + 1
            yield self._mutation(org, step, "convert", old, contact)
            if rng.random() < self._simulation.cycles:
                yield self._mutation(org, step, "merge", contact, old)
            else:
                self._people.rename(org, old, contact)

    def _early(self, rng: Random, org: int, step: int) -> Iterator[Request]:
        """Yield a conversion of an id without any known engagement. The engagement follows later, or never."""
        old = self._people.new_lead(org)
        if rng.random() >= self._simulation.missing:
            engaged = self._simulation.step_start(step)
            steps_late = int(rng.integers(1, MAX_STEPS_LATE + 1))
            sent = engaged + steps_late * self._simulation.step_ms
            self._activity.deliver_late(org, old, engaged, sent)
        yield self._mutation(org, step, "convert", old, old + 1)

    def _policy(self, rng: Random, org: int, step: int) -> Request:
        return self._request(org, step, op="ttl", ttl_days=int(rng.choice(TTL_DAYS)))

    def _erasure(self, rng: Random, org: int, step: int) -> Request:
        who = self._people.someone(rng, org)
        self._people.forget(org, who)
        return self._request(org, step, op="gdpr", who_id=id_name(who))

    def _mutation(self, org: int, step: int, op: Op, old: int, new: int | None = None) -> Request:
        named = {"op": op, "old_id": id_name(old)}
        if new is not None:
            named["new_id"] = id_name(new)
        return replace(self._request(org, step, **named), new=new)

    def _request(self, org: int, step: int, **values: Any) -> Request:
        self._count += 1
        request_id = f"r-{self._simulation.seed}-{self._count}"
        end_of_step = self._simulation.step_start(step + 1) - 1
        return Request(org, end_of_step, {"request_id": request_id, **values})


Values = Mapping[str, Any]
"""The fields of a message."""

RECORD_FIELD = "insert_record"
UNKNOWN_ORG_ID = "nobody"
BAD_VALUE = "soon"
"""Neither a date, nor a number, nor an operation."""

NOT_UTF8 = b"\xff\xfe"
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
    time_field = TIME_FIELDS[stream]
    common = (
        Flaw(NOT_JSON, lambda values: encode(values, lake)[:-1]),
        Flaw(NOT_JSON, lambda values: NOT_UTF8 + encode(values, lake)),
        _with(lake, "missing field org_id", org_id=None),
        _with(lake, f"bad date {lake.message_key(time_field)}", **{time_field: BAD_VALUE}),
        _with(lake, UNKNOWN_ORG, org_id=UNKNOWN_ORG_ID),
    )
    if stream == "ingestion":
        return common + _flaws_of_engagements(lake)
    if stream == "mutation":
        return common + _flaws_of_mutations(lake)
    return common + _flaws_of_retention(lake)


def _flaws_of_engagements(lake: EngagementLake) -> tuple[Flaw, ...]:
    found = [_with(lake, f"missing field {lake.message_key('who_id')}", who_id=" ")]
    for name, kind in lake.fields.items():
        if kind != "string":
            found.append(_bad_field(lake, name, kind))
    return tuple(found)


def _flaws_of_mutations(lake: EngagementLake) -> tuple[Flaw, ...]:
    return (
        _with(lake, f"unknown {lake.message_key('op')}", op=BAD_VALUE, new_id="lead-0"),
        _with(lake, f"missing field {lake.message_key('new_id')}", op="merge", new_id=None),
    )


def _flaws_of_retention(lake: EngagementLake) -> tuple[Flaw, ...]:
    return (_with(lake, f"unknown {lake.message_key('op')}", op=BAD_VALUE, ttl_days=1, who_id="lead-0"),)


def _with(lake: EngagementLake, reason: str, **changed: Any) -> Flaw:
    return Flaw(reason, lambda values: encode({**values, **changed}, lake))


def _bad_field(lake: EngagementLake, name: str, kind: str) -> Flaw:
    noun = "date" if kind in PATTERNS else kind

    def spoil(values: Values) -> bytes:
        engagement = {**values["engagement"], name: BAD_VALUE}
        return encode({**values, "engagement": engagement}, lake)

    return Flaw(f"bad {noun} engagement.{name}", spoil)


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
    requested_at = str(np.datetime_as_string(np.datetime64(at, "ms"), timezone="UTC"))
    values = {
        "org_id": org,
        "request_id": "erasure",
        "op": "gdpr",
        "who_id": who_id,
        "requested_at": requested_at,
    }
    return Message(lake.topic("retention"), org.encode(), encode(values, lake), at)


DELIVERY_SECONDS = 60
LINGER_MS = 20
MAX_NAMED = 3
"""An error names this many of the messages that were not delivered."""


class KafkaMessage(Protocol):
    """A message to send. timestamp: milliseconds since 1970-01-01 UTC."""

    @property
    def topic(self) -> str: ...
    @property
    def key(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...
    @property
    def timestamp(self) -> int: ...


def send(servers: str, messages: Iterable[KafkaMessage]) -> Counter[str]:
    """Send messages; the key of a message chooses its partition.

    Args:
        servers: Kafka's bootstrap servers: `host:port`, comma-separated.
        messages: Messages of topics that exist.

    Returns:
        The number of messages sent to each topic.

    Raises:
        ServiceError: A topic is missing, or Kafka did not accept a message.
    """
    return _Sender(servers).send_all(messages)


class _Sender:
    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._producer = Producer(
            {
                **client(servers),
                "enable.idempotence": True,
                "linger.ms": LINGER_MS,
                "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
                # Java's clients choose partitions this way, too, so both find an org in the same partition.
                "partitioner": "murmur2_random",
            }
        )
        self._failed: list[str] = []
        self._remedy = "Repair Kafka, then simulate with another seed: the messages that Kafka took stay in the topics."
        self._sent: Counter[str] = Counter()

    def send_all(self, messages: Iterable[KafkaMessage]) -> Counter[str]:
        for message in messages:
            if message.topic not in self._sent:
                KafkaTopic(self._servers, message.topic).state()
            self._send(message)
            self._sent[message.topic] += 1
            if self._failed:
                break
        unanswered = self._producer.flush(DELIVERY_SECONDS)
        self._check(unanswered)
        return self._sent

    def _send(self, message: KafkaMessage) -> None:
        is_queued = False
        while not is_queued:
            is_queued = self._queue(message)
            # Serve delivery reports; if the queue is full, wait for one.
            self._producer.poll(0 if is_queued else 1)

    def _queue(self, message: KafkaMessage) -> bool:
        """Hand a message to the producer. Return False if its queue is full."""
        try:
            self._producer.produce(
                message.topic,
                message.value,
                message.key,
                timestamp=message.timestamp,
                on_delivery=self._record_failure,
            )
        except BufferError:
            return False
        return True

    def _record_failure(self, error: KafkaError | None, message: Delivered) -> None:
        if error is not None:
            key = (message.key() or b"").decode()
            self._failed.append(f"{message.topic()} for {key}: {error.str()}")
            self._remedy = remedy_of(error, self._remedy)

    def _check(self, unanswered: int) -> None:
        missing = len(self._failed) + unanswered
        if not missing:
            return
        reasons = "; ".join(self._failed[:MAX_NAMED]) or "no answer"
        raise ServiceError(
            f"Kafka at {self._servers} did not take {missing} of {self._sent.total()} messages: {reasons}.",
            remedy=self._remedy,
        )
