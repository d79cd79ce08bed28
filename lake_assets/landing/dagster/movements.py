"""What has moved from Kafka to raw tables, as events of the assets that stand for topics, zones and loaded topics.

The services of `lake up` land without Dagster. The sensor reports what they did: at most one event for each asset in
`PERIOD`, because messages move all the time, and none if nothing but heartbeats has moved.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from lake_assets.base.hours import hour_key
from lake_assets.landing.consume.kafka_reader import ends
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.dagster.checks import load_key, topic_key, zone_key
from lake_assets.landing.files.offset_ranges import with_text_keys
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.loading.progress import Progress, progress_of
from lake_assets.landing.manifest.open_zones import ZONES
from lake_assets.landing.manifest.status import status

PERIOD = timedelta(minutes=5)

Event = dg.AssetMaterialization | dg.AssetObservation


@dataclass(frozen=True)
class Movement:
    """The state of a topic at a tick, and its events.

    Attributes:
        stored: For the cursor: what was reported last, and when.
        events: Empty if nothing is to be reported.
    """

    stored: dict[str, Any]
    events: Sequence[Event]


def movement(service: LandingService, feed: Feed, before: dict[str, Any] | None, *, now: datetime) -> Movement:
    """Return what has moved in a topic since it was reported last.

    Args:
        service: Landing of the home.
        feed: Of the topic.
        before: What the last call stored; None for the first one.
        now: The present time.

    Raises:
        ServiceError: Kafka does not answer.
    """
    progress = progress_of(service.catalog, feed.raw.table, feed.topic)
    state: dict[str, Any] = {zone: _files(service, feed.topic, zone) for zone in ZONES}
    state["batch"] = progress.batch
    last = before or {**dict.fromkeys(state, 0), "at": None}
    is_early = last["at"] is not None and now < datetime.fromisoformat(last["at"]) + PERIOD
    changed = {name for name, value in state.items() if value != last[name]}
    if is_early or not changed:
        return Movement(last, ())
    return Movement({**state, "at": now.isoformat()}, list(_events(service, feed, progress, changed)))


def _files(service: LandingService, topic: str, zone: str) -> int:
    """Return the version of the manifest that added the newest file of a topic in a zone; 0 if there is none."""
    return max((entry.version for entry in service.manifest.entries(zone, topic)), default=0)


def _events(service: LandingService, feed: Feed, progress: Progress, changed: set[str]) -> Iterator[Event]:
    if changed.intersection(ZONES):
        offsets = with_text_keys(ends(service.servers, feed.topic))
        yield dg.AssetObservation(topic_key(feed.topic), metadata={"end offsets": dg.MetadataValue.json(offsets)})
    for zone in ZONES:
        if zone in changed:
            metadata = zone_metadata(service, feed.topic, zone)
            yield dg.AssetMaterialization(zone_key(feed.topic, zone), metadata=metadata)
    if "batch" in changed:
        yield dg.AssetMaterialization(load_key(feed.topic), metadata=_progress_metadata(progress))


def _progress_metadata(progress: Progress) -> dict[str, dg.MetadataValue]:
    through = progress.complete_through(progress.offsets)
    return {
        "batch": dg.MetadataValue.int(progress.batch),
        "next offsets": dg.MetadataValue.json(with_text_keys(progress.offsets)),
        "complete through": dg.MetadataValue.text("none" if through is None else hour_key(through)),
    }


def zone_metadata(service: LandingService, topic: str, zone: str) -> dict[str, dg.MetadataValue]:
    """Return the numbers of files and records of a topic in a zone, and the next offsets by shard and partition."""
    verified = provisional = quarantined = records = dead_letters = 0
    next_offsets: dict[str, dict[str, int]] = {}
    for found in status(service.manifest):
        shard = parse_shard(found.shard)
        if found.zone != zone or shard.topic != topic:
            continue
        verified += found.verified
        provisional += found.provisional
        quarantined += found.quarantined
        if shard.dead_letters:
            dead_letters += found.records
        else:
            records += found.records
            next_offsets[found.shard] = with_text_keys(found.next)
    return {
        "files verified": dg.MetadataValue.int(verified),
        "files provisional": dg.MetadataValue.int(provisional),
        "files quarantined": dg.MetadataValue.int(quarantined),
        "records": dg.MetadataValue.int(records),
        "dead letters": dg.MetadataValue.int(dead_letters),
        "next offsets": dg.MetadataValue.json(next_offsets),
    }
