"""Landing in one zone: the files that its tails close are written and added to the manifest.

Failure model: the dead letters of a file are added before it, and the file determines where its partition continues. So
a process that dies in between adds the same dead letters again, which changes nothing. If a file differs from the other
zone's file, it is quarantined and its partition stops. A partition also stops if Kafka does not have its offsets any
more. After a restart, the zone first lands the files that it misses (`refetch`), then continues at the first offset
that it does not have. Partitions and topics that are created meanwhile are tailed too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Self

from lake_assets.base.failpoints import reach
from lake_assets.errors import FilesDiffer, LakeError, LandingError, ServiceError
from lake_assets.landing.consume.idle_spans import record_idle
from lake_assets.landing.consume.kafka_reader import Place, Reader, ends_of, existing_partitions
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.consume.refetch import missing_files, refetch
from lake_assets.landing.consume.tailer import Closed, Tail, step
from lake_assets.landing.files.cutover import Policy
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.offset_ranges import first_offsets
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import Shard
from lake_assets.landing.manifest.coverage import Cover, ready_ends
from lake_assets.landing.manifest.schema import ALL_STAGES, files_of
from lake_assets.landing.manifest.shared_state import SharedState
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.manifest.zone_writer import ZoneWriter

READ_AT_ONCE = 1000
"""The most messages of one read, by default."""

DISCOVERY = timedelta(seconds=30)
"""How often a tailer looks for new partitions and topics."""

_READ_SECONDS = 0.2

Alarm = Callable[[str], None]
"""Is called with a sentence about what stopped."""


def ignore_alarm(_: str) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Delivery:
    """Writes the files that the tails of a zone close.

    Attributes:
        writer: Of the zone.
        clock: Returns the present time, in UTC.
    """

    writer: ZoneWriter
    clock: Callable[[], datetime]

    def take(self, closed: Closed) -> None:
        """Write a closed file and its dead letters, and add them. Raises what `ZoneWriter.land` does."""
        reach("tailing-closed")
        if closed.dead:
            self._land(Shard(closed.place.topic, dead_letters=True), closed, closed.dead)
            reach("tailing-dead-letters-landed")
        self._land(Shard(closed.place.topic), closed, closed.records)

    def _land(self, shard: Shard, closed: Closed, records: Sequence[Record]) -> None:
        ranges = {closed.place.partition: (closed.first, closed.last)}
        draft = self.writer.zone.draft(str(shard), ranges, records)
        self.writer.land(draft, now=self.clock())


@dataclass(frozen=True)
class Start:
    """Where a zone continues in a partition.

    Attributes:
        offset: The first offset that the zone does not have; if it has none, the first one of the other zone; None if
            no zone has any.
        landed: First and last offsets of the zone's files. Some may lie after a gap, where a quarantined file was.
    """

    offset: int | None
    landed: frozenset[tuple[int, int]]

    def has_landed(self, closed: Closed) -> bool:
        """Return whether a file of the zone has an offset of a closed file."""
        return any(first <= closed.last and closed.first <= last for first, last in self.landed)


def starts(manifest: Manifest, zone: str, partitions: Mapping[str, Collection[int]]) -> dict[Place, Start]:
    """Return, for each partition of topics, where a zone continues."""
    found: dict[Place, Start] = {}
    for topic, numbers in partitions.items():
        entries = manifest.entries(topic=topic, stages=ALL_STAGES)
        files = [file for file in files_of(entries) if not file.holds_dead_letters]
        own = [file for file in files if file.zone == zone]
        continued = _next_offsets(files, own, numbers)
        for partition in numbers:
            found[Place(topic, partition)] = Start(continued.get(partition), _landed(own, partition))
    return found


def _next_offsets(files: Iterable[DataFile], own: Iterable[DataFile], numbers: Collection[int]) -> dict[int, int]:
    """Return partition → the first offset that a zone does not have, for the partitions that any zone has."""
    begun = {partition: first for partition, first in first_offsets(files).items() if partition in numbers}
    covers = [Cover(file.ranges, readable=True) for file in own]
    return ready_ends(covers, begun)


def _landed(files: Iterable[DataFile], partition: int) -> frozenset[tuple[int, int]]:
    return frozenset(file.ranges[partition] for file in files if partition in file.ranges)


class ZoneTailer:
    """Tails all partitions of feeds in one zone. A context manager.

    A topic that does not exist yet is tailed within `DISCOVERY` of its creation, and so is a new partition. A partition
    stops if its file differs from the other zone's file, or if Kafka does not give it; the others continue.

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
        self._delivery = delivery
        self._servers = servers
        self._feeds = feeds
        self._policy = policy
        self._read_at_once = read_at_once
        self._alarm = alarm
        self._refetch_missing(feeds)
        self._discovered_at = delivery.clock()
        self._starts: dict[Place, Start] = {}
        self._starts = self._new_starts()
        self._tails = self._tails_of(self._starts)
        self._reader = Reader(servers, _offsets(self._starts), on_unreadable=self._stop)

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
        self._reader.__exit__(kind, error, trace)

    def step(self, *, seconds: float = _READ_SECONDS) -> int:
        """Read once, wait for `seconds` at most, and land the files that close; return the number of messages."""
        self._discover_if_due()
        count = step(
            self._reader,
            self._tails,
            self._take,
            max_messages=self._read_at_once,
            seconds=seconds,
        )
        self.messages += count
        if count:
            self._record_idle()
        return count

    def drain(self, *, seconds: float = _READ_SECONDS) -> int:
        """Read the messages that every partition has now, but not those that arrive meanwhile; return their number."""
        count = 0
        ends = ends_of(self._servers, self._starts)
        while not self._reader.reached(ends):
            count += self.step(seconds=seconds)
        return count

    def _record_idle(self) -> None:
        spans = []
        for tail in self._tails.values():
            span = tail.take_idle()
            if span is not None:
                spans.append(span)
        if spans:
            record_idle(self._delivery.writer.manifest, self.zone, spans)

    def _discover_if_due(self) -> None:
        now = self._delivery.clock()
        if now < self._discovered_at + DISCOVERY:
            return
        self._discovered_at = now
        try:
            new = self._new_starts()
        except ServiceError as error:  # the reader goes on as soon as Kafka answers again
            self._alarm(f"zone {self.zone}: new partitions cannot be looked for: {error}")
            return
        if new:
            self._starts.update(new)
            self._tails.update(self._tails_of(new))
            self._reader.add(_offsets(new))

    def _new_starts(self) -> dict[Place, Start]:
        """Return where the zone continues in the partitions that are not tailed. Reads no file entry if none is new."""
        topics = [feed.topic for feed in self._feeds]
        new: dict[str, list[int]] = {}
        for topic, numbers in existing_partitions(self._servers, topics).items():
            unknown = [number for number in numbers if Place(topic, number) not in self._starts]
            if unknown:
                new[topic] = unknown
        return starts(self._delivery.writer.manifest, self.zone, new)

    def _tails_of(self, starts: Mapping[Place, Start]) -> dict[Place, Tail]:
        by_topic = {feed.topic: feed for feed in self._feeds}
        state = SharedState(self._delivery.writer.manifest)
        tails = {}
        for place, start in starts.items():
            policies = partial(state.policies, place.topic, place.partition, default=self._policy)
            tails[place] = Tail(place, by_topic[place.topic], policies, start.offset)
        return tails

    def _take(self, closed: Closed) -> None:
        if self._starts[closed.place].has_landed(closed):
            return  # after a gap that was just filled: landed before, and maybe compacted since
        try:
            self._delivery.take(closed)
        except FilesDiffer as differ:
            self._stop(closed.place, differ)
        else:
            self.files += 1

    def _stop(self, place: Place, error: LakeError) -> None:
        self.stopped[place] = error
        self._alarm(f"zone {self.zone}: stopped at {place.topic} partition {place.partition}: {error}")
        self._reader.leave(place)
        self._tails.pop(place, None)

    def _refetch_missing(self, feeds: Iterable[Feed]) -> None:
        writer = self._delivery.writer
        for feed in feeds:
            for file in missing_files(writer.manifest, self.zone, feed.topic):
                try:
                    refetch(writer, file, feed, self._servers, now=self._delivery.clock())
                except (LandingError, ServiceError) as error:
                    self.not_refetched[file.name] = error
                    self._alarm(f"zone {self.zone}: {file.name} was not landed again: {error}")
                else:
                    self.files += 1


def _offsets(starts: Mapping[Place, Start]) -> dict[Place, int | None]:
    return {place: start.offset for place, start in starts.items()}
