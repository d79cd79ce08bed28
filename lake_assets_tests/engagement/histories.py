"""Random histories of a lake in which what contradicts itself happens often, and the rows that a set of messages is.

`truth` is slow and obvious: it knows of no batch, no order of arrival and no table. Its rules: docs/engagement.md.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.tables import ENGAGEMENT
from lake_assets_tests.engagement.scenario import START, Alone, Traffic

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP = timedelta(hours=7)
LAST = 40
IDS = ("a", "b", "c", "d")
KINDS = ("sent", "opened", "replied")
FEATURES = ("corrections", "repeats", "ttl", "gdpr", "records", "deletes")
"""What a history has beside emails, conversions and copies."""

Row = tuple[str, str, str, datetime]
"""engagement_id, who_id, kind, engaged_at"""


@dataclass(frozen=True)
class Sent:
    """A message, and its place among all of its topic."""

    stream: StreamName
    values: Mapping[str, Any]
    place: int = 0

    @property
    def org(self) -> str:
        return str(self.values["org_id"])

    def at(self, name: str) -> datetime:
        return datetime.fromisoformat(self.values[name])


def history(org: str, world: str, chance: Random, features: Collection[str]) -> list[Sent]:
    """Messages of an org about ids and engagements that begin with the name of a world."""

    def when() -> str:
        return (START + chance.randint(0, LAST) * STEP).isoformat()

    def content(number: int) -> dict[str, Any]:
        who = f"{world}{chance.choice(IDS)}"
        named = {"engagement_id": f"{world}e{number}", "who_id": who, "kind": chance.choice(KINDS)}
        return {**named, "engaged_at": when()}

    def request(number: int) -> Sent:
        old_id, new_id = (f"{world}{each}" for each in chance.sample(IDS, 2))
        deletes = "deletes" in features and chance.random() < 0.3
        values: dict[str, Any] = {
            "org_id": org,
            "op": "delete" if deletes else "convert",
            "old_id": old_id,
            "executed_at": when(),
        }
        values |= {} if deletes else {"new_id": new_id}
        if "records" in features and chance.random() < 0.4:
            values["insert_record"] = content(chance.randint(0, 5))
        used = chance.randint(0, number) if "repeats" in features and chance.random() < 0.3 else number
        return Sent("mutation", {**values, "request_id": f"{world}r{used}"})

    def retain(number: int, **values: object) -> Sent:
        asked = {"org_id": org, "request_id": f"{world}{values['op']}{number}", "requested_at": when()}
        return Sent("retention", {**asked, **values})

    found = []
    for number in range(chance.randint(3, 7)):
        for _ in range(chance.randint(1, 3) if "corrections" in features else 1):
            values = {"org_id": org, **content(number)}
            if "corrections" in features:
                values["sent_at"] = when()
            found.append(Sent("ingestion", values))
    found += [request(number) for number in range(chance.randint(2, 9))]
    if "ttl" in features and chance.random() < 0.3:
        found.append(retain(0, op="ttl", ttl_days=chance.randint(4, 12)))
    for number in range(chance.randint(1, 2) if "gdpr" in features else 0):
        found.append(retain(number, op="gdpr", who_id=f"{world}{chance.choice(IDS)}"))
    return found + chance.choices(found, k=chance.randint(1, len(found) // 2))


def truth(messages: Iterable[Sent]) -> list[Row]:
    """The rows that the messages of an org come to."""
    received = list(messages)
    requests = counted_requests(received)
    rows = []
    for said in counted_statements(received):
        who = said.values["who_id"]
        for request in requests:
            acts = (request.at("executed_at"), request.place) > said.since
            if acts and who == request.values["old_id"]:
                who = request.values.get("new_id")
        if who is not None and not is_expired(received, said) and not is_erased(received, said):
            rows.append((said.values["engagement_id"], who, said.values["kind"], said.engaged_at))
    return sorted(rows)


NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Statement:
    """What one message says about an engagement. since: requests that are greater act on it."""

    values: Mapping[str, Any]
    stamp: tuple[datetime, bool, int]
    since: tuple[datetime, int]

    @property
    def engaged_at(self) -> datetime:
        return datetime.fromisoformat(self.values["engaged_at"])


def statement(message: Sent) -> Statement | None:
    if message.stream == "ingestion":
        engaged_at = message.at("engaged_at")
        sent_at = message.at("sent_at") if "sent_at" in message.values else None
        stamp = (sent_at or NEVER, False, -message.place)
        return Statement(message.values, stamp, (min(engaged_at, sent_at or engaged_at), -1))
    if message.values.get("insert_record"):
        at = message.at("executed_at")
        return Statement(message.values["insert_record"], (at, True, -message.place), (at, message.place))
    return None


def counted_statements(received: Iterable[Sent]) -> list[Statement]:
    found: dict[str, Statement] = {}
    for said in filter(None, map(statement, received)):
        name = said.values["engagement_id"]
        if name not in found or said.stamp > found[name].stamp:
            found[name] = said
    return list(found.values())


def counted_requests(received: Iterable[Sent]) -> list[Sent]:
    first: dict[str, Sent] = {}
    for message in sorted(received, key=lambda each: each.place):
        if message.stream == "mutation":
            first.setdefault(message.values["request_id"], message)
    return sorted(first.values(), key=lambda request: (request.at("executed_at"), request.place))


def is_expired(received: Iterable[Sent], said: Statement) -> bool:
    limits = [
        message.at("requested_at") - timedelta(days=message.values["ttl_days"])
        for message in received
        if message.values.get("op") == "ttl"
    ]
    return any(said.engaged_at < limit for limit in limits)


def is_erased(received: Sequence[Sent], said: Statement) -> bool:
    about = min(said.engaged_at, said.since[0])
    return any(
        about <= message.at("requested_at") and said.values["who_id"] in person_of(received, message)
        for message in received
        if message.values.get("op") == "gdpr"
    )


def person_of(received: Iterable[Sent], erasure: Sent) -> set[str]:
    links = [
        {message.values["old_id"], message.values["new_id"]}
        for message in received
        if message.values.get("op") == "convert" and message.at("executed_at") <= erasure.at("requested_at")
    ]
    person = {str(erasure.values["who_id"])}
    for _ in IDS:
        person = person.union(*(link for link in links if link & person))
    return person


def play(mail: Traffic, histories: Mapping[str, Sequence[Sent]], chance: Random, rounds: int) -> dict[str, list[Sent]]:
    """Send the histories of orgs, mixed, and let streams take them in any order and cut; return them as received."""
    mail.tables.register_orgs(dict.fromkeys(histories))
    mixed = [message for of_org in histories.values() for message in of_org]
    chance.shuffle(mixed)
    received: dict[str, list[Sent]] = defaultdict(list)
    ends: dict[StreamName, list[int]] = {}
    for name in STREAMS:
        of_stream = [message for message in mixed if message.stream == name]
        mail.spoil(name, [json.dumps(dict(message.values)).encode() for message in of_stream])
        for place, message in enumerate(of_stream):
            received[message.org].append(Sent(name, message.values, place))
        ends[name] = [*sorted(chance.randint(0, len(of_stream)) for _ in range(rounds - 1)), len(of_stream)]
    for number in range(rounds):
        for name in chance.sample(STREAMS, len(STREAMS)):
            run_batch(mail.stream(name), Alone(), until={0: ends[name][number]})
    for name in STREAMS[1:]:  # what came late concerns what came before
        run_batch(mail.stream(name), Alone())
    return received


def wrong(mail: Traffic, received: Mapping[str, Sequence[Sent]]) -> dict[str, tuple[list[Row], list[Row]]]:
    """Org → its rows, and what they should be, where they differ."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in mail.rows(ENGAGEMENT):
        found[row["org_id"]].append((row["engagement_id"], row["who_id"], row["kind"], row["engaged_at"]))
    both = {org: (sorted(found[org]), truth(messages)) for org, messages in received.items()}
    return {org: (rows, expected) for org, (rows, expected) in both.items() if rows != expected}
