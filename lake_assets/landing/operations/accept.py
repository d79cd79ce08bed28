"""Accepting that Kafka has another topic under a name, or that it has removed messages before they landed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lake_assets.base.failpoints import reach
from lake_assets.errors import UsageError
from lake_assets.landing.consume.topic_watch import WatchedTopic, landed_ends, watch_topics
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.offset_ranges import first_offsets
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.manifest.coverage import Cover
from lake_assets.landing.manifest.index_rows import begun_offsets, forget_lost_dead_letters
from lake_assets.landing.manifest.schema import ALL_VERDICTS, CURRENT_STAGES, Entry, files_of
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.operations.quarantine import quarantined
from lake_assets.landing.repair.copying import copy_file
from lake_assets.landing.tailing.refetch import gaps
from lake_assets.landing.topics.acceptance import Acceptance, Landed, decide
from lake_assets.landing.topics.ledger import Epoch, Ledger, Loss
from lake_assets.landing.topics.stops import Stops


@dataclass(frozen=True)
class Accepted:
    """The result of an acceptance.

    Attributes:
        epoch: The epoch from now on, if Kafka has another topic; None if it has the same.
        losses: What is lost, and to which zones.
        copied: Zone and name of each file that was copied from another zone.
    """

    epoch: Epoch | None
    losses: Sequence[Loss]
    copied: Sequence[tuple[str, str]]


def accept(writers: Sequence[ZoneWriter], servers: str, topic: str, *, now: datetime) -> Accepted:
    """Record what is lost of a topic, and copy the files that only one zone has, so that the zones can continue.

    If it dies, another call finishes it. Zones that run continue within a minute, the others when they start.

    Args:
        writers: Of all zones.
        servers: Of Kafka, `host:port`, comma-separated.
        topic: The topic.
        now: The present time.

    Raises:
        UsageError: Files of the topic are in quarantine, or the new topic has fewer partitions.
        ServiceError: Kafka does not answer, or does not have the topic.
        FileDamaged: A file that is to be copied is damaged.
    """
    manifest = writers[0].manifest
    _require_decided(manifest, topic)
    watched = watch_topics(manifest, servers, [topic], now=now)[topic]
    entries = manifest.entries(topic=topic, stages=CURRENT_STAGES)
    zones = [writer.zone.name for writer in writers]
    found = decide(
        _landed(manifest, watched.epoch, entries, zones), watched.state.topic_id, watched.state.earliest, now=now
    )
    if found.epoch != watched.epoch:
        _require_partitions(topic, landed_ends(manifest, topic), watched.state.ends)
    Ledger(manifest).accept(found.epoch, found.losses, after=watched.epoch, now=now)
    reach("landing-accepted")
    forget_lost_dead_letters(manifest, topic, watched.earliest)
    copied = _copy_lacking(writers, topic, found, watched, now=now)
    Stops(manifest).clear(topic, zones)
    return Accepted(found.epoch if found.epoch != watched.epoch else None, found.losses, copied)


def _landed(manifest: Manifest, epoch: Epoch, entries: Sequence[Entry], zones: Sequence[str]) -> Landed:
    rows = [file for file in files_of(entries) if not file.holds_dead_letters]
    lost = Ledger(manifest).gaps(epoch.topic)
    covers: dict[str, Sequence[Cover]] = {}
    for zone in zones:
        own = [Cover(file.ranges, True, parse_shard(file.shard)) for file in rows if file.zone == zone]
        covers[zone] = [*own, *lost]
    return Landed(epoch, covers, begun_offsets(manifest, epoch.topic, rows), landed_ends(manifest, epoch.topic))


def _copy_lacking(
    writers: Sequence[ZoneWriter], topic: str, found: Acceptance, watched: WatchedTopic, *, now: datetime
) -> list[tuple[str, str]]:
    """Copy the files that a zone lacks and cannot read from Kafka any more."""
    limits = found.epoch.landed_offsets(watched.state.earliest)
    zones = [writer.zone for writer in writers]
    copied = []
    for writer in writers:
        for file in _lacking(writer, topic):
            if _begins_before(file, limits):
                copy_file(writer, zones, file, now=now)
                copied.append((writer.zone.name, file.name))
    return copied


def _lacking(writer: ZoneWriter, topic: str) -> list[DataFile]:
    entries = writer.manifest.entries(topic=topic, stages=CURRENT_STAGES, verdicts=ALL_VERDICTS)
    own = [entry.file for entry in entries if entry.file.zone == writer.zone.name]
    others = [entry for entry in entries if entry.file.zone != writer.zone.name]
    return gaps(own, others, anywhere=True)


def _begins_before(file: DataFile, limits: Mapping[int, int]) -> bool:
    return any(first < limits.get(partition, 0) for partition, first in first_offsets([file]).items())


def _require_decided(manifest: Manifest, topic: str) -> None:
    waiting = [entry for entry in quarantined(manifest) if parse_shard(entry.file.shard).topic == topic]
    if waiting:
        raise UsageError(
            f"{len(waiting)} files of {topic} are in quarantine, so it is not known yet what is lost.",
            remedy="Decide on them first: `lake landing quarantine list`.",
        )


def _require_partitions(topic: str, landed: Collection[int], found: Collection[int]) -> None:
    needed = 1 + max(landed, default=-1)
    if len(found) < needed:
        raise UsageError(
            f"The new topic {topic} has {len(found)} partitions, but {needed} have landed.",
            remedy=f"Create it with {needed} partitions or more: files of a missing partition could not be loaded.",
        )
