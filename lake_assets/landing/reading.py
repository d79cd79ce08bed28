"""Reading the rows of a topic as its zones have them, closed files and open ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from lake_assets.base.hours import from_milliseconds
from lake_assets.errors import ServiceError
from lake_assets.landing.files import ZONES, Zone, sound_records, zone_of
from lake_assets.landing.manifest import files_of, has_landed, open_manifest
from lake_assets.landing.messages import feed_of, feeds
from lake_assets.landing.records import DataFile, Record, identity_of
from lake_assets.landing.state import SharedState
from lake_assets.landing.tail import open_records
from lake_assets.landing.zone_tailer import scrub_by

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import Pipeline
    from lake_assets.settings import Settings


def rows_of(settings: Settings, pipeline: Pipeline, topic: str, *, open: bool = False) -> list[dict[str, Any]]:  # noqa: A002
    """Return the rows of a topic, as `landing.read` does.

    Raises:
        UsageError: No raw table is fed by the topic.
        FileDamaged: A file is damaged in each zone that has it.
        ServiceError: The object store of the zone that has it does not answer.
    """
    feed = feed_of(feeds(pipeline, prefix=settings.landing_prefix, max_bytes=settings.landing_message_bytes), topic)
    if not has_landed(settings):
        return []
    manifest = open_manifest(settings)
    zones = {name: zone_of(settings, name) for name in ZONES}
    state = SharedState(manifest)
    away = set()
    for zone in zones.values():
        try:
            zone.storage_id()
        except ServiceError:
            away.add(zone.name)
    # Open files are read first: one that closes meanwhile is among the closed ones then.
    here = [zone for zone in zones.values() if open and zone.name not in away]
    opened = [record for zone in here for _, found in open_records(zone, topic) for record in found]
    closed: dict[tuple[int, int], Record] = {}
    landed: list[DataFile] = files_of(manifest.entries(topic=topic))
    for record in _records(zones, sorted(landed, key=lambda file: file.zone in away)):
        closed[record.partition, record.offset] = record
    ends: dict[int, int] = defaultdict(int)
    for file in landed:
        for partition, (_, last) in file.ranges.items():
            ends[partition] = max(ends[partition], last + 1)
    policies = {partition: state.policies(topic, partition) for partition in {record.partition for record in opened}}
    fresh = {}
    for record in opened:
        place = record.partition, record.offset
        if record.offset >= ends[record.partition] and not feed.flaw_of(record, policies[record.partition]):
            fresh[place] = record
    scrub, requests = scrub_by(settings, feed), state.deletions(topic)
    found = []
    for place, record in sorted({**closed, **fresh}.items()):
        row = feed.parse_landed(record.value)
        if isinstance(row, str) or scrub.is_named(record, requests):
            continue  # a heartbeat, or a row that is deleted
        told = {
            "partition": record.partition,
            "offset": record.offset,
            "sent_at": from_milliseconds(record.timestamp),
            "open": place in fresh,
        }
        found.append({**{f"_{name}" if name in row else name: value for name, value in told.items()}, **row})
    return found


def _records(zones: dict[str, Zone], files: Iterable[DataFile]) -> Iterator[Record]:
    """Yield the records of files of rows, of equal files of two zones once, from the zone where the file is sound."""
    equal: dict[str, list[DataFile]] = {}
    for file in files:
        if not file.holds_dead_letters:
            equal.setdefault(identity_of(file), []).append(file)
    for several in equal.values():
        yield from sound_records(zones, several)
