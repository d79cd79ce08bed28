"""What the manifest has beside files: policies, requests, rounds, epochs, losses, stops, idle spans.

The commands that both zones follow: cutover policies, deletion requests, and rounds.

A round is a compaction or a reshard of a shard up to a cut. Each of them is recorded once, by the zone that comes
first, and never changed; a zone that lags follows it later.

The topics of Kafka that landed under a name, and the losses that a person has accepted.

A topic that is deleted and created again has the same name, offsets from 0, and another id. Files, raw tables and
rounds count by offsets, so the offsets of the new topic must not be those of the former one. An *epoch* is the time of
one topic id. Its offset 0 is landed as the offset `base` of the partition: the offset after the last one of the epoch
before. The first epoch has the base 0, so its landed offsets are those of Kafka.

The partitions that a zone does not land any more, and why: written by tailers, read by status, report and checks.

How long Kafka keeps messages that have landed.

Kafka's own retention goes by the timestamps of messages, landed or not. So landing removes messages itself: those that
both zones had landed equally at a time that is long enough ago. Each look at the files records how far they had landed
by then, as a mark; merging gives files new times, so the files themselves do not say it.

Idle spans: offsets after the last file of a partition that hold heartbeats alone, by the account of each zone.

An idle partition cuts few files. So that its heartbeats count all the same, a zone records how far it has read them. A
span holds no row, and both zones read the same messages: if both of them have read a span from the same offset on, the
earlier one of their latest heartbeats tells how far the partition is complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from lake_assets.base.hours import from_milliseconds, milliseconds
from lake_assets.errors import LakeError, UsageError, state_moved
from lake_assets.landing.coverage import Cover, ready_ends
from lake_assets.landing.cutover import Policy
from lake_assets.landing.manifest import (
    ALL_VERDICTS,
    CURRENT_STAGES,
    DONE,
    IDLE_SPANS,
    RANGES,
    RETENTION_MARKS,
    STOPS,
    Command,
    Manifest,
    begun_offsets,
    files_of,
    finish_round,
    horizon_of,
    mark_changed,
    ranges_from_json,
    ranges_to_json,
)
from lake_assets.landing.records import (
    Ranges,
    Record,
    Shard,
    first_offsets,
    parse_shard,
    with_number_keys,
    with_text_keys,
)


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


class Deletions(list[DeletionRequest]):
    """Deletion requests of a topic, to be looked up for many records: an erasure may make thousands at once.

    Not to be changed: their groups are made once.
    """

    @cached_property
    def groups(self) -> list[tuple[DeletionRequest, frozenset[str]]]:
        """Of each group of requests that cover the same records: one of them, and the hashes of all their ids."""
        found: dict[object, list[DeletionRequest]] = {}
        for request in self:
            cut = None if request.cut is None else tuple(sorted(request.cut.items()))
            found.setdefault((request.sent_through, cut), []).append(request)
        return [(group[0], frozenset(each.id_hash for each in group)) for group in found.values()]


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
    """Reads the commands that all zones follow, and issues them; of each zone, the rounds that it has finished."""

    manifest: Manifest

    def policies(
        self, topic: str, partition: int, *, default: Policy | None = None, begin: int | None = None
    ) -> list[Policy]:
        """Return the cutover policies of a partition by offset.

        Args:
            topic: The topic.
            partition: The partition.
            default: Recorded if there is none. If the last one is of a version before, one with its limits and the
                rule of the default follows it, from the first offset at which no zone can have cut yet.
            begin: A file begins at this offset: if it is near the horizon of the partition, that moves on.
        """
        recorded = self._policies(topic).get(partition, [])
        issued = []
        if default is not None and not (recorded and (recorded[-1].by_heartbeats or not default.by_heartbeats)):
            following = default
            if recorded:
                from_offset = max(self._earliest_policy_offset(topic, partition), recorded[-1].from_offset + 1)
                following = replace(recorded[-1], by_heartbeats=True, from_offset=from_offset)
            issued.append(_policy_command(topic, partition, following))
        if begin is not None:
            lead = _LEAD_FILES * (recorded or [default or Policy(1, 1, 1)])[-1].max_messages
            if begin + lead // 2 >= horizon_of(self.manifest.commands("horizon", topic), partition):
                horizon = {"topic": topic, "partition": partition, "to": begin + lead}
                issued.append(Command("horizon", topic, horizon))
        if issued:
            self.manifest.issue(*issued)
            recorded = self._policies(topic)[partition]
        return recorded

    def begin(self, topic: str, earliest: Mapping[int, int], default: Policy) -> None:
        """Record the first policy of the partitions of a topic that have none, and with it where they begin.

        So a zone that comes when Kafka has forgotten more knows what it lacks, though nothing has landed yet.

        Args:
            topic: The topic.
            earliest: Partition → the landed offset of the first message that Kafka has.
            default: The policy.
        """
        known = self._policies(topic)
        new = [_policy_command(topic, p, default, first=first) for p, first in earliest.items() if p not in known]
        if new:
            self.manifest.issue(*new)

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
        changed: dict[int, Policy] = {}
        found = self._policies(topic)
        if not found:
            raise UsageError(f"No cutover policy of {topic} is recorded.", remedy="Run `lake landing run` first.")
        while found.keys() - changed.keys():  # again if another change came before
            for partition, policies in sorted(found.items()):
                if partition not in changed:
                    earliest = max(self._earliest_policy_offset(topic, partition), policies[-1].from_offset + 1)
                    wanted = replace(policies[-1], **limits, from_offset=earliest)
                    self.manifest.issue(_policy_command(topic, partition, wanted))
                    found = self._policies(topic)
                    last = found[partition][-1]
                    if replace(last, from_offset=earliest) == wanted:
                        changed[partition] = last
        return changed

    def _policies(self, topic: str) -> dict[int, list[Policy]]:
        found: dict[int, list[Policy]] = {}
        for body in self.manifest.commands("policy", topic):
            limits: dict[str, Any] = {name: body.get(name) for name in Policy.__dataclass_fields__}
            own = {"by_heartbeats": bool(limits["by_heartbeats"]), "from_offset": body["begins"]}
            found.setdefault(body["partition"], []).append(Policy(**{**limits, **own}))
        return {partition: sorted(several, key=attrgetter("from_offset")) for partition, several in found.items()}

    def _earliest_policy_offset(self, topic: str, partition: int) -> int:
        """Return the first offset from which another policy may apply: after the first one of a zone's open file."""
        query = sa.select(sa.func.max(RANGES.c.last)).where(
            RANGES.c.shard.startswith(f"{topic}/", autoescape=True),
            RANGES.c.partition == partition,
        )
        ((last,),) = self.manifest.rows(query)
        return 0 if last is None else int(last) + 2

    def request_deletions(self, topic: str, requests: Iterable[DeletionRequest], *, now: datetime) -> None:
        """Record deletion requests of a topic, all at once. Of requests with one request id, the first one counts.

        Raises:
            UsageError: A request reaches into the future, or its id belongs to a request for another distinct id.
        """
        wanted = list(requests)
        commands = []
        for request in wanted:
            if request.sent_through > milliseconds(now):
                raise UsageError(
                    f"Deletion request {request.request_id} is of {request.sent_through} ms since 1970, "
                    f"and now it is {milliseconds(now)}.",
                    remedy="Request records sent by now at the latest; otherwise a lagging zone could not agree.",
                )
            cut = None if request.cut is None else json.dumps(with_text_keys(request.cut))
            commands.append(Command("deletion", topic, {**vars(request), "cut": cut}))
        self.manifest.issue(*commands)
        hashes = {found.request_id: found.id_hash for found in self.deletions(topic)}
        for request in wanted:
            if hashes[request.request_id] != request.id_hash:
                raise UsageError(
                    f"Deletion request {request.request_id} of {topic} is recorded for another id.",
                    remedy="Give each request an id of its own.",
                )

    def deletions(self, topic: str) -> Deletions:
        """Return all deletion requests of a topic, ordered by id."""
        found: list[DeletionRequest] = []
        for body in self.manifest.commands("deletion", topic):
            cut: dict[int, int] | None = with_number_keys(json.loads(body["cut"])) if body.get("cut") else None
            found.append(DeletionRequest(body["request_id"], topic, body["id_hash"], body["sent_through"], cut))
        return Deletions(sorted(found, key=attrgetter("request_id")))

    def rounds(self, shard: Shard) -> list[Round]:
        """Return the rounds of a shard, in order."""
        return [found for found in self._rounds(shard.topic) if found.shard == str(shard)]

    def reshards(self, topic: str) -> list[Round]:
        """Return the rounds of a topic that reshard it, in order."""
        return [found for found in self._rounds(topic) if found.of is not None]

    def _rounds(self, topic: str) -> list[Round]:
        found = []
        for body in self.manifest.commands("round", topic):
            groups = tuple(tuple(map(ranges_from_json, group)) for group in json.loads(body["groups"]))
            cut: dict[int, int] = with_number_keys(json.loads(body["cut"]))
            found.append(Round(body["shard"], body["number"], cut, groups, of=body["shards"]))
        return sorted(found, key=attrgetter("number", "shard"))

    def propose_round(self, proposed: Round) -> Round:
        """Record a round; return the recorded round of its number, which may be another one: the first one counts."""
        topic = parse_shard(proposed.shard).topic
        groups = [[ranges_to_json(ranges) for ranges in group] for group in proposed.groups]
        place = {"shard": proposed.shard, "number": proposed.number, "topic": topic}
        content = {"cut": json.dumps(with_text_keys(proposed.cut)), "groups": json.dumps(groups), "shards": proposed.of}
        self.manifest.issue(Command("round", topic, {**place, **content}))
        recorded = self.rounds(parse_shard(proposed.shard))
        return next(found for found in recorded if found.number == proposed.number)

    def finished_rounds(self, zone: str, shard: Shard) -> frozenset[int]:
        """Return the numbers of the rounds of a shard that a zone has finished."""
        return frozenset(
            row.number for row in self.manifest.rows(sa.select(DONE).filter_by(zone=zone, shard=str(shard)))
        )

    def finish_round(self, zone: str, finished: Round) -> None:
        """Record that a zone has finished a round. Safe to repeat."""
        with self.manifest.change() as (connection, _):
            finish_round(connection, zone, finished.shard, finished.number)


def _policy_command(topic: str, partition: int, policy: Policy, **first: int) -> Command:
    return Command("policy", topic, {"topic": topic, "partition": partition, **asdict(policy), **first})


_LEAD_FILES = 8
"""A horizon lies so many files ahead, if they are as large as they may be."""

UNKNOWN_ID = ""
"""The id of a topic that landed before ids were recorded, and that Kafka does not have any more."""


@dataclass(frozen=True)
class Epoch:
    """One topic of Kafka under a name.

    Attributes:
        topic: The name.
        number: From 1 on, without a gap.
        topic_id: As Kafka gives it.
        bases: Partition → the landed offset of its offset 0; a missing partition has 0.
        reason: Why it was accepted; empty for the first one.
    """

    topic: str
    number: int
    topic_id: str
    bases: Mapping[int, int]
    reason: str = ""

    def base(self, partition: int) -> int:
        """Return the landed offset of Kafka's offset 0."""
        return self.bases.get(partition, 0)

    def landed_offsets(self, in_kafka: Mapping[int, int]) -> dict[int, int]:
        """Return, for each partition, the landed offset of an offset in Kafka."""
        return {partition: offset + self.base(partition) for partition, offset in in_kafka.items()}


@dataclass(frozen=True)
class Loss:
    """Offsets that Kafka does not have any more and that a zone has not landed. A person has accepted it.

    Attributes:
        first: First landed offset, inclusive.
        last: Last landed offset, inclusive.
        zones: The zones that lost them.
        for_good: Whether no zone has them. Otherwise the zones that lost them have copies of another zone's files.
        reason: Why they are lost.
        accepted_at: When it was accepted.
    """

    topic: str
    partition: int
    first: int
    last: int
    zones: tuple[str, ...]
    for_good: bool
    reason: str
    accepted_at: datetime

    @property
    def cover(self) -> Cover:
        """The lost offsets as covered: code that walks over offsets skips them."""
        return Cover({self.partition: (self.first, self.last)}, readable=True)


@dataclass(frozen=True)
class Ledger:
    """Reads and records epochs and losses."""

    manifest: Manifest

    def epoch(self, topic: str) -> Epoch | None:
        """Return the present epoch of a topic; None if its id was never recorded."""
        bodies = self.manifest.commands("topic", topic)
        if not bodies:
            return None
        last = max(bodies, key=itemgetter("number"))
        bases: dict[int, int] = with_number_keys(json.loads(last["bases"]))
        return Epoch(topic, last["number"], last["topic_id"], bases, last["reason"])

    def learn(self, topic: str, topic_id: str, *, now: datetime) -> Epoch:
        """Return the present epoch of a topic; if no id was recorded, record this one as that of the first epoch."""
        if self.epoch(topic) is None:
            self.manifest.issue(_epoch_command(Epoch(topic, 1, topic_id, {}), now))
        recorded = self.epoch(topic)
        assert recorded is not None
        return recorded

    def losses(self, topic: str | None = None) -> list[Loss]:
        """Return the accepted losses of a topic or (None) of all, by topic, partition and offset."""
        found = []
        for body in self.manifest.commands("loss", topic):
            zones, accepted_at = tuple(json.loads(body["zones"])), from_milliseconds(body["accepted_at"])
            changed = {"zones": zones, "accepted_at": accepted_at, "for_good": bool(body["for_good"])}
            found.append(Loss(**{**body, **changed}))
        return sorted(found, key=attrgetter("topic", "partition", "first", "last"))

    def gaps(self, topic: str) -> list[Cover]:
        """Return the offsets of a topic that are lost for good, as covered."""
        return [loss.cover for loss in self.losses(topic) if loss.for_good]

    def accept(self, epoch: Epoch, losses: Sequence[Loss], *, after: Epoch | None, now: datetime) -> None:
        """Record an epoch and losses. Repeating it changes nothing.

        Args:
            epoch: The epoch from now on; it may be the recorded one.
            losses: What is lost.
            after: The epoch that the decision is based on.
            now: The present time.

        Raises:
            PublishConflict: Another epoch was recorded meanwhile.
        """
        recorded = self.epoch(epoch.topic)
        if recorded != epoch:
            if recorded == after:
                self.manifest.issue(_epoch_command(epoch, now))
                recorded = self.epoch(epoch.topic)
            if recorded != epoch:
                raise state_moved(f"the topic id of {epoch.topic}", expected=_id_of(after), found=_id_of(recorded))
        commands = []
        for loss in losses:
            stored = {"zones": json.dumps(loss.zones), "accepted_at": milliseconds(loss.accepted_at)}
            commands.append(Command("loss", loss.topic, {**vars(loss), **stored}))
        if commands:
            self.manifest.issue(*commands)


def _epoch_command(epoch: Epoch, now: datetime) -> Command:
    stored = {"bases": json.dumps(with_text_keys(epoch.bases)), "since": milliseconds(now)}
    return Command("topic", epoch.topic, {**vars(epoch), **stored})


def _id_of(epoch: Epoch | None) -> str:
    return "none" if epoch is None else epoch.topic_id or "not known"


@dataclass(frozen=True)
class Stop:
    """A partition that stopped in a zone.

    Attributes:
        since: When a tailer first stopped there for this reason.
    """

    zone: str
    topic: str
    partition: int
    problem: str
    remedy: str
    since: datetime

    @property
    def sentence(self) -> str:
        """Where it stopped, and why."""
        return f"zone {self.zone} has stopped at {self.topic} partition {self.partition}: {self.problem}"


@dataclass(frozen=True)
class Stops:
    """Reads and records stops."""

    manifest: Manifest

    def all(self, topic: str | None = None) -> list[Stop]:
        """Return the stops of a topic or (None) of all, by topic, partition and zone."""
        query = sa.select(STOPS).filter_by(**({"topic": topic} if topic else {}))
        rows = self.manifest.rows(query.order_by(STOPS.c.topic, STOPS.c.partition, STOPS.c.zone))
        return [Stop(**{**row._mapping, "since": from_milliseconds(row.since)}) for row in rows]

    def record(self, zone: str, topic: str, partition: int, error: LakeError, *, now: datetime) -> None:
        """Record that a partition stopped. The time of a stop for the same reason does not change."""
        place = {"zone": zone, "topic": topic, "partition": partition}
        with self.manifest.change() as (connection, _):
            if connection.execute(sa.select(STOPS.c.problem).filter_by(**place)).scalar() == error.problem:
                return
            connection.execute(sa.delete(STOPS).filter_by(**place))
            stop = {"problem": error.problem, "remedy": error.remedy, "since": milliseconds(now)}
            connection.execute(sa.insert(STOPS).values(**place, **stop))
            mark_changed(connection, STOPS, zone)

    def clear(self, topic: str, zones: Collection[str], partitions: Iterable[int] | None = None) -> None:
        """Forget the stops of partitions of a topic (None: of all of them) in zones."""
        cleared = (STOPS.c.topic == topic) & STOPS.c.zone.in_(zones)
        if partitions is not None:
            cleared &= STOPS.c.partition.in_(list(partitions))
        if self.manifest.rows(sa.select(STOPS).where(cleared)):  # otherwise no new version
            with self.manifest.change() as (connection, _):
                connection.execute(sa.delete(STOPS).where(cleared))
                for zone in zones:
                    mark_changed(connection, STOPS, zone)


@dataclass(frozen=True)
class Mark:
    """How far a partition had landed in all zones at a time. end: the landed offset after the last one."""

    partition: int
    end: int
    at: datetime


@dataclass(frozen=True)
class Retention:
    """Reads and records retentions and marks of topics."""

    manifest: Manifest

    def hours(self, topic: str) -> int | None:
        """Return for how many hours Kafka keeps a message after it has landed; None: nothing is removed."""
        return ([body["hours"] for body in self.manifest.commands("retention", topic)] or [0])[-1] or None

    def keep(self, topic: str, hours: int) -> bool:
        """Record for how many hours Kafka keeps messages; 0 for ever. Return whether that is a change."""
        if (self.hours(topic) or 0) == hours:
            return False
        self.manifest.issue(Command("retention", topic, {"topic": topic, "hours": hours, "id": uuid4().hex}))
        return True

    def marks(self, epoch: Epoch) -> list[Mark]:
        """Return the marks of a topic as long as it is the same topic, in the order of their times."""
        query = sa.select(RETENTION_MARKS).filter_by(topic=epoch.topic, epoch=epoch.number)
        rows = self.manifest.rows(query.order_by(RETENTION_MARKS.c.at, RETENTION_MARKS.c.partition))
        return [Mark(row.partition, row.end, from_milliseconds(row.at)) for row in rows]

    def replace_marks(self, epoch: Epoch, marks: Iterable[Mark]) -> None:
        """Record the marks of a topic in the place of all that it has."""
        of_epoch = {"topic": epoch.topic, "epoch": epoch.number}
        rows = [{**of_epoch, **vars(mark), "at": milliseconds(mark.at)} for mark in marks]
        with self.manifest.change() as (connection, _):
            connection.execute(sa.delete(RETENTION_MARKS).filter_by(topic=epoch.topic))
            if rows:
                connection.execute(sa.insert(RETENTION_MARKS), rows)


def landed_everywhere(manifest: Manifest, topic: str, zones: Collection[str]) -> dict[int, int]:
    """Return, for each partition, the offset up to which all zones have verified files, dead letters included."""
    entries = manifest.entries(topic=topic, stages=CURRENT_STAGES, verdicts=ALL_VERDICTS)
    whole = [entry for entry in entries if not entry.file.holds_dead_letters]
    begun = begun_offsets(manifest, topic, files_of(entries))
    lost = Ledger(manifest).gaps(topic)
    unsettled = first_offsets(entry.file for entry in entries if entry.verdict != "verified")
    several: list[Mapping[int, int]] = [unsettled]
    for zone in zones:
        live = [entry for entry in whole if entry.file.zone == zone and entry.stage == "live"]
        # Offsets of files that are not verified count as missing.
        own = [Cover(entry.file.ranges, entry.verdict == "verified", parse_shard(entry.file.shard)) for entry in live]
        several.append(ready_ends([*own, *lost], begun))
    return {partition: min(ends[partition] for ends in several if partition in ends) for partition in begun}


def removable(marks: Sequence[Mark], landed: Mapping[int, int], *, before: datetime) -> dict[int, int]:
    """Return, for each partition, the landed offset before which Kafka's messages are not needed. Pure.

    Args:
        marks: How far the partitions had landed at earlier times.
        landed: How far they have landed now. It may be less, if a file was discarded.
        before: Messages that had not landed by then are kept.
    """
    found: dict[int, int] = {}
    for mark in marks:
        if mark.at <= before and mark.partition in landed:
            end = min(mark.end, landed[mark.partition])
            found[mark.partition] = max(end, found.get(mark.partition, 0))
    return found


def kept_marks(marks: Sequence[Mark], landed: Mapping[int, int], *, before: datetime, now: datetime) -> list[Mark]:
    """Return the marks to keep, and those of now: later ones, and of the earlier ones the furthest. Pure.

    The last one is not always the furthest: while only one zone has merged, its files are not verified.
    """
    old = [mark for mark in marks if mark.at <= before]
    furthest = {mark.partition: mark for mark in sorted(old, key=lambda mark: mark.end)}
    later = [mark for mark in marks if before < mark.at < now]
    return [*furthest.values(), *later, *(Mark(partition, end, now) for partition, end in sorted(landed.items()))]


@dataclass(frozen=True)
class IdleSpan:
    """Heartbeats that a zone has read of a partition, and nothing else.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: The offset after the last file of the zone.
        last: Offset of the last heartbeat.
        heartbeat: Time of the last heartbeat.
    """

    topic: str
    partition: int
    first: int
    last: int
    heartbeat: datetime


SpansByZone = Mapping[str, Mapping[int, IdleSpan]]
"""Zone → partition → span."""


def record_idle(manifest: Manifest, zone: str, spans: Iterable[IdleSpan]) -> None:
    """Record the spans of a zone, in one transaction. One that ends earlier than the recorded one changes nothing."""
    with manifest.change() as (connection, _):
        for span in spans:
            place = {"zone": zone, "topic": span.topic, "partition": span.partition}
            last = connection.execute(sa.select(IDLE_SPANS.c.last).filter_by(**place)).scalar()
            if last is None or last < span.last:
                connection.execute(sa.delete(IDLE_SPANS).filter_by(**place))
                stored = {**vars(span), "zone": zone, "heartbeat": milliseconds(span.heartbeat)}
                connection.execute(sa.insert(IDLE_SPANS).values(stored))
                mark_changed(connection, IDLE_SPANS, zone)


def idle_spans(manifest: Manifest, topic: str) -> SpansByZone:
    """Return the spans of a topic."""
    found: dict[str, dict[int, IdleSpan]] = {}
    for row in manifest.rows(sa.select(IDLE_SPANS).filter_by(topic=topic)):
        span = IdleSpan(topic, row.partition, row.first, row.last, from_milliseconds(row.heartbeat))
        found.setdefault(row.zone, {})[row.partition] = span
    return found


def with_idle(landed: Mapping[int, int], spans: Mapping[int, IdleSpan]) -> dict[int, int]:
    """Return the offset after the last one that a zone has landed, or has read as an idle span, by partition. Pure."""
    ends = dict(landed)
    for partition, span in spans.items():
        ends[partition] = max(span.last + 1, ends.get(partition, 0))
    return ends


def idle_heartbeats(
    spans: SpansByZone, zones: Collection[str], next_offsets: Mapping[int, int | None], *, any_zone: bool
) -> dict[int, datetime]:
    """Return, for each idle partition, the heartbeat up to which it has no row that is not loaded. Pure.

    Args:
        spans: Of the topic.
        zones: All zones.
        next_offsets: Partition → the next offset to load; None for a partition that has no file yet.
        any_zone: Whether the account of one zone is enough.
    """
    found: dict[int, datetime] = {}
    for partition, offset in next_offsets.items():
        own = [spans[zone][partition] for zone in zones if partition in spans.get(zone, {})]
        # Those that begin at the offset.
        times = [span.heartbeat for span in own if offset in (None, span.first)]
        if any_zone and times:
            found[partition] = max(times)
        elif times and len(times) == len(zones):
            found[partition] = min(times)
    return found
