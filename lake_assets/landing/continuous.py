"""Landing as services: a process for each zone tails it, and one process loads files and sends heartbeats.

`lake up` runs these processes. They wait for topics that do not exist yet. What cannot be loaded is reported and tried
again, and hinders no other table; a process that loses Kafka or the manifest ends, and is started again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lake_assets.errors import LakeError
from lake_assets.landing.kafka import existing_partitions
from lake_assets.landing.messages import Feed
from lake_assets.landing.zone_tailer import Alarm, open_tailer
from lake_assets.landing.zones import locked_zone, open_zones
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from lake_assets.landing.landing_service import LandingService, OnLoaded


STARTED = "Landing has started"
"""Begins the line that a process prints when it is connected."""

RETRY = timedelta(seconds=30)
"""After this time, a table that could not be loaded is tried again."""

_PAUSE_SECONDS = 0.5
_NO_VERSION = -1


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
