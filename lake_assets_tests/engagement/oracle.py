"""What messages come to: mutation requests replayed one after the other on every row. Slow, and obvious."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lake_assets.engagement.messages import ingestion_format, mutation_format
from lake_assets.engagement.requests import MutationRequest, Record
from lake_assets_tests.engagement.judge import reason

if TYPE_CHECKING:
    from lake_assets.demo.engagement_simulator import Message
    from lake_assets.engagement.lake import EngagementLake


_NEVER: Mapping[str, datetime] = MappingProxyType({})


def replay(
    requests: Iterable[MutationRequest],
    rows: Mapping[str, str],
    engaged: Mapping[str, datetime] = _NEVER,
    there: Mapping[str, datetime] = _NEVER,
) -> dict[str, str]:
    """Row → its id after all requests; deleted rows are gone. A request id counts once, and so does, of records of an
    engagement that are of one instant, the first.

    engaged: when rows engaged; a request acts on those that engaged until then. All others were there before.
    there: since when rows are there, of those that were sent before they engaged.
    """
    seen: set[str] = set()
    left: dict[str, str] = dict(rows)
    days: dict[str, date | None] = {row: at.date() for row, at in engaged.items()}
    since = {**engaged, **there}
    placed: dict[str, datetime] = {}
    for request in sorted(requests, key=lambda r: (r.executed_at, r.partition, r.offset)):
        if request.request_id in seen:
            continue
        seen.add(request.request_id)
        day, at = request.engagement_date, request.executed_at
        present = {row for row in left if since.get(row, at) <= at and day in (None, days.get(row))}
        moved = {row for row in present if left[row] == request.old_id}
        if request.op == "delete":
            left = {row: identity for row, identity in left.items() if row not in moved}
        else:
            left = {row: str(request.new_id) if row in moved else identity for row, identity in left.items()}
        if request.record is not None and placed.get(request.record.engagement_id) != at:
            placed[request.record.engagement_id] = at
            left[request.record.engagement_id] = request.record.who_id
            days[request.record.engagement_id] = request.record.day
            since.pop(request.record.engagement_id, None)
    return left


@dataclass(frozen=True)
class Truth:
    """What ingestion and mutation leave of all messages, however they are cut into batches.

    rows: engagement id → (org, final who_id). dead: (topic, value, reason) → how often.
    """

    rows: Mapping[str, tuple[str, str]]
    dead: Counter[tuple[str, bytes, str]] = field(default_factory=Counter)


def truth(messages: Iterable[Message], lake: EngagementLake, orgs: Collection[str]) -> Truth:
    """The truth of these messages, in the order in which they were sent. orgs: those that are known.

    Every request acts on the rows that engaged until then: also on those that come after it, as if they had been there.
    """
    engagements, mutations = lake.topic("ingestion"), lake.topic("mutation")
    formats = {engagements: ingestion_format(lake), mutations: mutation_format(lake)}
    dead: Counter[tuple[str, bytes, str]] = Counter()
    rows: defaultdict[str, dict[str, str]] = defaultdict(dict)
    engaged: defaultdict[str, dict[str, datetime]] = defaultdict(dict)
    requests: defaultdict[str, list[MutationRequest]] = defaultdict(list)
    for offset, message in enumerate(m for m in messages if m.topic in formats):
        value = with_field_names(message.value, lake)
        if why := reason(value, formats[message.topic], orgs):
            dead[message.topic, message.value, why] += 1
            continue
        values = json.loads(value)
        if message.topic == engagements:
            rows[values["org_id"]][values["engagement_id"]] = values["who_id"]
            engaged[values["org_id"]][values["engagement_id"]] = moment_of(values)
        else:
            requests[values["org_id"]].append(request_of(values, offset))
    left = {org: replay(requests[org], rows[org], engaged[org]) for org in {**rows, **requests}}
    return Truth({row: (org, who) for org, found in left.items() for row, who in found.items()}, dead)


def with_field_names(value: bytes, lake: EngagementLake) -> bytes:
    """The message as a lake without `message_keys` gets it; what is no JSON stays."""
    for name, key in lake.message_keys.items():
        value = value.replace(f'"{key}":'.encode(), f'"{name}":'.encode())
    return value


def request_of(values: Mapping[str, Any], offset: int) -> MutationRequest:
    """The request of a message. An org's are all in one partition: they were sent in the order of their offsets."""
    at, carried = datetime.fromisoformat(values["executed_at"]), values.get("insert_record")
    record = Record(carried["engagement_id"], carried["who_id"], moment_of(carried).date()) if carried else None
    day = date.fromisoformat(values["engagement_date"]) if values.get("engagement_date") else None
    return MutationRequest(
        values["request_id"], values["op"], values["old_id"], values.get("new_id"), at, 0, offset, record, day
    )


def moment_of(engagement: Mapping[str, Any]) -> datetime:
    """When it happened, in UTC."""
    return datetime.fromisoformat(engagement["engaged_at"]).astimezone(UTC)
