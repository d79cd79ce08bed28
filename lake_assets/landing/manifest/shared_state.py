"""The state in the manifest that both zones follow: cutover policies, deletion requests, and rounds.

A round is a compaction or a reshard of a shard up to a cut. Each of them is recorded once, by the zone that comes
first, and never changed; a zone that lags follows it later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from lake_assets.base.hours import milliseconds
from lake_assets.errors import UsageError
from lake_assets.landing.files.cutover import Policy
from lake_assets.landing.files.offset_ranges import Ranges, with_number_keys, with_text_keys
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.manifest.file_rows import finish_round
from lake_assets.landing.manifest.row_conversion import ranges_from_json, ranges_to_json
from lake_assets.landing.manifest.schema import DELETIONS, DONE, IDLE_POLICIES, POLICIES, RANGES, ROUNDS
from lake_assets.landing.manifest.store import Manifest


@dataclass(frozen=True)
class DeletionRequest:
    """A request to delete the records of one distinct id from a topic: those that Kafka had when it was made.

    Attributes:
        request_id: Unique in the topic.
        topic: The topic.
        id_hash: Keyed hash of the distinct id; the id itself is not stored.
        sent_through: Milliseconds since 1970, inclusive.
        cut: Partition → the offset, as landed, after the last message that Kafka had. Records below it are deleted, and
            those beyond it whose own timestamp is not later than `sent_through`: producers send late, too. None: a
            request of an earlier version, which also goes by the time in the message.
    """

    request_id: str
    topic: str
    id_hash: str
    sent_through: int
    cut: Mapping[int, int] | None = field(default=None, hash=False)

    def covers(self, record: Record, happened: Callable[[Record], int]) -> bool:
        """Return whether a record of the id is deleted.

        Args:
            record: The record.
            happened: Returns when a record happened or was sent, whichever is earlier, in milliseconds since 1970.
        """
        if self.cut is None:
            return happened(record) <= self.sent_through
        return record.offset < self.cut.get(record.partition, 0) or record.timestamp <= self.sent_through


@dataclass(frozen=True)
class Round:
    """A compaction or a reshard of a shard, the same in both zones.

    Attributes:
        shard: As `Shard` formats it.
        number: From 1 on, without a gap.
        cut: Partition → last offset, inclusive.
        groups: Of a compaction: for each group the ranges of its files.
        of: Of a reshard: the new number of shards; None for a compaction.
    """

    shard: str
    number: int
    cut: Mapping[int, int]
    groups: tuple[tuple[Ranges, ...], ...] = ()
    of: int | None = None


@dataclass(frozen=True)
class SharedState:
    """Reads and records the state that both zones follow."""

    manifest: Manifest

    def policies(self, topic: str, partition: int, *, default: Policy | None = None) -> list[Policy]:
        """Return the cutover policies of a partition by offset.

        Args:
            topic: The topic.
            partition: The partition.
            default: Recorded if there is none. If the last one is of a version before, one with its limits and the
                rule of the default follows it, from the first offset at which no zone can have cut yet.
        """
        if default is None:
            with self.manifest.engine.connect() as connection:
                return _policies(connection, topic, partition)
        with self.manifest.change() as (connection, _):
            recorded = _policies(connection, topic, partition)
            if recorded and (recorded[-1].by_heartbeats or not default.by_heartbeats):
                return recorded
            following = default
            if recorded:
                from_offset = max(_earliest_policy_offset(connection, topic, partition), recorded[-1].from_offset + 1)
                following = replace(recorded[-1], by_heartbeats=True, from_offset=from_offset)
            _insert_policy(connection, topic, partition, following)
            return [*recorded, following]

    def set_policy(self, topic: str, partition: int, policy: Policy) -> None:
        """Record a policy that applies from its offset on.

        Raises:
            UsageError: A zone may have cut at this offset already, or another policy begins there.
        """
        with self.manifest.change() as (connection, _):
            earliest = _earliest_policy_offset(connection, topic, partition)
            taken = {recorded.from_offset for recorded in _policies(connection, topic, partition)}
            if policy.from_offset < earliest or policy.from_offset in taken:
                raise UsageError(
                    f"A cutover policy of {topic}, partition {partition}, cannot be effective from offset "
                    f"{policy.from_offset}: a zone has cut there, or another policy begins there.",
                    remedy=f"Take a later offset, {earliest} at the least.",
                )
            _insert_policy(connection, topic, partition, policy)

    def change_policies(self, topic: str, **limits: Any) -> dict[int, Policy]:
        """Change limits of all partitions of a topic, from the first offset at which no zone can have cut yet.

        Args:
            topic: The topic.
            **limits: Fields of `Policy`, such as `max_messages`; the others stay as they are.

        Returns:
            Partition → the new policy.

        Raises:
            UsageError: The topic was never tailed. No partition is changed.
        """
        query = sa.select(POLICIES.c.partition).where(POLICIES.c.topic == topic).distinct()
        with self.manifest.change() as (connection, _):
            partitions = sorted(connection.execute(query).scalars())
            if not partitions:
                raise UsageError(f"No cutover policy of {topic} is recorded.", remedy="Run `lake landing run` first.")
            changed = {}
            for partition in partitions:
                current = _policies(connection, topic, partition)[-1]
                earliest = _earliest_policy_offset(connection, topic, partition)
                from_offset = max(earliest, current.from_offset + 1)
                changed[partition] = replace(current, **limits, from_offset=from_offset)
                _insert_policy(connection, topic, partition, changed[partition])
            return changed

    def request_deletion(self, request: DeletionRequest, *, now: datetime) -> DeletionRequest:
        """Record a deletion request; return the recorded one of its id: the first one counts.

        Raises:
            UsageError: The request reaches into the future, or its id belongs to a request for another distinct id.
        """
        if request.sent_through > milliseconds(now):
            raise UsageError(
                f"Deletion request {request.request_id} is of {request.sent_through} ms since 1970, "
                f"and now it is {milliseconds(now)}.",
                remedy="Request records sent by now at the latest; otherwise a lagging zone could not agree.",
            )
        with self.manifest.change() as (connection, _):
            recorded = {found.request_id: found for found in _deletions(connection, request.topic)}
            existing = recorded.get(request.request_id)
            if existing is None:
                cut = None if request.cut is None else json.dumps(with_text_keys(request.cut))
                connection.execute(sa.insert(DELETIONS).values({**vars(request), "cut": cut}))
                return request
            if existing.id_hash != request.id_hash:
                raise UsageError(
                    f"Deletion request {request.request_id} of {request.topic} is recorded for another id.",
                    remedy="Give each request an id of its own.",
                )
            return existing

    def deletions(self, topic: str) -> list[DeletionRequest]:
        """Return all deletion requests of a topic, ordered by id."""
        with self.manifest.engine.connect() as connection:
            return _deletions(connection, topic)

    def rounds(self, shard: Shard) -> list[Round]:
        """Return the rounds of a shard, in order."""
        query = sa.select(ROUNDS).where(ROUNDS.c.shard == str(shard)).order_by(ROUNDS.c.number)
        with self.manifest.engine.connect() as connection:
            return [_round_of(row) for row in connection.execute(query)]

    def reshards(self, topic: str) -> list[Round]:
        """Return the rounds of a topic that reshard it, in order."""
        query = sa.select(ROUNDS).where(ROUNDS.c.topic == topic, ROUNDS.c.shards.is_not(None))
        with self.manifest.engine.connect() as connection:
            return [_round_of(row) for row in connection.execute(query.order_by(ROUNDS.c.number, ROUNDS.c.shard))]

    def propose_round(self, proposed: Round) -> Round:
        """Record a round by compare-and-swap; return the recorded round of its number, which may be another one."""
        query = sa.select(ROUNDS).where(ROUNDS.c.shard == proposed.shard, ROUNDS.c.number == proposed.number)
        with self.manifest.change() as (connection, _):
            recorded = connection.execute(query).first()
            if recorded is not None:
                return _round_of(recorded)
            connection.execute(sa.insert(ROUNDS).values(_row_of(proposed)))
            return proposed

    def finished_rounds(self, zone: str, shard: Shard) -> frozenset[int]:
        """Return the numbers of the rounds of a shard that a zone has finished."""
        query = sa.select(DONE.c.number).where(DONE.c.zone == zone, DONE.c.shard == str(shard))
        with self.manifest.engine.connect() as connection:
            return frozenset(connection.execute(query).scalars())

    def finish_round(self, zone: str, finished: Round) -> None:
        """Record that a zone has finished a round. Safe to repeat."""
        with self.manifest.change() as (connection, _):
            finish_round(connection, zone, finished.shard, finished.number)


def _policies(connection: sa.Connection, topic: str, partition: int) -> list[Policy]:
    is_same = sa.and_(
        IDLE_POLICIES.c.topic == POLICIES.c.topic,
        IDLE_POLICIES.c.partition == POLICIES.c.partition,
        IDLE_POLICIES.c.from_offset == POLICIES.c.from_offset,
    )
    query = (
        sa.select(
            POLICIES.c.max_messages,
            POLICIES.c.max_bytes,
            POLICIES.c.max_age_ms,
            POLICIES.c.from_offset,
            IDLE_POLICIES.c.max_idle_ms,
            sa.func.coalesce(POLICIES.c.by_heartbeats, sa.false()),
        )
        .join_from(POLICIES, IDLE_POLICIES, is_same, isouter=True)
        .where(POLICIES.c.topic == topic, POLICIES.c.partition == partition)
        .order_by(POLICIES.c.from_offset)
    )
    return [Policy(*row) for row in connection.execute(query)]


def _earliest_policy_offset(connection: sa.Connection, topic: str, partition: int) -> int:
    """Return the first offset from which another policy may apply: after the first offset of a zone's open file."""
    query = sa.select(sa.func.max(RANGES.c.last)).where(
        RANGES.c.shard.startswith(f"{topic}/", autoescape=True),
        RANGES.c.partition == partition,
    )
    last = connection.execute(query).scalar_one()
    if last is None:
        return 0
    open_file = int(last) + 1
    return open_file + 1


def _insert_policy(connection: sa.Connection, topic: str, partition: int, policy: Policy) -> None:
    values = asdict(policy)
    max_idle_ms = values.pop("max_idle_ms")
    connection.execute(sa.insert(POLICIES).values(topic=topic, partition=partition, **values))
    if max_idle_ms is not None:
        place = {"topic": topic, "partition": partition, "from_offset": policy.from_offset}
        connection.execute(sa.insert(IDLE_POLICIES).values(max_idle_ms=max_idle_ms, **place))


def _deletions(connection: sa.Connection, topic: str) -> list[DeletionRequest]:
    query = (
        sa.select(
            DELETIONS.c.request_id,
            DELETIONS.c.topic,
            DELETIONS.c.id_hash,
            DELETIONS.c.sent_through,
            DELETIONS.c.cut,
        )
        .where(DELETIONS.c.topic == topic)
        .order_by(DELETIONS.c.request_id)
    )
    found = []
    for request_id, _, id_hash, sent_through, stored in connection.execute(query):
        cut: dict[int, int] | None = None if stored is None else with_number_keys(json.loads(stored))
        found.append(DeletionRequest(request_id, topic, id_hash, sent_through, cut))
    return found


def _row_of(proposed: Round) -> dict[str, Any]:
    groups = []
    for group in proposed.groups:
        groups.append([ranges_to_json(ranges) for ranges in group])
    return {
        "shard": proposed.shard,
        "number": proposed.number,
        "topic": parse_shard(proposed.shard).topic,
        "cut": json.dumps(proposed.cut),
        "groups": json.dumps(groups),
        "shards": proposed.of,
    }


def _round_of(row: sa.Row[Any]) -> Round:
    groups = []
    for group in json.loads(row.groups):
        groups.append(tuple(ranges_from_json(ranges) for ranges in group))
    cut: dict[int, int] = with_number_keys(json.loads(row.cut))
    return Round(row.shard, row.number, cut, tuple(groups), of=row.shards)
