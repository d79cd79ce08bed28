"""Landing in one zone: the files that its tails close are written and added to the manifest.

Failure model: the dead letters of a file are added before it, and the file determines where its partition continues. A
process that dies in between does not add the same dead letters again, in whatever form they are by then. If a file
cannot be added, such as one that differs from the other zone's file, its partition stops. A partition also stops if
Kafka does not have its offsets any more, or has another topic under its name. Stops are recorded in the manifest. After
a restart, the zone first lands the files that it misses (`refetch`), then continues at the first offset that it does
not have (`starts`). Partitions and topics that are created meanwhile are tailed too, and so are those that a person
accepts after they have stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self

from lake_assets.errors import DiskFull, LakeError, LandingError, OffsetsGone, ServiceError, TopicRecreated
from lake_assets.landing.consume.idle_spans import IdleSpan, record_idle
from lake_assets.landing.consume.kafka_reader import Place, Reader, ends_of, existing_partitions
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.consume.topic_watch import IdCheck, WatchedTopic, watch_topics
from lake_assets.landing.files.cutover import Policy
from lake_assets.landing.manifest.index_rows import begun_offsets
from lake_assets.landing.manifest.schema import ALL_STAGES, files_of
from lake_assets.landing.manifest.shared_state import SharedState
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.tailing.delivery import Delivery
from lake_assets.landing.tailing.intake import IntakeCounter
from lake_assets.landing.tailing.open_files import OpenFiles
from lake_assets.landing.tailing.refetch import Source, fill, forgotten_files, lost_files, missing_files
from lake_assets.landing.tailing.starts import Start, starts_of
from lake_assets.landing.tailing.tailer import Closed, Tail, step
from lake_assets.landing.topics.ledger import Epoch, Ledger
from lake_assets.landing.topics.stops import Stops

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
        with suppress(ServiceError):
            same = {}
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
            watched = self._watch(self._new_topics(existing))
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
        accepted += [place for place in self._resumed() if place.topic not in replaced]
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

    def _resumed(self) -> list[Place]:
        """Return the partitions that have stopped and whose stop is not recorded any more."""
        recorded = {Place(stop.topic, stop.partition) for stop in self._stops.all() if stop.zone == self.zone}
        return [place for place in self.stopped if place not in recorded]

    def _new_topics(self, existing: Mapping[str, Collection[int]]) -> list[str]:
        """Return the topics with a partition that is not tailed yet."""
        found = []
        for topic, numbers in existing.items():
            if any(Place(topic, number) not in self._starts for number in numbers):
                found.append(topic)
        return found

    def _watch(self, topics: Iterable[str]) -> dict[str, WatchedTopic]:
        watched = watch_topics(self._delivery.writer.manifest, self._servers, topics, now=self._delivery.clock())
        for topic, found in watched.items():
            self._epochs.setdefault(topic, found.epoch)  # of a topic that is tailed, the epoch of its first messages
        return watched

    def _begin(self, watched: Mapping[str, WatchedTopic]) -> dict[Place, int | None]:
        """Begin to tail the partitions that are not tailed yet, and return their first offsets."""
        writer = self._delivery.writer
        new = {place: start for place, start in _starts(writer, watched).items() if place not in self._starts}
        for place in new:
            self._bases[place] = self._epochs[place.topic].base(place.partition)
        self._starts.update(new)
        self._tails.update(_tails(new, self._feeds, SharedState(writer.manifest), self._policy))
        begun = {place: self._resume(place, start.offset) for place, start in new.items()}
        self._stop_at_once(begun, watched)
        begun = {place: offset for place, offset in begun.items() if place in self._tails}
        self._forget_stops(begun)
        return begun

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
        try:
            self._require_same_topic(closed.place)
            self._delivery.take(start.without_landed_dead_letters(closed))
        except DiskFull:
            raise
        except LandingError as error:
            (stop or self._stop)(closed.place, error)
        else:
            self._open_files.drop(closed.place)
            self.files += 1

    def _require_same_topic(self, place: Place) -> None:
        problem = self._ids.problem(place.topic)
        if problem:
            raise problem

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
        if not isinstance(error, OffsetsGone | TopicRecreated | ServiceError):
            self._open_files.drop(place)  # another start reads these messages from Kafka again

    def _stop_at_once(self, begun: Mapping[Place, int | None], watched: Mapping[str, WatchedTopic]) -> None:
        """Stop the partitions that cannot continue: of another topic, or at an offset that Kafka has removed."""
        for place, offset in begun.items():
            topic = watched[place.topic]
            earliest = topic.earliest.get(place.partition, 0)
            if topic.replaced:
                self._note_stop(place, topic.replaced)
            elif offset is not None and offset < earliest:
                self._note_stop(place, OffsetsGone(*place, expected=offset, earliest=earliest))

    def _forget_stops(self, begun: Collection[Place]) -> None:
        """Forget the former stops of the partitions that continue now."""
        for topic in {place.topic for place in begun}:
            continuing = [place.partition for place in begun if place.topic == topic]
            self._stops.clear(topic, [self.zone], continuing)

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
                self._delivery.others,
                self._delivery.scrubs.get(topic),
            )
            missing = {file.name: file for file in missing_files(writer.manifest, self.zone, topic)}
            for file in (
                *forgotten_files(writer.manifest, self.zone, topic, state.earliest),
                *lost_files(writer.manifest, self.zone, topic),
            ):
                missing[file.name] = file
            for file in missing.values():
                try:
                    fill(writer, file, source, now=self._delivery.clock())
                except DiskFull:
                    raise
                except (LandingError, ServiceError) as error:
                    self.not_refetched[file.name] = error
                    self._alarm(f"zone {self.zone}: {file.name} was not landed again: {error}")
                else:
                    self.files += 1


def _starts(writer: ZoneWriter, watched: Mapping[str, WatchedTopic]) -> dict[Place, Start]:
    """Return, for each partition of topics, where a zone continues."""
    found: dict[Place, Start] = {}
    manifest = writer.manifest
    for topic, state in watched.items():
        files = files_of(manifest.entries(topic=topic, stages=ALL_STAGES))
        starts = starts_of(
            writer.zone.name,
            files,
            state.state.ends,
            begun=begun_offsets(manifest, topic, [file for file in files if not file.holds_dead_letters]),
            gaps=Ledger(manifest).gaps(topic),
            earliest=state.earliest,
        )
        for partition, start in starts.items():
            found[Place(topic, partition)] = start
    return found


def _tails(
    starts: Mapping[Place, Start], feeds: Mapping[str, Feed], state: SharedState, policy: Policy
) -> dict[Place, Tail]:
    tails = {}
    for place, start in starts.items():
        policies = partial(state.policies, place.topic, place.partition, default=policy)
        tails[place] = Tail(place, feeds[place.topic], policies, start.offset)
    return tails
