"""Landing in one zone: the files that its tails close, and those that it misses.

Copies of another zone's files, for a zone that cannot read their messages any more.

A copy is the other zone's word: nothing compares it with a second reading. So a zone copies by itself only a *verified*
file, which it has once landed equally. Other files are copied when a person says so (`lake landing repair`, `lake
landing accept`).

Refetch: a zone lands again the files that it misses and the other zone has, with the same offsets and shard.

A file that was discarded leaves a gap. A zone that goes on from its last offset does not see a gap beside its dead
letters, or between other shards of the same offsets. One file fills the gap even if its neighbours are merged by now;
otherwise it could not be merged with them any more.

Landing in one zone: the files that its tails close are written and added to the manifest.

Failure model: the dead letters of a file are added before it, and the file determines where its partition continues. A
process that dies in between does not add the same dead letters again, in whatever form they are by then. If a file
cannot be added, such as one that differs from the other zone's file, its partition stops. A partition also stops if
Kafka does not have its offsets any more, or has another topic under its name. Stops are recorded in the manifest. After
a restart, the zone first lands the files that it misses (`refetch`), then continues at the first offset that it does
not have (`starts`). Partitions and topics that are created meanwhile are tailed too, and so are those that a person
accepts after they have stopped.

Opening the tailer of a zone as the settings describe it. Loads no catalog, so that a process of it stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from lake_assets.errors import DiskFull, LakeError, LandingError, MessagesLost, ServiceError, offsets_gone
from lake_assets.landing.cutover import Policy
from lake_assets.landing.kafka import IdCheck, Place, Reader, WatchedTopic, ends_of, existing_partitions, watch_topics
from lake_assets.landing.manifest import (
    ALL_STAGES,
    ALL_VERDICTS,
    CURRENT_STAGES,
    READABLE,
    Entry,
    Manifest,
    Verdict,
    begun_offsets,
    files_of,
    lost_dead_letters,
)
from lake_assets.landing.messages import Feed, Scrub
from lake_assets.landing.records import (
    NOTHING,
    DataFile,
    RangeIndex,
    Ranges,
    Record,
    Shard,
    Tally,
    file_name,
    first_offsets,
    last_offsets,
    next_offsets,
    parse_shard,
)
from lake_assets.landing.state import Epoch, IdleSpan, Ledger, SharedState, Stops, record_idle
from lake_assets.landing.tail import Closed, Delivery, IntakeCounter, OpenFiles, Start, Tail, starts_of, step
from lake_assets.landing.zones import ZoneWriter, locked_zone, open_zones
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from lake_assets.incremental.engine.erasures import KeyedHash


def copy_file(writer: ZoneWriter, file: DataFile, *, now: datetime) -> Verdict:
    """Land a copy of another zone's file.

    Args:
        writer: Of the zone that misses the file.
        file: The file of another zone.
        now: The present time.

    Raises:
        FileDamaged: The file is damaged too.
        ServiceError: The object store of its zone does not answer.
        LandingError: What else `ZoneWriter.land` raises.
    """
    (source,) = (zone for zone in writer.manifest.peers if zone.name == file.zone)
    records = source.records(file)
    draft = writer.zone.draft(file.shard, file.ranges, records, deletions=file.deletions, kind=file.kind)
    return writer.land(draft, now=now)


def is_verified(writer: ZoneWriter, file: DataFile) -> bool:
    """Return whether a file of any zone is verified: a zone may copy it by itself."""
    entry = writer.manifest.entry(file.zone, file.name)
    return entry is not None and entry.verdict == "verified"


def gone_files(manifest: Manifest, topic: str) -> list[DataFile]:
    """Return the files that the zone of the manifest has once landed, for they are verified, and has no record of."""
    return missing_files(manifest, topic, anywhere=True, verdicts=("verified",))


def missing_files(
    manifest: Manifest, topic: str, *, anywhere: bool = False, verdicts: Sequence[Verdict] = READABLE
) -> list[DataFile]:
    """Return the live files of other zones that the zone misses: none of their records, though it landed later offsets.

    A file in quarantine is not missing: it waits for a decision.

    Args:
        manifest: Of the zone.
        topic: The topic.
        anywhere: Return files beyond the ends of the zone's files, too.
        verdicts: Return files with these.
    """
    entries = manifest.entries(topic=topic, stages=ALL_STAGES, verdicts=ALL_VERDICTS)
    known = {entry.file.name: entry for entry in entries if entry.file.zone == manifest.zone}
    own = files_of(entry for entry in known.values() if entry.stage in CURRENT_STAGES)
    # One that the zone has replaced cannot land again.
    others = [entry for entry in entries if entry.file.name not in known and entry.verdict in verdicts]
    return gaps(own, others, anywhere=anywhere)


def begins_before(file: DataFile, limits: Mapping[int, int]) -> bool:
    """Return whether a file begins before the limit of one of its partitions."""
    return any(first < limits.get(partition, 0) for partition, (first, _) in file.ranges.items())


def lost_files(manifest: Manifest, topic: str) -> list[DataFile]:
    """Return the files of dead letters that the zone has landed, and that no zone has any more, without their sums."""
    shard = str(Shard(topic, dead_letters=True))
    found = []
    for partition, first, last in lost_dead_letters(manifest, topic):
        ranges = {partition: (first, last)}
        name = file_name(shard, ranges, (), "append")
        found.append(DataFile(name, 0, shard, ranges, frozenset(), 0, NOTHING, manifest.zone))
    return found


def gaps(own: Sequence[DataFile], others: Iterable[Entry], *, anywhere: bool = False) -> list[DataFile]:
    """Return the live files of other zones that share no record with a zone's own files, and lie below their ends.

    Files of different sharding specifications share records if their shards do. Pure.

    Args:
        own: The zone's files.
        others: The files of other zones.
        anywhere: Return files beyond the ends of the zone's files, too.
    """
    ends = next_offsets(file for file in own if not file.holds_dead_letters)
    by_shard: dict[Shard, list[Ranges]] = {}
    for file in own:
        by_shard.setdefault(parse_shard(file.shard), []).append(file.ranges)
    indexes = {shard: RangeIndex(several) for shard, several in by_shard.items()}
    found = []
    for entry in others:
        file, shard = entry.file, parse_shard(entry.file.shard)
        is_below = all(last < ends.get(partition, 0) for partition, (_, last) in file.ranges.items())
        if entry.stage != "live" or entry.verdict == "quarantined" or not (anywhere or is_below):
            continue
        if not any(shard.overlaps(known) and index.overlaps(file.ranges) for known, index in indexes.items()):
            found.append(file)
    return found


@dataclass(frozen=True)
class Source:
    """Where a zone takes the files from that it misses.

    Attributes:
        servers: Of Kafka, `host:port`, comma-separated.
        feed: Of the topic.
        epoch: Of the topic.
        earliest: Partition → the landed offset of the first message that Kafka has.
        scrub: How deletion requests of the topic find their records; None leaves these to a later scrub.
    """

    servers: str
    feed: Feed
    epoch: Epoch
    earliest: Mapping[int, int] = field(default_factory=dict)
    scrub: Scrub | None = None

    def require_in_kafka(self, file: DataFile) -> None:
        """Raise `MessagesLost` if Kafka has removed an offset of a file."""
        for partition, first in first_offsets([file]).items():
            earliest = self.earliest.get(partition, 0)
            if first < earliest:
                raise offsets_gone(self.feed.topic, partition, expected=first, earliest=earliest)


def fill(writer: ZoneWriter, file: DataFile, source: Source, *, now: datetime) -> Verdict:
    """Land a missing file again; if Kafka does not have it any more, copy the other zone's file if it is verified.

    Raises:
        MessagesLost: Kafka does not have it, and the other zone's file is not verified.
        FileDamaged: Kafka does not have it, and the other zone's file is damaged.
        ServiceError: Kafka does not answer.
        LandingError: What `ZoneWriter.land` raises.
    """
    try:
        source.require_in_kafka(file)
        return refetch(writer, file, source, now=now)
    except MessagesLost:
        if not is_verified(writer, file):
            raise
        return copy_file(writer, file, now=now)


def refetch(writer: ZoneWriter, file: DataFile, source: Source, *, now: datetime) -> Verdict:
    """Land the offsets of a file again, with constant memory, scrubbed for the same requests.

    Args:
        writer: Of the zone that misses the file.
        file: The file of the other zone.
        source: Where the messages are.
        now: The present time.

    Returns:
        The verdict of the new file.

    Raises:
        ServiceError: Kafka does not have the offsets any more.
        LandingError: What `ZoneWriter.land` raises.
    """
    records = _read_records(file, source, SharedState(writer.manifest))
    deletions: frozenset[str] = frozenset()
    if source.scrub is not None and file.deletions:
        recorded = SharedState(writer.manifest).deletions(source.feed.topic)
        requests = [request for request in recorded if request.request_id in file.deletions]
        deletions = frozenset(request.request_id for request in requests)
        records = source.scrub.kept(records, requests, Tally(), dead_letters=file.holds_dead_letters)
    draft = writer.zone.draft(file.shard, file.ranges, records, deletions=deletions, kind=file.kind)
    return writer.land(draft, now=now)


def _read_records(file: DataFile, source: Source, state: SharedState) -> Iterator[Record]:
    feed = source.feed
    shard = parse_shard(file.shard)
    lasts = last_offsets([file])
    starts = {Place(feed.topic, partition): first for partition, first in first_offsets([file]).items()}
    bases = {place: source.epoch.base(place.partition) for place in starts}
    policies = {place.partition: state.policies(*place) for place in starts}
    with Reader(source.servers, starts, bases=bases) as reader:
        while not reader.at_end:
            for _, record in reader.read(READ_AT_ONCE, seconds=_READ_SECONDS):
                last = lasts[record.partition]
                if record.offset >= last:
                    reader.leave(Place(feed.topic, record.partition))
                if record.offset > last:
                    continue
                if _belongs_to(shard, record, feed, policies[record.partition]):
                    yield record


def _belongs_to(shard: Shard, record: Record, feed: Feed, policies: Sequence[Policy] = ()) -> bool:
    is_dead_letter = feed.flaw_of(record, policies) is not None
    if is_dead_letter or shard.dead_letters:
        return is_dead_letter and shard.dead_letters
    return shard.takes(feed.distinct_id_of(record))


READ_AT_ONCE = 1000
"""The most messages of one read, by default."""

_READ_SECONDS = 0.2

SILENCE = timedelta(seconds=10)
"""After so long without a message, Kafka is asked whether it still answers."""

DISCOVERY = timedelta(seconds=30)
"""How often a tailer looks for new partitions and topics."""

Alarm = Callable[[str], None]
"""Is called with a sentence about what stopped."""


def ignore_alarm(_: str) -> None:
    """Do nothing."""


class ZoneTailer:
    """Tails all partitions of feeds in one zone. A context manager.

    A topic that does not exist yet is tailed within `DISCOVERY` of its creation, and so is a new partition. A partition
    stops if its file cannot be added, or if Kafka does not give it; the others continue. One that a person has accepted
    continues within the same time.

    Attributes:
        files: Number of files landed.
        messages: Number of messages read.
        stopped: The partitions that stopped, and why.
        not_refetched: Names of missing files that could not be landed again, and why.
    """

    def __init__(
        self,
        delivery: Delivery,
        servers: str,
        feeds: Sequence[Feed],
        *,
        policy: Policy,
        read_at_once: int = READ_AT_ONCE,
        alarm: Alarm = ignore_alarm,
    ) -> None:
        """Land the files that the zone misses, and prepare to tail.

        Args:
            delivery: Of the zone.
            servers: Of Kafka, `host:port`, comma-separated.
            feeds: The topics.
            policy: Cutover policy of partitions that have none yet.
            read_at_once: The most messages of one read.
            alarm: Called at once when a partition stops or a file cannot be landed again.
        """
        self.files = 0
        self.messages = 0
        self.stopped: dict[Place, LakeError] = {}
        self.not_refetched: dict[str, LakeError] = {}
        self._servers = servers
        self._feeds = {feed.topic: feed for feed in feeds}
        self._policy = policy
        self._read_at_once = read_at_once
        self._alarm = alarm
        self._bases: dict[Place, int] = {}
        self._epochs: dict[str, Epoch] = {}
        self._starts: dict[Place, Start] = {}
        self._tails: dict[Place, Tail] = {}
        self._open_files = OpenFiles(delivery.writer, delivery.scrubs, self._epochs)
        self._counter = IntakeCounter(servers, self._bases)
        self._delivery = replace(delivery, count_given=self._counter)
        self._ids = IdCheck(servers, self._epochs)
        self._stops = Stops(delivery.writer.manifest)
        self._discovered_at = delivery.clock()
        watched = self._watch(existing_partitions(servers, self._feeds))
        self._fill_gaps(watched)
        offsets = self._begin(watched)
        self._reader = Reader(servers, offsets, bases=self._bases, on_unreadable=self._stop_unreadable)

    @property
    def zone(self) -> str:
        """The name of the zone."""
        return self._delivery.writer.zone.name

    def __enter__(self) -> Self:
        self._reader.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._write_open_files()  # before the reader is closed: it leaves a partition that has to stop
        finally:
            self._reader.__exit__(kind, error, trace)
            self._counter.close()

    def step(self, *, seconds: float = _READ_SECONDS) -> int:
        """Read once, wait for `seconds` at most, and land the files that close; return the number of messages."""
        self._discover_if_due()
        self._ids.forget()
        count = step(
            self._reader,
            self._tails,
            self._take,
            max_messages=self._read_at_once,
            seconds=seconds,
        )
        self.messages += count
        if self._open_files.is_due:
            self._write_open_files()
        if count:
            self._record_idle()
        return count

    def drain(self, *, seconds: float = _READ_SECONDS) -> int:
        """Read the messages that every partition has now, but not those that arrive meanwhile; return their number.

        Raises:
            ServiceError: Kafka does not answer any more.
        """
        count = 0
        heard_at = self._delivery.clock()
        in_kafka = ends_of(self._servers, self._starts)
        ends = {place: end + self._bases.get(place, 0) for place, end in in_kafka.items()}
        while not self._reader.reached(ends):
            read = self.step(seconds=seconds)
            count += read
            now = self._delivery.clock()
            if not read and now >= heard_at + SILENCE:
                ends_of(self._servers, self._starts)  # raises if Kafka is gone, for which the reader would wait
            if read or now >= heard_at + SILENCE:
                heard_at = now
        return count

    def _write_open_files(self) -> None:
        """Write what was read, if it was read of the recorded topic; if Kafka cannot say so, it is read again later."""
        same = {}
        with suppress(ServiceError):
            for place, tail in list(self._tails.items()):
                if tail.written == len(tail.messages) or self._is_same_topic(place):
                    same[place] = tail
        self._open_files.write(same)

    def _record_idle(self) -> None:
        spans: list[IdleSpan] = []
        for place, tail in list(self._tails.items()):
            span = tail.take_idle()
            if span is not None and self._is_same_topic(place):
                spans.append(span)
        if spans:
            record_idle(self._delivery.writer.manifest, self.zone, spans)

    def _is_same_topic(self, place: Place) -> bool:
        """Return whether the topic is the recorded one; stop the partition if it is not."""
        problem = self._ids.problem(place.topic)
        if problem:
            self._stop(place, problem)
        return problem is None

    def _discover_if_due(self) -> None:
        now = self._delivery.clock()
        if now < self._discovered_at + DISCOVERY:
            return
        self._discovered_at = now
        try:
            existing = existing_partitions(self._servers, self._feeds)
            self._leave_accepted()
            tailed = set(self._starts)
            new = [topic for topic, numbers in existing.items() if {Place(topic, n) for n in numbers} - tailed]
            watched = self._watch(new)
        except ServiceError as error:  # the reader goes on as soon as Kafka answers again
            self._alarm(f"zone {self.zone}: new partitions cannot be looked for: {error}")
            return
        if watched:
            self._fill_gaps(watched)
            self._reader.add(self._begin(watched))

    def _leave_accepted(self) -> None:
        """Forget the partitions that a person has let continue, so that they are begun like new ones.

        These are all of a topic that was accepted in the place of another one, and those that have stopped and whose
        stop is not recorded any more.
        """
        ledger = Ledger(self._delivery.writer.manifest)
        replaced = {topic for topic, epoch in self._epochs.items() if ledger.epoch(topic) != epoch}
        accepted = [place for place in self._starts if place.topic in replaced]
        recorded = {Place(stop.topic, stop.partition) for stop in self._stops.all() if stop.zone == self.zone}
        accepted += [place for place in self.stopped if place not in recorded and place.topic not in replaced]
        self._forget(accepted)
        for topic in replaced:
            del self._epochs[topic]

    def _forget(self, places: Collection[Place]) -> None:
        self._reader.remove(places)
        for place in places:
            self._open_files.drop(place)
            self._starts.pop(place, None)
            self._tails.pop(place, None)
            self._bases.pop(place, None)
            self.stopped.pop(place, None)

    def _watch(self, topics: Iterable[str]) -> dict[str, WatchedTopic]:
        watched = watch_topics(self._delivery.writer.manifest, self._servers, topics, now=self._delivery.clock())
        for topic, found in watched.items():
            self._epochs.setdefault(topic, found.epoch)  # of a topic that is tailed, the epoch of its first messages
        return watched

    def _begin(self, watched: Mapping[str, WatchedTopic]) -> dict[Place, int | None]:
        """Begin to tail the partitions that are not tailed yet, and return their first offsets."""
        manifest = self._delivery.writer.manifest
        new: dict[Place, Start] = {}
        for topic, found in watched.items():
            if not found.replaced:
                SharedState(manifest).begin(topic, found.earliest, self._policy)
            files = files_of(manifest.entries(topic=topic, stages=ALL_STAGES))
            starts = starts_of(
                self.zone,
                files,
                found.state.ends,
                begun=begun_offsets(manifest, topic, files),
                gaps=Ledger(manifest).gaps(topic),
                earliest=found.earliest,
            )
            for partition, start in starts.items():
                place = Place(topic, partition)
                if place not in self._starts:
                    new[place] = start
                    self._bases[place] = self._epochs[topic].base(partition)
                    self._tails[place] = Tail(place, self._feeds[topic], partial(self._policies, place), start.offset)
        self._starts.update(new)
        begun = {place: self._resume(place, start.offset) for place, start in new.items()}
        self._stop_at_once(begun, watched)
        begun = {place: offset for place, offset in begun.items() if place in self._tails}
        for topic in {place.topic for place in begun}:  # they continue now
            self._stops.clear(topic, [self.zone], [place.partition for place in begun if place.topic == topic])
        return begun

    def _policies(self, place: Place) -> list[Policy]:
        state = SharedState(self._delivery.writer.manifest)
        return state.policies(*place, default=self._policy, begin=self._tails[place].begin)

    def _resume(self, place: Place, begin: int | None) -> int | None:
        """Go on in the open file of a partition; return the offset to read from."""
        for record in self._open_files.resume(place, begin):
            tail = self._tails.get(place)
            closed = tail.take(record) if tail else None
            if closed:
                self._take(closed, self._note_stop)  # the reader does not have the partition yet
            begin = record.offset + 1
        if place in self._tails:
            self._tails[place].written = len(self._tails[place].messages)
        return begin

    def _take(self, closed: Closed, stop: Callable[[Place, LakeError], None] | None = None) -> None:
        start = self._starts[closed.place]
        if closed.place in self.stopped:
            return
        if start.has_landed(closed):  # after a gap that was just filled: landed before, and maybe compacted since
            self._open_files.drop(closed.place)
            return
        if stop is None and self._is_given_up(closed):
            self._forget([closed.place])  # to be begun again behind what is lost
            return
        try:
            problem = self._ids.problem(closed.place.topic)
            if problem:
                raise problem
            self._delivery.take(start.without_landed_dead_letters(closed, self._delivery.writer.records))
        except DiskFull:
            raise
        except (LandingError, MessagesLost) as error:
            (stop or self._stop)(closed.place, error)
        else:
            self._open_files.drop(closed.place)
            self.files += 1

    def _is_given_up(self, closed: Closed) -> bool:
        """Return whether a person has accepted meanwhile that an offset of a closed file is lost for good."""
        gaps = Ledger(self._delivery.writer.manifest).gaps(closed.place.topic)
        return RangeIndex(gap.ranges for gap in gaps).overlaps({closed.place.partition: (closed.first, closed.last)})

    def _stop_unreadable(self, place: Place, error: ServiceError) -> None:
        """Stop a partition that Kafka does not give; say so if the reason is that the topic is another one now."""
        replaced = None
        with suppress(ServiceError):
            replaced = self._ids.problem(place.topic)
        self._stop(place, replaced or error)

    def _stop(self, place: Place, error: LakeError) -> None:
        self._note_stop(place, error)
        self._reader.leave(place)

    def _note_stop(self, place: Place, error: LakeError) -> None:
        self.stopped[place] = error
        self._stops.record(self.zone, place.topic, place.partition, error, now=self._delivery.clock())
        self._alarm(f"zone {self.zone}: stopped at {place.topic} partition {place.partition}: {error}")
        self._tails.pop(place, None)
        if not isinstance(error, MessagesLost | ServiceError):
            self._open_files.drop(place)  # another start reads these messages from Kafka again

    def _stop_at_once(self, begun: Mapping[Place, int | None], watched: Mapping[str, WatchedTopic]) -> None:
        """Stop the partitions that cannot continue: of another topic, or at an offset that Kafka has removed."""
        for place, offset in begun.items():
            topic = watched[place.topic]
            earliest = topic.earliest.get(place.partition, 0)
            if topic.replaced:
                self._note_stop(place, topic.replaced)
            elif offset is not None and offset < earliest:
                self._note_stop(place, offsets_gone(*place, expected=offset, earliest=earliest))

    def _fill_gaps(self, watched: Mapping[str, WatchedTopic]) -> None:
        writer = self._delivery.writer
        for topic, state in watched.items():
            if state.replaced:
                continue
            source = Source(
                self._servers,
                self._feeds[topic],
                state.epoch,
                state.earliest,
                self._delivery.scrubs.get(topic),
            )
            missing = {file.name: file for file in missing_files(writer.manifest, topic)}
            # Those that the zone cannot read any more: Kafka has forgotten their offsets.
            forgotten = [file for file in gone_files(writer.manifest, topic) if begins_before(file, state.earliest)]
            missing |= {file.name: file for file in (*forgotten, *lost_files(writer.manifest, topic))}
            for file in missing.values():
                try:
                    fill(writer, file, source, now=self._delivery.clock())
                except DiskFull:
                    raise
                except (LandingError, MessagesLost, ServiceError) as error:
                    self.not_refetched[file.name] = error
                    self._alarm(f"zone {self.zone}: {file.name} was not landed again: {error}")
                else:
                    self.files += 1


_MS_PER_SECOND = 1000
MAX_IDLE_MS = 6 * 3600 * _MS_PER_SECOND
"""An idle partition has four files a day. After a restart, a zone reads so many hours of heartbeats again, at most."""


def scrub_by(settings: Settings, feed: Feed) -> Scrub:
    """Return the rules of a feed: ids are hashed as in `etl.erasure`. The key is read when it is first needed."""

    @cache
    def keyed() -> KeyedHash:
        from lake_assets.incremental.engine.erasures import KeyedHash, erasure_key

        return KeyedHash(partial(erasure_key, settings))

    return Scrub(feed.distinct_id_of, lambda value: keyed().of(feed.subject or feed.distinct_id, value), feed.sent)


def open_tailer(
    settings: Settings,
    servers: str,
    feeds: Sequence[Feed],
    writer: ZoneWriter,
    *,
    clock: Callable[[], datetime],
    read_at_once: int = READ_AT_ONCE,
    alarm: Alarm = ignore_alarm,
) -> ZoneTailer:
    """Return a tailer of feeds in a zone; a context manager.

    Args:
        settings: Limits of files for partitions that have none yet.
        servers: Of Kafka, `host:port`, comma-separated.
        feeds: The topics.
        writer: Of the zone.
        clock: Returns the present time, in UTC.
        read_at_once: The most messages of one read.
        alarm: As in `ZoneTailer`.

    Raises:
        ZoneMismatch: The folder of the zone and the manifest do not belong together.
    """
    writer.require_storage()
    policy = Policy(
        max_messages=settings.landing_file_messages,
        max_bytes=settings.landing_file_bytes,
        max_age_ms=_MS_PER_SECOND * settings.landing_age_seconds,
        max_idle_ms=MAX_IDLE_MS,
    )
    return ZoneTailer(
        Delivery(
            writer,
            clock,
            scrubs={feed.topic: scrub_by(settings, feed) for feed in feeds},
        ),
        servers,
        feeds,
        policy=policy,
        read_at_once=read_at_once,
        alarm=alarm,
    )


STARTED = "Landing has started"
"""Begins the line that a process prints when it is connected."""


def tail_zone(
    settings: Settings,
    servers: str,
    feeds: Sequence[Feed],
    zone: str,
    *,
    clock: Callable[[], datetime],
    should_stop: Callable[[], bool],
    report: Callable[[str], None],
    alarm: Alarm,
) -> None:
    """Land the messages of feeds in one zone until it should stop.

    Args:
        settings: Of the home.
        servers: Of Kafka, `host:port`, comma-separated.
        feeds: The topics.
        zone: Name of the zone.
        clock: Returns the present time, in UTC.
        should_stop: Called between two reads.
        report: Called with one line when the zone begins to read, as `lake up` waits for it.
        alarm: As in `ZoneTailer`.

    Raises:
        UsageError: There is no such zone, or another process tails it.
        ServiceError: Kafka does not answer.
    """
    (writer,) = open_zones(settings, [zone])
    with (
        locked_zone(settings.landing_folder, zone),
        open_tailer(settings, servers, feeds, writer, clock=clock, alarm=alarm) as tailer,
    ):
        report(f"{STARTED} in zone {zone}: {', '.join(feed.topic for feed in feeds)}")
        while not should_stop():
            tailer.step()
