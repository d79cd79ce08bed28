"""The topics of Kafka that landed under a name, and the losses that a person has accepted.

A topic that is deleted and created again has the same name, offsets from 0, and another id. Files, raw tables and
rounds count by offsets, so the offsets of the new topic must not be those of the former one. An *epoch* is the time of
one topic id. Its offset 0 is landed as the offset `base` of the partition: the offset after the last one of the epoch
before. The first epoch has the base 0, so its landed offsets are those of Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from lake_assets.base.hours import from_milliseconds, milliseconds
from lake_assets.errors import StateMoved
from lake_assets.landing.files.offset_ranges import with_number_keys, with_text_keys
from lake_assets.landing.manifest.coverage import Cover
from lake_assets.landing.manifest.schema import EPOCHS, IDLE_SPANS, LOSSES
from lake_assets.landing.manifest.store import Manifest

UNKNOWN_ID = ""
"""The id of a topic that landed before ids were recorded, and that Kafka does not have any more."""


@dataclass(frozen=True)
class Epoch:
    """One topic of Kafka under a name.

    Attributes:
        topic: The name.
        number: From 1 on, without a gap.
        topic_id: As Kafka gives it.
        bases: Partition → the landed offset of its offset 0; a missing partition has 0.
        reason: Why it was accepted; empty for the first one.
    """

    topic: str
    number: int
    topic_id: str
    bases: Mapping[int, int]
    reason: str = ""

    def base(self, partition: int) -> int:
        """Return the landed offset of Kafka's offset 0."""
        return self.bases.get(partition, 0)

    def landed_offsets(self, in_kafka: Mapping[int, int]) -> dict[int, int]:
        """Return, for each partition, the landed offset of an offset in Kafka."""
        return {partition: offset + self.base(partition) for partition, offset in in_kafka.items()}


@dataclass(frozen=True)
class Loss:
    """Offsets that Kafka does not have any more and that a zone has not landed. A person has accepted it.

    Attributes:
        first: First landed offset, inclusive.
        last: Last landed offset, inclusive.
        zones: The zones that lost them.
        for_good: Whether no zone has them. Otherwise the zones that lost them have copies of another zone's files.
        reason: Why they are lost.
        accepted_at: When it was accepted.
    """

    topic: str
    partition: int
    first: int
    last: int
    zones: tuple[str, ...]
    for_good: bool
    reason: str
    accepted_at: datetime

    @property
    def cover(self) -> Cover:
        """The lost offsets as covered: code that walks over offsets skips them."""
        return Cover({self.partition: (self.first, self.last)}, readable=True)


@dataclass(frozen=True)
class Ledger:
    """Reads and records epochs and losses."""

    manifest: Manifest

    def epoch(self, topic: str) -> Epoch | None:
        """Return the present epoch of a topic; None if its id was never recorded."""
        with self.manifest.engine.connect() as connection:
            return _last_epoch(connection, topic)

    def learn(self, topic: str, topic_id: str, *, now: datetime) -> Epoch:
        """Return the present epoch of a topic; if no id was recorded, record this one as that of the first epoch."""
        with self.manifest.change() as (connection, _):
            recorded = _last_epoch(connection, topic)
            if recorded is not None:
                return recorded
            first = Epoch(topic, 1, topic_id, {})
            _insert_epoch(connection, first, now)
            return first

    def losses(self, topic: str | None = None) -> list[Loss]:
        """Return the accepted losses of a topic or (None) of all, by topic, partition and offset."""
        query = sa.select(LOSSES).order_by(LOSSES.c.topic, LOSSES.c.partition, LOSSES.c.first, LOSSES.c.last)
        if topic:
            query = query.where(LOSSES.c.topic == topic)
        with self.manifest.engine.connect() as connection:
            return [_loss_of(row) for row in connection.execute(query)]

    def gaps(self, topic: str) -> list[Cover]:
        """Return the offsets of a topic that are lost for good, as covered."""
        return [loss.cover for loss in self.losses(topic) if loss.for_good]

    def accept(self, epoch: Epoch, losses: Sequence[Loss], *, after: Epoch | None, now: datetime) -> None:
        """Record an epoch and losses, in one transaction. Repeating it changes nothing.

        Args:
            epoch: The epoch from now on; it may be the recorded one.
            losses: What is lost.
            after: The epoch that the decision is based on.
            now: The present time.

        Raises:
            StateMoved: Another epoch was recorded meanwhile.
        """
        with self.manifest.change() as (connection, _):
            recorded = _last_epoch(connection, epoch.topic)
            if recorded != epoch:
                if recorded != after:
                    raise StateMoved(f"the topic id of {epoch.topic}", expected=_id_of(after), found=_id_of(recorded))
                _insert_epoch(connection, epoch, now)
                connection.execute(
                    sa.delete(IDLE_SPANS).where(IDLE_SPANS.c.topic == epoch.topic)
                )  # of the former topic
            for loss in losses:
                _insert_loss(connection, loss)


def _last_epoch(connection: sa.Connection, topic: str) -> Epoch | None:
    query = sa.select(EPOCHS).where(EPOCHS.c.topic == topic).order_by(EPOCHS.c.number.desc()).limit(1)
    row = connection.execute(query).first()
    if row is None:
        return None
    bases: dict[int, int] = with_number_keys(json.loads(row.bases))
    return Epoch(row.topic, row.number, row.topic_id, bases, row.reason)


def _insert_epoch(connection: sa.Connection, epoch: Epoch, now: datetime) -> None:
    values = {
        "topic": epoch.topic,
        "number": epoch.number,
        "topic_id": epoch.topic_id,
        "bases": json.dumps(with_text_keys(epoch.bases)),
        "since": milliseconds(now),
        "reason": epoch.reason,
    }
    connection.execute(sa.insert(EPOCHS).values(values))


def _insert_loss(connection: sa.Connection, loss: Loss) -> None:
    same = sa.select(LOSSES.c.first).where(
        LOSSES.c.topic == loss.topic,
        LOSSES.c.partition == loss.partition,
        LOSSES.c.first == loss.first,
        LOSSES.c.last == loss.last,
    )
    if connection.execute(same).first() is not None:
        return
    values = {
        **vars(loss),
        "zones": json.dumps(loss.zones),
        "accepted_at": milliseconds(loss.accepted_at),
    }
    connection.execute(sa.insert(LOSSES).values(values))


def _loss_of(row: sa.Row[Any]) -> Loss:
    found = dict(row._mapping)
    found["zones"] = tuple(json.loads(row.zones))
    found["accepted_at"] = from_milliseconds(row.accepted_at)
    return Loss(**found)


def _id_of(epoch: Epoch | None) -> str:
    return "none" if epoch is None else epoch.topic_id or "not known"
