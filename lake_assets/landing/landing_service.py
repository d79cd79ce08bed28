"""Landing as a whole: what a home's settings, a Kafka, a catalog and a pipeline make of it; and running it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from pyiceberg.catalog import Catalog

from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.metadata.erasure_registry import Erasures, erasure_key
from lake_assets.landing.consume.delivery import Alarm, Delivery, ZoneTailer, quiet
from lake_assets.landing.consume.heartbeats import Heart
from lake_assets.landing.consume.kafka_reader import partitions
from lake_assets.landing.consume.messages import Feed, feeds
from lake_assets.landing.files.cutover import Policy
from lake_assets.landing.loading.loader import Loaded, Loader
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.manifest.writing import ZoneWriter
from lake_assets.landing.manifest.zones import open_zones
from lake_assets.settings import Settings


@dataclass(frozen=True)
class LandingService:
    """Landing of one home. servers: of Kafka, `host:port`, comma-separated."""

    settings: Settings
    servers: str
    catalog: Catalog
    pipeline: Pipeline
    clock: Callable[[], datetime]

    @cached_property
    def feeds(self) -> tuple[Feed, ...]:
        """The topics, and the raw tables that they fill."""
        found = self.settings
        return feeds(self.pipeline, prefix=found.landing_prefix, max_bytes=found.landing_message_bytes)

    @cached_property
    def zones(self) -> list[ZoneWriter]:
        """All zones."""
        return open_zones(self.settings)

    @property
    def manifest(self) -> Manifest:
        """The one that the zones share."""
        return self.zones[0].manifest

    @property
    def heart(self) -> Heart:
        """Beats into every topic."""
        interval = timedelta(seconds=self.settings.landing_heartbeat_seconds)
        return Heart(self.servers, tuple(feed.topic for feed in self.feeds), interval, self.clock)

    def tailer(
        self, writer: ZoneWriter, *, topic: str | None = None, read_at_once: int = 1000, alarm: Alarm = quiet
    ) -> ZoneTailer:
        """What tails all topics in a zone, or one; a context manager. alarm: as `ZoneTailer` has it."""
        wanted = [feed for feed in self.feeds if topic in (None, feed.topic)]
        found = self.settings
        policy = Policy(found.landing_file_messages, found.landing_file_bytes, 1000 * found.landing_age_seconds)
        delivery = Delivery(writer, self.clock)
        return ZoneTailer(delivery, self.servers, wanted, policy=policy, read_at_once=read_at_once, alarm=alarm)

    def loader(self, feed: Feed, numbers: Sequence[int] | None = None) -> Loader:
        """What loads a topic. numbers: its partitions; default: Kafka is asked for them."""
        return Loader(
            catalog=self.catalog,
            manifest=self.manifest,
            zones=[writer.zone for writer in self.zones],
            feed=feed,
            partitions=partitions(self.servers, [feed.topic])[feed.topic] if numbers is None else numbers,
            subjects=self.pipeline.subjects,
            erasures=Erasures(self.catalog, key=lambda: erasure_key(self.settings)),
            provisional=self.settings.landing_loads == "provisional",
        )

    def load(self) -> Iterator[Loaded]:
        """Load what may be loaded by now, topic by topic."""
        numbers = partitions(self.servers, [feed.topic for feed in self.feeds])
        for feed in self.feeds:
            yield from self.loader(feed, numbers[feed.topic]).load()


@contextmanager
def tailing(station: LandingService, zones: Iterable[str], alarm: Alarm = quiet) -> Iterator[list[ZoneTailer]]:
    """The tailers of zones, by default all, at work within. Raises `UsageError` for one that is none."""
    with ExitStack() as stack:
        writers = open_zones(station.settings, zones)
        yield [stack.enter_context(station.tailer(writer, alarm=alarm)) for writer in writers]


def run_once(
    station: LandingService, zones: Iterable[str], *, told: Callable[[Loaded], None], alarm: Alarm = quiet
) -> list[ZoneTailer]:
    """Land what Kafka holds in each zone, load what is ready then; the tailers, done. told: hears of each batch."""
    with tailing(station, zones, alarm) as tailers:
        for tailer in tailers:
            tailer.drain()
    for loaded in station.load():
        told(loaded)
    return tailers


def run(
    station: LandingService,
    zones: Iterable[str],
    *,
    told: Callable[[Loaded], None],
    ended: Callable[[], bool],
    beats: bool = True,
    alarm: Alarm = quiet,
) -> list[ZoneTailer]:
    """Land and load until `ended` says so, between two reads; the tailers, done. beats: send heartbeats, too."""
    heart, seen = station.heart, -1
    with tailing(station, zones, alarm) as tailers:
        while not ended():
            if beats:
                heart.beat()
            for tailer in tailers:
                tailer.step()
            if (version := station.manifest.version()) != seen:
                seen = version
                for loaded in station.load():
                    told(loaded)
    return tailers
