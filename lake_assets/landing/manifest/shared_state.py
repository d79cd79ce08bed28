"""What both zones go by, in the manifest: cutover policies, deletion requests, and rounds of compaction and reshard.

Each is recorded once, by whoever comes first, and never changed; a zone that lags does later what it says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from lake_assets.errors import UsageError
from lake_assets.landing.files.cutover import Policy
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.manifest import rows
from lake_assets.landing.manifest.compaction_choice import Ranges
from lake_assets.landing.manifest.schema import (
    DELETIONS,
    DONE,
    POLICIES,
    RANGES,
    ROUNDS,
    milliseconds,
    read_ranges,
    written_ranges,
)
from lake_assets.landing.manifest.store import Manifest


@dataclass(frozen=True)
class DeletionRequest:
    """What was sent of somebody to a topic, up to a time, is to go.

    id_hash: the keyed hash of the distinct id; the id itself is not kept. sent_through: milliseconds since 1970,
    inclusive: what is sent later stays, so the zones agree even if one lags.
    """

    request_id: str
    topic: str
    id_hash: str
    sent_through: int


@dataclass(frozen=True)
class Round:
    """What is done to the files of a shard, up to a cut: the same in both zones.

    number: from 1 on, without a gap. cut: partition → last offset, inclusive. groups: of a compaction, the ranges of
    the files of each group. of: of a reshard, how many shards there will be.
    """

    shard: str
    number: int
    cut: Mapping[int, int]
    groups: tuple[tuple[Ranges, ...], ...] = ()
    of: int | None = None


@dataclass(frozen=True)
class Agreements:
    """Reads and records them."""

    manifest: Manifest

    def policies(self, topic: str, partition: int, *, otherwise: Policy) -> list[Policy]:
        """The cutover policies of a partition, by offset. otherwise: recorded for it if there is none yet."""
        with self.manifest.change() as (connection, _):
            found = _policies(connection, topic, partition)
            if not found:
                _insert_policy(connection, topic, partition, otherwise)
            return found or [otherwise]

    def set_policy(self, topic: str, partition: int, policy: Policy) -> None:
        """Let another policy be effective from an offset on. Raises `UsageError` where a zone may have cut already."""
        with self.manifest.change() as (connection, _):
            first = _next_policy(connection, topic, partition)
            if policy.from_offset < first or policy.from_offset in {
                p.from_offset for p in _policies(connection, topic, partition)
            }:
                raise UsageError(
                    f"A cutover policy of {topic}, partition {partition}, can not be effective from offset "
                    f"{policy.from_offset}: a zone has cut there, or another policy is.",
                    remedy=f"Take a later offset, {first} at the least.",
                )
            _insert_policy(connection, topic, partition, policy)

    def change_policies(self, topic: str, **limits: int) -> dict[int, Policy]:
        """Let limits of a topic be others as soon as zones agree on where: partition → the new policy, all or none.

        limits: such as `max_messages`; the others stay. Raises `UsageError` if the topic was never tailed.
        """
        query = sa.select(POLICIES.c.partition).where(POLICIES.c.topic == topic).distinct()
        with self.manifest.change() as (connection, _):
            found = sorted(connection.execute(query).scalars())
            if not found:
                raise UsageError(f"No cutover policy of {topic} is recorded.", remedy="Run `lake landing run` first.")
            changed = {}
            for partition in found:
                last = _policies(connection, topic, partition)[-1]
                begin = max(_next_policy(connection, topic, partition), last.from_offset + 1)
                changed[partition] = replace(last, **limits, from_offset=begin)
                _insert_policy(connection, topic, partition, changed[partition])
            return changed

    def request_deletion(self, request: DeletionRequest, *, now: datetime) -> None:
        """Record a request. The same again is no change. Raises `UsageError` for one from the future."""
        if request.sent_through > milliseconds(now):
            raise UsageError(
                f"Deletion request {request.request_id} is of {request.sent_through} ms since 1970, "
                f"and now it is {milliseconds(now)}.",
                remedy="Request what was sent by now at the latest: a lagging zone could not agree otherwise.",
            )
        with self.manifest.change() as (connection, _):
            found = {r.request_id: r for r in _deletions(connection, request.topic)}
            if request.request_id not in found:
                connection.execute(sa.insert(DELETIONS).values(asdict(request)))
            elif found[request.request_id] != request:
                raise UsageError(
                    f"Deletion request {request.request_id} of {request.topic} is another one already.",
                    remedy="Give each request an id of its own.",
                )

    def deletions(self, topic: str) -> list[DeletionRequest]:
        """All requests of a topic, by id."""
        with self.manifest.engine.connect() as connection:
            return _deletions(connection, topic)

    def rounds(self, shard: Shard) -> list[Round]:
        """The rounds of a shard, in order."""
        query = sa.select(ROUNDS).where(ROUNDS.c.shard == str(shard)).order_by(ROUNDS.c.number)
        with self.manifest.engine.connect() as connection:
            return [_round_of(row) for row in connection.execute(query)]

    def agree(self, proposed: Round) -> Round:
        """Record a round, compare-and-swap: the proposed one, or that which somebody else recorded under its number."""
        there = sa.select(ROUNDS).where(ROUNDS.c.shard == proposed.shard, ROUNDS.c.number == proposed.number)
        with self.manifest.change() as (connection, _):
            if found := connection.execute(there).first():
                return _round_of(found)
            connection.execute(sa.insert(ROUNDS).values(_row_of(proposed)))
            return proposed

    def ended(self, zone: str, shard: Shard) -> frozenset[int]:
        """The numbers of the rounds of a shard that a zone has done."""
        query = sa.select(DONE.c.number).where(DONE.c.zone == zone, DONE.c.shard == str(shard))
        with self.manifest.engine.connect() as connection:
            return frozenset(connection.execute(query).scalars())

    def end(self, zone: str, found: Round) -> None:
        """Record that a zone has done a round. Safe to repeat."""
        with self.manifest.change() as (connection, _):
            rows.end_round(connection, zone, found.shard, found.number)


def _policies(connection: sa.Connection, topic: str, partition: int) -> list[Policy]:
    place = (POLICIES.c.topic == topic) & (POLICIES.c.partition == partition)
    columns = (POLICIES.c.max_messages, POLICIES.c.max_bytes, POLICIES.c.max_age_ms, POLICIES.c.from_offset)
    return [Policy(*row) for row in connection.execute(sa.select(*columns).where(place).order_by(columns[-1]))]


def _next_policy(connection: sa.Connection, topic: str, partition: int) -> int:
    """The first offset from which another policy may be effective: the open file of a zone begins before it."""
    of_topic = RANGES.c.shard.startswith(f"{topic}/", autoescape=True)
    query = sa.select(sa.func.max(RANGES.c.last)).where(of_topic, RANGES.c.partition == partition)
    last = connection.execute(query).scalar_one()
    return 0 if last is None else int(last) + 2


def _insert_policy(connection: sa.Connection, topic: str, partition: int, policy: Policy) -> None:
    connection.execute(sa.insert(POLICIES).values(topic=topic, partition=partition, **asdict(policy)))


def _deletions(connection: sa.Connection, topic: str) -> list[DeletionRequest]:
    columns = (DELETIONS.c.request_id, DELETIONS.c.topic, DELETIONS.c.id_hash, DELETIONS.c.sent_through)
    query = sa.select(*columns).where(DELETIONS.c.topic == topic).order_by(DELETIONS.c.request_id)
    return [DeletionRequest(*row) for row in connection.execute(query)]


def _row_of(found: Round) -> dict[str, Any]:
    groups = [[written_ranges(ranges) for ranges in group] for group in found.groups]
    place = {"shard": found.shard, "number": found.number, "topic": parse_shard(found.shard).topic}
    return {**place, "cut": json.dumps(found.cut), "groups": json.dumps(groups), "shards": found.of}


def _round_of(row: sa.Row[Any]) -> Round:
    groups = tuple(tuple(read_ranges(ranges) for ranges in group) for group in json.loads(row.groups))
    cut = {int(partition): int(last) for partition, last in json.loads(row.cut).items()}
    return Round(row.shard, row.number, cut, groups, row.shards)
