"""A zone at work: what its tails close becomes files of the zone, and entries of the manifest.

Failure model: the dead letters of a file are added before it, and the file tells where its partition goes on; so a
process that dies in between adds the same again, which is no change. A file that differs from the other zone's is
quarantined, and its partition stops there; so does one whose offsets Kafka has no more. Started again, the zone first
lands what the other one has and it has nothing of (`again`), then goes on at the first offset that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Self

from lake_assets.base.failpoints import reach
from lake_assets.errors import FilesDiffer, LakeError, LandingError, ServiceError
from lake_assets.landing.consume.kafka_reader import Place, Reader, ends_of, partitions
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.consume.refetch import lacking, refetch
from lake_assets.landing.consume.tailer import Closed, Tail, step
from lake_assets.landing.files.cutover import Policy
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.manifest.compaction_choice import first_offsets
from lake_assets.landing.manifest.coverage import Cover, ready
from lake_assets.landing.manifest.shared_state import Agreements
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.manifest.writing import ZoneWriter

Alarm = Callable[[str], None]


def quiet(_: str) -> None:
    """No alarm."""


@dataclass(frozen=True)
class Delivery:
    """Takes what the tails of a zone close."""

    writer: ZoneWriter
    clock: Callable[[], datetime]

    def take(self, closed: Closed) -> None:
        """Write the files of what was closed, and add them. Raises what `ZoneWriter.land` does."""
        reach("tailing-closed")
        if closed.dead:
            self._land(Shard(closed.place.topic, dead_letters=True), closed, closed.dead)
            reach("tailing-dead-letters-landed")
        self._land(Shard(closed.place.topic), closed, closed.records)

    def _land(self, shard: Shard, closed: Closed, records: Sequence[Record]) -> None:
        draft = self.writer.zone.draft(str(shard), {closed.place.partition: (closed.first, closed.last)}, records)
        self.writer.land(draft, now=self.clock())


@dataclass(frozen=True)
class Start:
    """Where a zone goes on in a partition.

    offset: the first one that it lacks, else where the other zone began; None: nobody has. had: first and last offset
    of its files, of which some may lie behind a gap, where a quarantined one was.
    """

    offset: int | None
    had: frozenset[tuple[int, int]]


def starts(manifest: Manifest, zone: str, servers: str, feeds: Sequence[Feed]) -> dict[Place, Start]:
    """Where a zone goes on, partition by partition."""
    found: dict[Place, Start] = {}
    for topic, numbers in partitions(servers, [feed.topic for feed in feeds]).items():
        landed = [e.file for e in manifest.entries(topic=topic, stages=("live", "staged", "retired"))]
        files = [file for file in landed if not parse_shard(file.shard).dead_letters]
        own = [Cover(file.ranges, readable=True) for file in files if file.zone == zone]
        begun = {p: first for p, first in first_offsets(files).items() if p in numbers}
        reached = ready(own, begun)
        for p in numbers:
            had = frozenset(cover.ranges[p] for cover in own if p in cover.ranges)
            found[Place(topic, p)] = Start(reached.get(p), had)
    return found


class ZoneTailer:
    """Tails all partitions of feeds in one zone; a context manager.

    A partition whose file differs from the other zone's, or that Kafka does not give, stops, and is named in `stopped`;
    the others go on. lacks: files that could not be landed again, and why. policy: of partitions that have none yet.
    alarm: hears of either at once, in words.
    """

    def __init__(
        self,
        delivery: Delivery,
        servers: str,
        feeds: Sequence[Feed],
        *,
        policy: Policy,
        read_at_once: int = 1000,
        alarm: Alarm = quiet,
    ) -> None:
        self.delivery, self.read_at_once, self.alarm = delivery, read_at_once, alarm
        self.files = self.messages = 0
        self.stopped: dict[Place, LakeError] = {}
        writer = delivery.writer
        self._servers = servers
        self.lacks = dict(self._landed_again(servers, feeds))
        self._starts = starts(writer.manifest, self.zone, servers, feeds)
        by_topic, agreed = {feed.topic: feed for feed in feeds}, Agreements(writer.manifest)
        self._tails = {
            place: Tail(place, by_topic[place.topic], partial(agreed.policies, *place, otherwise=policy), start.offset)
            for place, start in self._starts.items()
        }
        starting = {place: start.offset for place, start in self._starts.items()}
        self._reader = Reader(servers, starting, unreadable=self._stop)

    @property
    def zone(self) -> str:
        return self.delivery.writer.zone.name

    def __enter__(self) -> Self:
        self._reader.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, error, trace)

    def step(self, *, seconds: float = 0.2) -> int:
        """Read once, waiting so long at most, and land what closes; how many messages there were."""
        count = step(self._reader, self._tails, self._take, most=self.read_at_once, seconds=seconds)
        self.messages += count
        return count

    def drain(self, *, seconds: float = 0.2) -> int:
        """Read what every partition has by now; how many messages there were. It ends though more come all the time."""
        count, ends = 0, ends_of(self._servers, self._starts)
        while not self._reader.reached(ends):
            count += self.step(seconds=seconds)
        return count

    def _take(self, closed: Closed) -> None:
        if any(first <= closed.last and closed.first <= last for first, last in self._starts[closed.place].had):
            return  # behind a gap that was just filled: landed before, and maybe compacted since
        try:
            self.delivery.take(closed)
        except FilesDiffer as differ:
            self._stop(closed.place, differ)
        else:
            self.files += 1

    def _stop(self, place: Place, error: LakeError) -> None:
        self.stopped[place] = error
        self.alarm(f"zone {self.zone}: stopped at {place.topic} partition {place.partition}: {error}")
        self._reader.leave(place)
        self._tails.pop(place, None)

    def _landed_again(self, servers: str, feeds: Sequence[Feed]) -> Iterator[tuple[str, LakeError]]:
        """Land again what the zone lacks; name and error of each file of which it could not."""
        writer = self.delivery.writer
        for feed in feeds:
            for file in lacking(writer.manifest, self.zone, feed.topic):
                try:
                    refetch(writer, file, feed, servers, now=self.delivery.clock())
                except (LandingError, ServiceError) as error:
                    self.alarm(f"zone {self.zone}: {file.name} was not landed again: {error}")
                    yield file.name, error
                else:
                    self.files += 1
