"""Landing as a whole: its parts, built from settings, Kafka, a catalog and a pipeline; and functions that run it.

`lake up` runs a process for each zone (`zone_tailer.tail_zone`) and one that loads files and sends heartbeats. They
wait for topics that do not exist yet. What cannot be loaded is reported and tried again, and hinders no other table; a
process that loses Kafka or the manifest ends, and is started again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial
from types import TracebackType

from pyiceberg.catalog import Catalog

from lake_assets.errors import DiskFull, LakeError, ServiceError, ZoneMismatch
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine.erasures import Erasures, erasure_key
from lake_assets.landing.files import ZONES, zone_of
from lake_assets.landing.kafka import HeartbeatSender, existing_partitions, partitions
from lake_assets.landing.loading import Loaded, Loader
from lake_assets.landing.manifest import Manifest, open_manifest
from lake_assets.landing.messages import Feed, feeds
from lake_assets.landing.zone_tailer import READ_AT_ONCE, STARTED, Alarm, ZoneTailer, ignore_alarm, open_tailer
from lake_assets.landing.zones import ZoneWriter, locked_zone, open_zones, present_zones, zone_names
from lake_assets.settings import Settings

OnLoaded = Callable[[Loaded], None]
"""Is called with the result of each batch."""

RETRY = timedelta(seconds=30)
"""After this time, a table that could not be loaded is tried again."""

FAULTS = (DiskFull, ServiceError, ZoneMismatch)
"""What stops a zone, and no other one: its storage or its manifest cannot be used now."""

_PAUSE_SECONDS = 0.5
_NO_VERSION = -1


@dataclass(frozen=True)
class LandingService:
    """Landing of one home.

    Attributes:
        settings: Of the home.
        servers: Of Kafka, `host:port`, comma-separated.
        catalog: Of the raw tables.
        pipeline: Declares the raw tables and the subjects.
        clock: Returns the present time, in UTC.
    """

    settings: Settings
    servers: str
    catalog: Catalog
    pipeline: Pipeline
    clock: Callable[[], datetime]

    @cached_property
    def feeds(self) -> tuple[Feed, ...]:
        """The topics and their raw tables."""
        return feeds(
            self.pipeline,
            prefix=self.settings.landing_prefix,
            max_bytes=self.settings.landing_message_bytes,
        )

    @cached_property
    def zones(self) -> list[ZoneWriter]:
        """The zones that can be worked on now. Raises what one lacks if there is none."""
        return present_zones(self.settings)[0]

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest of a zone, which has a copy of what the others have published."""
        return open_manifest(self.settings)

    @property
    def heartbeats(self) -> HeartbeatSender:
        """A sender of heartbeats into all topics."""
        topics = tuple(feed.topic for feed in self.feeds)
        interval = timedelta(seconds=self.settings.landing_heartbeat_seconds)
        return HeartbeatSender(self.servers, topics, interval, self.clock)

    def tailer(
        self,
        writer: ZoneWriter,
        *,
        topic: str | None = None,
        read_at_once: int = READ_AT_ONCE,
        alarm: Alarm = ignore_alarm,
    ) -> ZoneTailer:
        """Return a tailer of topics in a zone; a context manager.

        Args:
            writer: Of the zone.
            topic: The topic to tail; None means all.
            read_at_once: The most messages of one read.
            alarm: As in `ZoneTailer`.
        """
        feeds = [feed for feed in self.feeds if topic in (None, feed.topic)]
        return open_tailer(
            self.settings,
            self.servers,
            feeds,
            writer,
            clock=self.clock,
            read_at_once=read_at_once,
            alarm=alarm,
        )

    def loader(self, feed: Feed, numbers: Sequence[int] | None = None) -> Loader:
        """Return the loader of a topic.

        Args:
            feed: Of the topic.
            numbers: All its partitions; None: they are read from Kafka.
        """
        if numbers is None:
            numbers = partitions(self.servers, [feed.topic])[feed.topic]
        return Loader(
            catalog=self.catalog,
            manifest=self.manifest,
            zones=[zone_of(self.settings, name) for name in ZONES],
            feed=feed,
            partitions=numbers,
            subjects=self.pipeline.subjects,
            erasures=Erasures(self.catalog, key=lambda: erasure_key(self.settings)),
            clock=self.clock,
            provisional=self.settings.landing_loads == "provisional",
            dead_letter_share=self.settings.landing_dead_letter_share,
        )

    def absent_topics(self) -> ServiceError | None:
        """Return the error that names topics which do not exist, if some do.

        Raises:
            ServiceError: No topic exists, or Kafka does not answer.
        """
        topics = [feed.topic for feed in self.feeds]
        try:
            partitions(self.servers, topics)
        except ServiceError as error:
            if not existing_partitions(self.servers, topics):
                raise
            return error
        return None

    def load(self) -> Iterator[Loaded]:
        """Load all ready offsets of all topics that exist; yield the result of each batch."""
        numbers = existing_partitions(self.servers, [feed.topic for feed in self.feeds])
        for feed in self.feeds:
            if feed.topic in numbers:
                yield from self.loader(feed, numbers[feed.topic]).load()


@dataclass
class Tailing:
    """Tailers of zones. A zone that cannot be tailed is reported and tried again later. The other zones go on.

    Attributes:
        service: Landing of the home.
        zones: Their names.
        alarm: As in `ZoneTailer`.
        absent: The error that names topics which did not exist at the beginning, if some did not.
        tailers: The last one of each zone, by its name, with its counts.
        problems: Why a zone is not tailed now.
    """

    service: LandingService
    zones: Sequence[str]
    alarm: Alarm
    absent: ServiceError | None
    tailers: dict[str, ZoneTailer] = field(default_factory=dict, init=False)
    problems: dict[str, LakeError] = field(default_factory=dict, init=False)
    _opened: dict[str, ZoneTailer] = field(default_factory=dict, init=False)
    _failed_at: dict[str, datetime] = field(default_factory=dict, init=False)

    def each(self, work: Callable[[ZoneTailer], object]) -> None:
        """Let the tailer of each zone work. Raises what stopped the last one if none works, or Kafka's error."""
        for zone in self.zones:
            failed_at = self._failed_at.get(zone)
            if failed_at is not None and self.service.clock() < failed_at + RETRY:
                continue
            try:
                if zone not in self._opened:
                    (writer,) = open_zones(self.service.settings, [zone])
                    self.tailers[zone] = self.service.tailer(writer, alarm=self.alarm)
                    self._opened[zone] = self.tailers[zone].__enter__()
                work(self.tailers[zone])
            except FAULTS as error:
                if zone in self._opened:
                    self._opened.pop(zone).__exit__(type(error), error, error.__traceback__)
                # A Kafka that does not answer concerns all zones, so it is reported once, as the error.
                existing_partitions(self.service.servers, ())
                self._note(zone, error)
                if len(self.problems) == len(self.zones):
                    raise
            else:
                self.problems.pop(zone, None)
                self._failed_at.pop(zone, None)

    def __enter__(self) -> Tailing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as closing:
            for zone, tailer in self._opened.items():
                closing.callback(self._close, zone, partial(tailer.__exit__, kind, error, trace))

    def _close(self, zone: str, close: Callable[[], None]) -> None:
        """End a tailer, which writes what it has read."""
        try:
            close()
        except FAULTS as error:
            self._note(zone, error)

    def _note(self, zone: str, error: LakeError) -> None:
        if str(self.problems.get(zone)) != str(error):
            self.alarm(f"zone {zone}: {error}")
        self.problems[zone], self._failed_at[zone] = error, self.service.clock()


@contextmanager
def tailing(service: LandingService, zones: Iterable[str], alarm: Alarm = ignore_alarm) -> Iterator[Tailing]:
    """Yield the tailers of zones; an empty list means all zones.

    Raises:
        UsageError: There is no such zone, or another process tails it.
        ServiceError: Kafka does not answer, or no topic exists.
    """
    absent = service.absent_topics()
    with ExitStack() as stack:
        names = zone_names(zones)
        for name in names:
            stack.enter_context(locked_zone(service.settings.landing_folder, name))
        yield stack.enter_context(Tailing(service, names, alarm, absent))


def run_once(
    service: LandingService,
    zones: Iterable[str],
    *,
    on_loaded: OnLoaded,
    alarm: Alarm = ignore_alarm,
) -> list[ZoneTailer]:
    """Land the messages that Kafka has now in each zone, then load what is ready.

    Args:
        service: Landing of the home.
        zones: Names of zones; empty means all.
        on_loaded: Called after each batch.
        alarm: As in `ZoneTailer`.

    Returns:
        The tailers, closed, with their counts.

    Raises:
        ServiceError: The manifest or storage of a zone does not answer, or a topic does not exist; the other zone, and
            the other topics, have landed what Kafka has.
        DiskFull: Likewise, the disk of a zone is full.
        ZoneMismatch: Likewise, the storage or manifest of a zone is gone.
    """
    with tailing(service, zones, alarm) as found:
        found.each(ZoneTailer.drain)
    for loaded in service.load():
        on_loaded(loaded)
    absent = service.absent_topics()
    for problem in (*found.problems.values(), *filter(None, [absent])):
        raise problem
    return list(found.tailers.values())


def run(
    service: LandingService,
    zones: Iterable[str],
    *,
    on_loaded: OnLoaded,
    should_stop: Callable[[], bool],
    send_heartbeats: bool = True,
    alarm: Alarm = ignore_alarm,
) -> list[ZoneTailer]:
    """Land and load continuously.

    Args:
        service: Landing of the home.
        zones: Names of zones; empty means all.
        on_loaded: Called after each batch.
        should_stop: Called between two reads.
        send_heartbeats: Whether to send heartbeats too.
        alarm: As in `ZoneTailer`.

    Returns:
        The tailers, closed, with their counts.
    """
    heartbeats = service.heartbeats
    loader = ReadyFeeds(service, on_loaded, alarm)
    with tailing(service, zones, alarm) as found:
        if found.absent is not None:
            alarm(str(found.absent))
        while not should_stop():
            if send_heartbeats:
                heartbeats.send_if_due()
            found.each(ZoneTailer.step)
            loader.load_if_changed()
    return list(found.tailers.values())


def load_feeds(
    service: LandingService,
    *,
    on_loaded: OnLoaded,
    should_stop: Callable[[], bool],
    report: Callable[[str], None],
    alarm: Alarm,
) -> None:
    """Load what both zones have into the raw tables, and send heartbeats, until it should stop.

    Args:
        service: Landing of the home.
        on_loaded: Called after each batch.
        should_stop: Called between two looks at the manifest.
        report: Called with one line when it begins, as `lake up` waits for it.
        alarm: Called with a sentence about a table that cannot be loaded, once as long as the reason stays the same.

    Raises:
        ServiceError: Kafka does not answer.
    """
    heartbeats = service.heartbeats
    loader = ReadyFeeds(service, on_loaded, alarm)
    heartbeats.send_if_due()
    report(f"{STARTED} to load {', '.join(feed.raw.table for feed in service.feeds)}")
    while not should_stop():
        heartbeats.send_if_due()
        loader.load_if_changed()
        time.sleep(_PAUSE_SECONDS)


@dataclass
class ReadyFeeds:
    """Loads all tables whenever the manifest has changed. A table that cannot be loaded hinders no other one."""

    service: LandingService
    on_loaded: OnLoaded
    alarm: Alarm
    _version: int = field(default=_NO_VERSION, init=False)
    _problems: dict[str, str] = field(default_factory=dict, init=False)
    _tried_at: datetime | None = field(default=None, init=False)

    def load_if_changed(self) -> bool:
        """Load if the manifest has changed, or if something is to be tried again; return whether it did."""
        version = self.service.manifest.version()
        if version == self._version and not self._is_retry_due():
            return False
        self._version = version
        self._tried_at = self.service.clock()
        topics = [feed.topic for feed in self.service.feeds]
        numbers = existing_partitions(self.service.servers, topics)
        for feed in self.service.feeds:
            if feed.topic in numbers:
                self._load(feed, numbers[feed.topic])
        return True

    def _is_retry_due(self) -> bool:
        return bool(self._problems) and self._tried_at is not None and self.service.clock() >= self._tried_at + RETRY

    def _load(self, feed: Feed, numbers: Sequence[int]) -> None:
        try:
            for loaded in self.service.loader(feed, numbers).load():
                self.on_loaded(loaded)
        except LakeError as error:
            problem = f"{feed.raw.table} is not loaded: {error}"
            if self._problems.get(feed.topic) != problem:
                self.alarm(problem)
            self._problems[feed.topic] = problem
        else:
            self._problems.pop(feed.topic, None)
