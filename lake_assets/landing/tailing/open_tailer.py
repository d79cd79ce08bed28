"""Opening the tailer of a zone as the settings describe it. Loads no catalog, so that a process of it stays small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING

from lake_assets.landing.consume.deletions import Scrub
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.files.cutover import Policy
from lake_assets.landing.manifest.open_zones import other_zones
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.tailing.delivery import Delivery
from lake_assets.landing.tailing.zone_tailer import READ_AT_ONCE, Alarm, ZoneTailer, ignore_alarm
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from lake_assets.incremental.engine.erasures import KeyedHash

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
            other_zones(settings, writer.zone.name),
            scrubs={feed.topic: scrub_by(settings, feed) for feed in feeds},
        ),
        servers,
        feeds,
        policy=policy,
        read_at_once=read_at_once,
        alarm=alarm,
    )
