"""From the messages of partitions to closed files, and the open files meanwhile.

From the messages of a Kafka partition to closed files. One file is open for each partition; the data closes it.

The files of a partition are a function of its messages, of the cutover policies and of the offsets. They do not depend
on a clock, on the speed of reading or on restarts. So two zones close the same files.

A file that begins with heartbeats stays open for hours if nothing else comes. Its tail then says how far it has read.

Failure model: a process that dies leaves its open files (`open_files`), and the next one goes on in them; what they
lack it reads again, at the latest from the offset after the last file in the manifest. Messages without a time or a
distinct id, and those that are too large or cannot be decoded, are dead letters. They are closed together with the
file, in a file of their own.

Where a zone continues in the partitions of a topic. Pure.

A zone continues at the first offset that it does not have. If Kafka has forgotten that offset, and the zone has later
files, the offset lies in a hole: new messages are landed after the zone's last file, and the hole is filled from the
other zone. If the zone has no later file, the partition cannot go on before a person has accepted the loss.

Conservation at intake: a closed file must hold every message that Kafka gave for its offsets.

Comparing zones cannot see a fault that both have. So the records and dead letters that were written, as they are read
from the drafts, are counted against the offsets of the file. Kafka numbers its messages without a gap, except for
control records of transactions, aborted messages, and messages that compaction or retention removed. If the file has
fewer messages than offsets, another consumer, which shares no code with `kafka_reader`, reads the offsets again and
counts what Kafka gives.

Writing the files that the tails of a zone close, and adding them to the manifest; see `zone_tailer`.

Open files: what a zone has read of a partition since its last file is on disk within a second.

`<zone>/open/<topic>.<partition>` is Avro with every message as it came, a block for each write; in an object store, a
prefix with an object for each write, named by its first offset. Readers stop at a torn block. A process that starts
goes on in the file: it cuts a torn block off and reads Kafka from there. The file goes when what it becomes has landed.

A request to delete has the file written again without what it covers. That file is for readers alone: a process that
starts reads these messages from Kafka again, because deleted ones count where a file is cut, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from time import monotonic

from confluent_kafka import Consumer, KafkaError, TopicPartition

from lake_assets.base.failpoints import reach
from lake_assets.connections.kafka import TIMEOUT_SECONDS, client
from lake_assets.errors import LandingError, ServiceError, intake_incomplete
from lake_assets.landing.coverage import Cover, uncovered
from lake_assets.landing.cutover import Cutter, Policy, effective
from lake_assets.landing.files import OPEN, Draft, Zone, remove_draft
from lake_assets.landing.kafka import Place, Reader
from lake_assets.landing.messages import Feed, Scrub, heartbeat_of
from lake_assets.landing.records import DataFile, Record, Shard, Tally, checksum, offsets
from lake_assets.landing.state import DeletionRequest, Epoch, IdleSpan, SharedState
from lake_assets.landing.zones import ZoneWriter


@dataclass(frozen=True)
class Closed:
    """The messages of a closed file, in order of offset.

    Attributes:
        first: First offset, inclusive. It follows the last offset of the file before.
        last: Last offset, inclusive.
        records: Messages that may become rows, and heartbeats.
        dead: Dead letters.
        dead_landed: Number of dead letters that were landed before, by a process that died then.
        dead_first: Those before this offset were landed then; the file of the others begins here, if not later.
    """

    place: Place
    first: int
    last: int
    records: Sequence[Record]
    dead: Sequence[Record]
    dead_landed: int = 0
    dead_first: int = 0


@dataclass
class Tail:
    """The open file of one partition.

    Attributes:
        place: The partition.
        feed: Of its topic.
        policies: Returns the cutover policies. It is called when a file begins, so new policies take effect.
        begin: The offset after the last closed file; None if there is none yet.
        messages: Those of the open file, and whether each is a dead letter.
        written: So many of them are on disk.
    """

    place: Place
    feed: Feed
    policies: Callable[[], Sequence[Policy]]
    begin: int | None
    messages: list[tuple[Record, bool]] = field(default_factory=list, init=False)
    written: int = field(default=0, init=False)
    _cutter: Cutter | None = field(default=None, init=False)
    _policies: Sequence[Policy] = field(default=(), init=False)
    _policy: Policy | None = field(default=None, init=False)
    _is_idle: bool = field(default=True, init=False)
    _told: IdleSpan | None = field(default=None, init=False)

    def take(self, record: Record) -> Closed | None:
        """Add the next message; return the file if this message closes it, else None."""
        if self.begin is None:
            self.begin = record.offset
        is_heartbeat = isinstance(heartbeat_of(record.headers), datetime)
        self._is_idle = self._is_idle and is_heartbeat
        if self._cutter is None:
            # By the file's first offset: its first message may have a later one, after the marker of a transaction.
            self._policies = self.policies()
            self._policy = effective(self._policies, self.begin)
            self._cutter = Cutter(self._policy)
        self.messages.append((record, self.feed.flaw_of(record, self._policies) is not None))
        span = self._cutter.add(record, is_heartbeat=is_heartbeat)
        return None if span is None else self._close(self.begin, span.last)

    def take_idle(self) -> IdleSpan | None:
        """Return the heartbeats of a file that has nothing else, if they went on by the age of a file meanwhile.

        Returns:
            None also for files whose policy treats heartbeats as other messages: these close in time.
        """
        if not (self._is_idle and self.messages and self._policy and self._policy.max_idle_ms):
            return None
        last, _ = self.messages[-1]
        heartbeat = heartbeat_of(last.headers)
        assert isinstance(heartbeat, datetime)
        assert self.begin is not None
        told = self._told
        if told is not None and told.first == self.begin:
            age = timedelta(milliseconds=self._policy.max_age_ms)
            if abs(heartbeat - told.heartbeat) < age:
                return None
        self._told = IdleSpan(self.place.topic, self.place.partition, self.begin, last.offset, heartbeat)
        return self._told

    def _close(self, first: int, last: int) -> Closed:
        # From the end of the last file, not from the first message: transactions leave offsets without a message.
        records = [record for record, is_dead in self.messages if not is_dead]
        dead = [record for record, is_dead in self.messages if is_dead]
        closed = Closed(self.place, first, last, records, dead)
        self.begin = last + 1
        self.messages = []
        self.written = 0
        self._cutter = None
        self._is_idle = True
        return closed


Deliver = Callable[[Closed], None]


def step(
    reader: Reader,
    tails: Mapping[Place, Tail],
    deliver: Deliver,
    *,
    max_messages: int,
    seconds: float,
) -> int:
    """Read once and deliver the files that close.

    Args:
        reader: Of the partitions.
        tails: Messages of a partition without a tail are ignored.
        deliver: Called with each closed file.
        max_messages: The most messages to read.
        seconds: How long to wait for them.

    Returns:
        The number of messages read.
    """
    messages = reader.read(max_messages, seconds=seconds)
    for topic, record in messages:
        tail = tails.get(Place(topic, record.partition))
        closed = tail.take(record) if tail else None
        if closed:
            deliver(closed)
    return len(messages)


@dataclass(frozen=True)
class Start:
    """Where a zone continues in a partition.

    Attributes:
        offset: The first offset to read; if the zone has none, the first one of the other zone; None if no zone has
            any.
        landed: First and last offsets of the zone's files. Some may lie after a gap, where a quarantined file was.
        dead: The zone's files of dead letters, at any stage.
    """

    offset: int | None
    landed: frozenset[tuple[int, int]] = frozenset()
    dead: tuple[DataFile, ...] = ()

    def has_landed(self, closed: Closed) -> bool:
        """Return whether a file of the zone has an offset of a closed file."""
        return any(first <= closed.last and closed.first <= last for first, last in self.landed)

    def without_landed_dead_letters(self, closed: Closed, read: Callable[[DataFile], Iterable[Record]]) -> Closed:
        """Return a closed file without the dead letters that the zone has landed before it died.

        Their file may have been compacted or scrubbed since, under another name, and its first form swept. It may end
        before the closed file does, which begins later than it would have, after messages that are lost.

        Args:
            closed: The file.
            read: Returns the records of a file of the zone.

        Raises:
            LandingError: The file of dead letters holds others, or is damaged.
        """
        partition = closed.place.partition
        spans = [(file, *file.ranges[partition]) for file in self.dead if partition in file.ranges]
        files = [(file, last) for file, first, last in spans if first <= closed.last and closed.first <= last]
        if not files:
            return closed
        end = 1 + max(last for _, last in files)
        landed = [record for record in closed.dead if record.offset < end]
        found = checksum(record.canonical for record in landed)
        if not any(file.deletions or file.checksum == found for file, _ in files):
            kept = {record for file, _ in files for record in read(file) if record.partition == partition}
            known = checksum(each.canonical for each in kept if closed.first <= each.offset <= closed.last)
            if known != found:
                file, _ = files[0]
                raise LandingError(
                    f"The dead letters {file.name} of zone {file.zone} ({offsets(file)}) were landed with the "
                    f"checksum {known}, and are now {found}.",
                    remedy="Declare the columns of the raw table as they were, then start the zone again. "
                    "`lake landing verify` says whether the file is damaged.",
                )
        others = [record for record in closed.dead if record.offset >= end]
        return replace(closed, dead=others, dead_landed=len(landed), dead_first=end)


def starts_of(
    zone: str,
    files: Sequence[DataFile],
    numbers: Iterable[int],
    *,
    begun: Mapping[int, int],
    gaps: Sequence[Cover] = (),
    earliest: Mapping[int, int],
) -> dict[int, Start]:
    """Return, for each partition of a topic, where a zone continues.

    Args:
        zone: The zone.
        files: The files of all zones at any stage, without quarantined ones.
        numbers: The partitions.
        begun: Partition → the first offset that any zone has landed.
        gaps: Offsets that are lost for good.
        earliest: Partition → the first landed offset that Kafka can still give.
    """
    own = [file for file in files if file.zone == zone and not file.holds_dead_letters]
    dead = [file for file in files if file.zone == zone and file.holds_dead_letters]
    covers = [*(Cover(file.ranges, readable=True) for file in own), *gaps]
    found = {}
    for partition in numbers:
        start = begun.get(partition)
        landed = frozenset(file.ranges[partition] for file in own if partition in file.ranges)
        if start is not None:
            end = max([start, *(cover.ranges[partition][1] + 1 for cover in covers if partition in cover.ranges)])
            holes = uncovered(covers, {partition: start}, {partition: end}).get(partition, ())
            in_kafka = [first for first, _ in holes if first >= earliest.get(partition, 0)]
            start = min(in_kafka, default=end)
        found[partition] = Start(start, landed, tuple(dead))
    return found


CountGiven = Callable[[Place, int, int], int]
"""Returns how many messages Kafka gives of a partition from one landed offset to another one, both inclusive."""

_READ_SECONDS = 1


def count_offsets(_: Place, first: int, last: int) -> int:
    """Return the number of offsets: each of them has a message unless Kafka is asked."""
    return last - first + 1


def require_conserved(closed: Closed, kept: int, count_given: CountGiven) -> None:
    """Check that the drafts of a closed file hold every message of its offsets, and each of them once.

    Args:
        closed: The file.
        kept: Number of records and dead letters in its drafts.
        count_given: Called only if there are fewer of them than offsets.

    Raises:
        LandingError: Messages are missing or doubled.
    """
    place, span = closed.place, (closed.first, closed.last)
    kept += closed.dead_landed
    numbers = {record.offset for record in (*closed.records, *closed.dead)}
    different = len(numbers) + closed.dead_landed
    given = count_offsets(place, *span)
    if kept < given:
        given = count_given(place, *span)
    if kept < given or different != kept:
        raise intake_incomplete(place.topic, place.partition, span, given=given, kept=min(kept, different))


class IntakeCounter:
    """Counts what Kafka gives, with a consumer of its own that is opened when it is first needed."""

    def __init__(self, servers: str, bases: Mapping[Place, int]) -> None:
        """Prepare to count.

        Args:
            servers: Of Kafka, `host:port`, comma-separated.
            bases: Partition → the landed offset of Kafka's offset 0; a missing partition has 0.
        """
        self._servers = servers
        self._bases = bases

    def __call__(self, place: Place, first: int, last: int) -> int:
        """Return the number of messages from one landed offset to another. Raises `ServiceError`."""
        base = self._bases.get(place, 0)
        self._consumer.assign([TopicPartition(place.topic, place.partition, first - base)])
        count = 0
        for offset in iter(lambda: self._next_offset(place), None):
            if offset > last - base:
                break
            count += 1
            if offset == last - base:
                break
        self._consumer.unassign()
        return count

    def close(self) -> None:
        """Close the consumer, if it was opened."""
        if "_consumer" in vars(self):
            self._consumer.close()

    def _next_offset(self, place: Place) -> int | None:
        """Return the offset of the next message; None at the end of the partition."""
        for _ in range(TIMEOUT_SECONDS):
            message = self._consumer.poll(_READ_SECONDS)
            if message is None:
                continue
            error = message.error()
            if error is None:
                return message.offset()
            if error.code() == KafkaError._PARTITION_EOF:
                return None
            if not error.retriable():
                raise _not_counted(self._servers, place, error.str())
        raise _not_counted(self._servers, place, "no answer")

    @cached_property
    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **client(self._servers),
                "group.id": "landing-count",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )


def _not_counted(servers: str, place: Place, reason: str) -> ServiceError:
    return ServiceError(
        f"The messages of partition {place.partition} of {place.topic} cannot be counted at Kafka at {servers}: "
        f"{reason}.",
        remedy="Check Kafka, then start the zone again: it continues with the same file.",
    )


@dataclass(frozen=True)
class Delivery:
    """Writes the files that the tails of a zone close.

    Attributes:
        writer: Of the zone.
        clock: Returns the present time, in UTC.
        count_given: Returns how many messages Kafka gives of a file that has fewer of them than offsets.
        scrubs: Topic → how its deletion requests find their records; a topic without one lands unscrubbed.
    """

    writer: ZoneWriter
    clock: Callable[[], datetime]
    count_given: CountGiven = count_offsets
    scrubs: Mapping[str, Scrub] = field(default_factory=dict)

    def take(self, closed: Closed) -> None:
        """Write a closed file and its dead letters, scrubbed for all requests that are recorded, and add them.

        Raises:
            LandingError: The drafts do not hold every message that Kafka gave; nothing is added.
            LandingError: What `ZoneWriter.land` raises.
        """
        reach("tailing-closed")
        drafts = []
        removed = Tally()
        try:
            if closed.dead:
                drafts.append(self._draft(Shard(closed.place.topic, dead_letters=True), closed, closed.dead, removed))
            drafts.append(self._draft(Shard(closed.place.topic), closed, closed.records, removed))
            kept = sum(draft.file.count for draft in drafts)
            require_conserved(closed, kept + removed.count, self.count_given)
            for draft in drafts:
                self.writer.land(draft, now=self.clock())
                if draft is not drafts[-1]:
                    reach("tailing-dead-letters-landed")
        finally:
            for draft in drafts:
                remove_draft(draft.path)

    def _draft(self, shard: Shard, closed: Closed, records: Sequence[Record], removed: Tally) -> Draft:
        first = max(closed.first, closed.dead_first) if shard.dead_letters else closed.first
        ranges = {closed.place.partition: (first, closed.last)}
        scrub = self.scrubs.get(shard.topic)
        requests = SharedState(self.writer.manifest).deletions(shard.topic) if scrub else []
        kept = records if scrub is None else scrub.kept(records, requests, removed, dead_letters=shard.dead_letters)
        deletions = frozenset(request.request_id for request in requests)
        return self.writer.zone.draft(str(shard), ranges, kept, deletions=deletions)


EVERY_SECONDS = 1.0
"""How often the messages that were read are written."""


def open_records(zone: Zone, topic: str) -> Iterator[tuple[str, list[Record]]]:
    """Yield the names of the open files of a topic in a zone, which another process may write, and their messages.

    Those of a file are of one partition, in order of offset; dead letters and heartbeats are among them.
    """
    for name in zone.open_files(topic):
        _, records = zone.read_open(name)
        yield name, records


def whole_open_files(zone: Zone, topic: str, topic_id: str) -> Iterator[tuple[int, list[Record]]]:
    """Yield the open files of a zone that have all messages that it read of a topic of Kafka since its last file.

    Yields:
        The offset after the last file, and the messages.
    """
    for name in zone.open_files(topic):
        metadata, records = zone.read_open(name)
        known = {"topic_id": topic_id, "whole": "yes"}
        if records and known.items() <= metadata.items() and _is_ordered(records):
            yield int(metadata["first"]), records


def holding(zone: Zone, topic: str, scrub: Scrub, requests: Sequence[DeletionRequest]) -> list[str]:
    """Return the names of the open files of a topic in a zone that hold a record that a request deletes."""

    def is_deleted(record: Record) -> bool:
        makes_row = scrub.distinct_id(record) is not None
        return scrub.is_named(record, requests) or (not makes_row and scrub.is_mentioned(record, requests))

    return [name for name, records in open_records(zone, topic) if any(map(is_deleted, records))]


@dataclass(frozen=True)
class _Written:
    """The requests that an open file was written for, and whether it has all messages nevertheless."""

    requests: Sequence[DeletionRequest]
    is_whole: bool = True


@dataclass
class OpenFiles:
    """The open files of a zone, written by the process that tails it.

    Attributes:
        writer: Of the zone.
        scrubs: Topic → how its deletion requests find their records.
        epochs: Topic → its epoch, as it was when its messages were read.
    """

    writer: ZoneWriter
    scrubs: Mapping[str, Scrub]
    epochs: Mapping[str, Epoch]
    _files: dict[Place, _Written] = field(default_factory=dict, init=False)
    _written_at: float = field(default=0.0, init=False)

    def resume(self, place: Place, begin: int | None) -> list[Record]:
        """Return the messages of the open file of a partition, if it is whole and of this topic; else remove it.

        Args:
            place: The partition.
            begin: The offset after the last file of the zone; None if there is none.
        """
        zone, name = self.writer.zone, _name(place)
        metadata, records = zone.read_open(name, cut=True)
        known = {"topic_id": self.epochs[place.topic].topic_id, "whole": "yes"}
        if begin is not None:
            known["first"] = str(begin)
        if not records or not _is_ordered(records) or known.items() - metadata.items():
            zone.drop_open(name)
            return []
        self._files[place] = _Written(())
        return records

    @property
    def is_due(self) -> bool:
        """Whether what tails have taken should be written."""
        return monotonic() >= self._written_at + EVERY_SECONDS

    def write(self, tails: Mapping[Place, Tail]) -> None:
        """Write what tails have taken. Raises `DiskFull`."""
        self._written_at = monotonic()
        state = SharedState(self.writer.manifest)
        requests = {topic: state.deletions(topic) for topic in {place.topic for place in tails} & self.scrubs.keys()}
        for place, tail in tails.items():
            self._write(place, tail, requests.get(place.topic, ()))

    def drop(self, place: Place) -> None:
        """Remove the open file of a partition. Safe to repeat."""
        self._files.pop(place, None)
        self.writer.zone.drop_open(_name(place))

    def _write(self, place: Place, tail: Tail, requests: Sequence[DeletionRequest]) -> None:
        written = self._files.get(place)
        if written is not None and list(written.requests) == list(requests):
            unwritten = tail.messages[tail.written :]
            kept = self._kept(place.topic, unwritten, requests)
            if len(kept) == len(unwritten) or not written.is_whole:
                self._append(place, tail, kept)
                return
        self.writer.zone.drop_open(_name(place))
        kept = self._kept(place.topic, tail.messages, requests)
        self._files[place] = _Written(requests, is_whole=len(kept) == len(tail.messages))
        self._append(place, tail, kept)

    def _kept(
        self, topic: str, messages: Sequence[tuple[Record, bool]], requests: Sequence[DeletionRequest]
    ) -> list[Record]:
        if not requests:
            return [record for record, _ in messages]
        rules = [self.scrubs[topic].rule_for(dead_letters=dead_letters) for dead_letters in (False, True)]
        return [record for record, is_dead in messages if not rules[is_dead](record, requests)]

    def _append(self, place: Place, tail: Tail, records: Sequence[Record]) -> None:
        tail.written = len(tail.messages)
        if not records:
            return
        whole = "yes" if self._files[place].is_whole else "no"
        metadata = {"first": str(tail.begin), "topic_id": self.epochs[place.topic].topic_id, "whole": whole}
        try:
            self.writer.zone.append_open(_name(place), records, metadata)
        except FileNotFoundError:  # the folder of the zone is gone, which the next file says
            self._files.pop(place, None)  # so that the file is written as a whole once the folder is back


def _name(place: Place) -> str:
    return f"{OPEN}/{place.topic}.{place.partition}"


def _is_ordered(records: Sequence[Record]) -> bool:
    return all(one.offset < other.offset for one, other in pairwise(records))
