"""Accepting that Kafka has another topic under a name, or that it has removed messages before they landed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain

from lake_assets.base.failpoints import reach
from lake_assets.errors import UsageError
from lake_assets.landing.coverage import Cover, uncovered
from lake_assets.landing.heal import quarantined
from lake_assets.landing.kafka import Place, WatchedTopic, landed_ends, watch_topics
from lake_assets.landing.manifest import (
    ALL_STAGES,
    CURRENT_STAGES,
    Entry,
    Manifest,
    begun_offsets,
    files_of,
    forget_lost_dead_letters,
)
from lake_assets.landing.messages import Feed, Scrub
from lake_assets.landing.records import parse_shard
from lake_assets.landing.state import Epoch, Ledger, Loss, SharedState, Stops
from lake_assets.landing.tail import Closed, Delivery, Start, whole_open_files
from lake_assets.landing.zone_tailer import begins_before, copy_file, missing_files
from lake_assets.landing.zones import ZoneWriter

Hole = tuple[int, int, int]
"""Partition, first and last offset."""


@dataclass(frozen=True)
class Landed:
    """What has landed of a topic.

    Attributes:
        epoch: The recorded epoch.
        covers: Zone → its files and what is lost for good, by offsets.
        begun: Partition → the first landed offset.
        ends: Partition → the offset after the last landed one of any zone.
    """

    epoch: Epoch
    covers: Mapping[str, Sequence[Cover]]
    begun: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True)
class Acceptance:
    """The decision.

    Attributes:
        epoch: From now on; the recorded one if Kafka has the same topic.
        losses: Offsets that zones have not landed and cannot read any more.
    """

    epoch: Epoch
    losses: tuple[Loss, ...]


def decide(landed: Landed, topic_id: str, earliest: Mapping[int, int], *, now: datetime) -> Acceptance:
    """Return what is accepted.

    The offsets of a new topic follow the last landed ones. All that lies before the first message that Kafka has, and
    that a zone has not landed, is lost to that zone.

    Args:
        landed: What has landed.
        topic_id: Of the topic that Kafka has.
        earliest: Partition → the first offset that Kafka has of it, counted as in Kafka.
        now: The present time.
    """
    epoch = landed.epoch
    reason = "Kafka's retention removed them"
    if topic_id != epoch.topic_id:
        epoch = _next_epoch(landed, topic_id, earliest)
        reason = epoch.reason
    limits = epoch.landed_offsets(earliest)
    begun = {partition: first for partition, first in landed.begun.items() if partition in limits}
    for_good = _places(uncovered(chain.from_iterable(landed.covers.values()), begun, limits))
    losses = [_loss(epoch.topic, place, tuple(sorted(landed.covers)), reason, now) for place in for_good]
    for place, zones in _lost_by_some(landed, begun, limits, for_good).items():
        losses.append(replace(_loss(epoch.topic, place, zones, reason, now), for_good=False))
    return Acceptance(epoch, tuple(losses))


def _next_epoch(landed: Landed, topic_id: str, partitions: Iterable[int]) -> Epoch:
    before = landed.epoch
    bases = {partition: landed.ends.get(partition, 0) for partition in partitions}
    positions = " ".join(f"p{partition}:{end}" for partition, end in sorted(bases.items()))
    reason = (
        f"the topic with the id {before.topic_id or 'that was not recorded'} was deleted; its messages from "
        f"{positions} on did not land, and a topic with the id {topic_id} has its name"
    )
    return Epoch(before.topic, before.number + 1, topic_id, bases, reason)


def _lost_by_some(
    landed: Landed, begun: Mapping[int, int], limits: Mapping[int, int], for_good: Sequence[Hole]
) -> dict[Hole, tuple[str, ...]]:
    """Return the ranges that some zones lack, and that are not lost for good, with these zones."""
    known = [Cover({partition: (first, last)}, readable=True) for partition, first, last in for_good]
    lost: dict[Hole, tuple[str, ...]] = {}
    for zone, covers in sorted(landed.covers.items()):
        for place in _places(uncovered([*covers, *known], begun, limits)):
            lost[place] = (*lost.get(place, ()), zone)
    return lost


def _places(holes: Mapping[int, Sequence[tuple[int, int]]]) -> list[Hole]:
    return [(partition, first, last) for partition, spans in sorted(holes.items()) for first, last in spans]


def _loss(topic: str, place: Hole, zones: tuple[str, ...], reason: str, now: datetime) -> Loss:
    partition, first, last = place
    return Loss(topic, partition, first, last, zones, for_good=True, reason=reason, accepted_at=now)


@dataclass(frozen=True)
class Accepted:
    """The result of an acceptance.

    Attributes:
        epoch: The epoch from now on, if Kafka has another topic; None if it has the same.
        losses: What is lost, and to which zones.
        closed: What was read before Kafka lost it, and has landed from open files.
        copied: Zone and name of each file that was copied from another zone.
        read: Partition → the zone that has messages in an open file which Kafka does not have any more, and the first
            of their offsets, counted as in Kafka. They are not lost while this zone goes on.
    """

    epoch: Epoch | None
    losses: Sequence[Loss]
    closed: Sequence[Closed]
    copied: Sequence[tuple[str, str]]
    read: Mapping[int, tuple[str, int]]


def accept(
    writers: Sequence[ZoneWriter],
    servers: str,
    topic: str,
    *,
    now: datetime,
    feed: Feed | None = None,
    scrub: Scrub | None = None,
) -> Accepted:
    """Record what is lost of a topic, and copy the files that only one zone has, so that the zones can continue.

    What a zone has read into an open file and Kafka does not have any more lands as a file.

    If it dies, another call finishes it. Zones that run continue within a minute, the others when they start.

    Args:
        writers: Of all zones.
        servers: Of Kafka, `host:port`, comma-separated.
        topic: The topic.
        now: The present time.
        feed: Of the topic; without it, open files do not land.
        scrub: How deletion requests of the topic find their records.

    Raises:
        UsageError: Files of the topic are in quarantine, or the new topic has fewer partitions.
        ServiceError: Kafka does not answer, or does not have the topic.
        FileDamaged: A file that is to be copied is damaged.
    """
    manifest = writers[0].manifest
    waiting = [entry for entry in quarantined(manifest) if parse_shard(entry.file.shard).topic == topic]
    if waiting:
        raise UsageError(
            f"{len(waiting)} files of {topic} are in quarantine, so it is not known yet what is lost.",
            remedy="Decide on them first: `lake landing quarantine list`.",
        )
    watched = watch_topics(manifest, servers, [topic], now=now)[topic]
    needed = 1 + max(landed_ends(manifest, topic), default=-1)
    if watched.replaced and len(watched.state.ends) < needed:
        raise UsageError(
            f"The new topic {topic} has {len(watched.state.ends)} partitions, but {needed} have landed.",
            remedy=f"Create it with {needed} partitions or more: files of a missing partition could not be loaded.",
        )
    closed, going_on = _close_open_files(writers, feed, scrub, watched, now=now) if feed else ([], {})
    # What a zone has read and lands later is not lost; a zone that lacks it is accepted then.
    here = watched.state.earliest
    read = {p: (zone, first) for p, (first, zone) in going_on.items() if first < here.get(p, first)}
    earliest = {p: read[p][1] if p in read else first for p, first in here.items()}
    entries = manifest.entries(topic=topic, stages=CURRENT_STAGES)
    zones = [writer.zone.name for writer in writers]
    found = decide(_landed(manifest, watched.epoch, entries, zones), watched.state.topic_id, earliest, now=now)
    Ledger(manifest).accept(found.epoch, found.losses, after=watched.epoch, now=now)
    reach("landing-accepted")
    for writer in writers:
        forget_lost_dead_letters(writer.manifest, topic, watched.earliest)
    copied = _copy_lacking(writers, topic, found, earliest, now=now)
    for writer in writers:
        Stops(writer.manifest).clear(topic, [writer.zone.name])
    return Accepted(found.epoch if found.epoch != watched.epoch else None, found.losses, closed, copied, read)


def _close_open_files(
    writers: Sequence[ZoneWriter], feed: Feed, scrub: Scrub | None, watched: WatchedTopic, *, now: datetime
) -> tuple[list[Closed], dict[int, tuple[int, str]]]:
    """Land the open files whose next messages Kafka does not have: for each partition the longest one of all zones.

    Returns:
        What has landed, and of each partition that has an open file with which its zone goes on, Kafka's offset of the
        first message in it, and the zone.
    """
    manifest, topic = writers[0].manifest, feed.topic
    ends = landed_ends(manifest, topic, dead_letters=False)
    longest: dict[int, tuple[ZoneWriter, Closed]] = {}
    going_on: dict[int, tuple[int, str]] = {}
    for writer in writers:
        files = files_of(writer.entries(topic, stages=ALL_STAGES))
        landed = Start(None, dead=tuple(file for file in files if file.holds_dead_letters))  # and then it died
        for first, records in whole_open_files(writer.zone, topic, watched.epoch.topic_id):
            place, last = Place(topic, records[0].partition), records[-1].offset
            can_go_on = not watched.replaced and last + 1 >= watched.earliest.get(place.partition, 0)
            if first < ends.get(place.partition, 0):
                continue
            if can_go_on:
                begin = first - watched.epoch.base(place.partition), writer.zone.name
                going_on[place.partition] = min(begin, going_on.get(place.partition, begin))
                continue
            policies = SharedState(manifest).policies(*place)
            dead = [record for record in records if feed.flaw_of(record, policies) is not None]
            closed = Closed(place, first, last, [record for record in records if record not in dead], dead)
            closed = landed.without_landed_dead_letters(closed, writer.records)
            if place.partition not in longest or last > longest[place.partition][1].last:
                longest[place.partition] = writer, closed
    for writer, closed in longest.values():
        # Kafka cannot be asked how many messages it gave.
        delivery = Delivery(writer, lambda: now, count_given=lambda *_: 0, scrubs={topic: scrub} if scrub else {})
        delivery.take(closed)
    return [closed for _, closed in longest.values()], going_on


def _landed(manifest: Manifest, epoch: Epoch, entries: Sequence[Entry], zones: Sequence[str]) -> Landed:
    files = files_of(entries)
    rows = [file for file in files if not file.holds_dead_letters]
    lost = Ledger(manifest).gaps(epoch.topic)
    covers: dict[str, Sequence[Cover]] = {}
    for zone in zones:
        own = [Cover(file.ranges, True, parse_shard(file.shard)) for file in rows if file.zone == zone]
        covers[zone] = [*own, *lost]
    return Landed(epoch, covers, begun_offsets(manifest, epoch.topic, files), landed_ends(manifest, epoch.topic))


def _copy_lacking(
    writers: Sequence[ZoneWriter], topic: str, found: Acceptance, earliest: Mapping[int, int], *, now: datetime
) -> list[tuple[str, str]]:
    """Copy the files that a zone lacks and cannot read from Kafka any more."""
    limits = found.epoch.landed_offsets(earliest)
    copied = []
    for writer in writers:
        for file in missing_files(writer.manifest, topic, anywhere=True):
            if begins_before(file, limits):
                copy_file(writer, file, now=now)
                copied.append((writer.zone.name, file.name))
    return copied
