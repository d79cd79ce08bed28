"""What a person accepts if Kafka has another topic under a name, or has removed messages that did not land. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain

from lake_assets.landing.manifest.coverage import Cover, uncovered
from lake_assets.landing.topics.ledger import Epoch, Loss

Place = tuple[int, int, int]
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
    landed: Landed, begun: Mapping[int, int], limits: Mapping[int, int], for_good: Sequence[Place]
) -> dict[Place, tuple[str, ...]]:
    """Return the ranges that some zones lack, and that are not lost for good, with these zones."""
    known = [Cover({partition: (first, last)}, readable=True) for partition, first, last in for_good]
    lost: dict[Place, tuple[str, ...]] = {}
    for zone, covers in sorted(landed.covers.items()):
        for place in _places(uncovered([*covers, *known], begun, limits)):
            lost[place] = (*lost.get(place, ()), zone)
    return lost


def _places(holes: Mapping[int, Sequence[tuple[int, int]]]) -> list[Place]:
    return [(partition, first, last) for partition, spans in sorted(holes.items()) for first, last in spans]


def _loss(topic: str, place: Place, zones: tuple[str, ...], reason: str, now: datetime) -> Loss:
    partition, first, last = place
    return Loss(topic, partition, first, last, zones, for_good=True, reason=reason, accepted_at=now)
