"""How long Kafka keeps messages that have landed.

Kafka's own retention goes by the timestamps of messages, landed or not. So landing removes messages itself: those that
both zones had landed equally at a time that is long enough ago. Each look at the files records how far they had landed
by then, as a mark; merging gives files new times, so the files themselves do not say it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from lake_assets.base.hours import from_milliseconds, milliseconds
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.manifest.coverage import Cover, ready_ends
from lake_assets.landing.manifest.index_rows import begun_offsets
from lake_assets.landing.manifest.schema import (
    ALL_VERDICTS,
    CURRENT_STAGES,
    RETENTION_MARKS,
    RETENTIONS,
    Entry,
    files_of,
)
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.topics.ledger import Epoch, Ledger


@dataclass(frozen=True)
class Mark:
    """How far a partition had landed in all zones at a time. end: the landed offset after the last one."""

    partition: int
    end: int
    at: datetime


@dataclass(frozen=True)
class Retention:
    """Reads and records retentions and marks of topics."""

    manifest: Manifest

    def hours(self, topic: str) -> int | None:
        """Return for how many hours Kafka keeps a message after it has landed; None: nothing is removed."""
        query = sa.select(RETENTIONS.c.hours).where(RETENTIONS.c.topic == topic)
        with self.manifest.engine.connect() as connection:
            found = connection.execute(query).scalar()
        return found or None

    def keep(self, topic: str, hours: int) -> bool:
        """Record for how many hours Kafka keeps messages; 0 for ever. Return whether that is a change."""
        if (self.hours(topic) or 0) == hours:
            return False
        with self.manifest.change() as (connection, _):
            connection.execute(sa.delete(RETENTIONS).where(RETENTIONS.c.topic == topic))
            connection.execute(sa.insert(RETENTIONS).values(topic=topic, hours=hours))
        return True

    def marks(self, epoch: Epoch) -> list[Mark]:
        """Return the marks of a topic as long as it is the same topic, in the order of their times."""
        is_same = (RETENTION_MARKS.c.topic == epoch.topic) & (RETENTION_MARKS.c.epoch == epoch.number)
        query = sa.select(RETENTION_MARKS).where(is_same).order_by(RETENTION_MARKS.c.at, RETENTION_MARKS.c.partition)
        with self.manifest.engine.connect() as connection:
            rows = connection.execute(query).all()
        return [Mark(row.partition, row.end, from_milliseconds(row.at)) for row in rows]

    def replace_marks(self, epoch: Epoch, marks: Iterable[Mark]) -> None:
        """Record the marks of a topic in the place of all that it has."""
        rows = []
        for mark in marks:
            values = {"partition": mark.partition, "end": mark.end, "at": milliseconds(mark.at)}
            rows.append({"topic": epoch.topic, "epoch": epoch.number, **values})
        with self.manifest.change() as (connection, _):
            connection.execute(sa.delete(RETENTION_MARKS).where(RETENTION_MARKS.c.topic == epoch.topic))
            if rows:
                connection.execute(sa.insert(RETENTION_MARKS), rows)


def landed_everywhere(manifest: Manifest, topic: str, zones: Collection[str]) -> dict[int, int]:
    """Return, for each partition, the offset up to which all zones have verified files, dead letters included."""
    entries = manifest.entries(topic=topic, stages=CURRENT_STAGES, verdicts=ALL_VERDICTS)
    whole = _without_dead_letters(entries)
    begun = begun_offsets(manifest, topic, files_of(whole))
    lost = Ledger(manifest).gaps(topic)
    several = [_unsettled_from(entries)]
    for zone in zones:
        own = _covers_of(zone, whole)
        several.append(ready_ends([*own, *lost], begun))
    found = {}
    for partition in begun:
        found[partition] = min(ends[partition] for ends in several if partition in ends)
    return found


def removable(marks: Sequence[Mark], landed: Mapping[int, int], *, before: datetime) -> dict[int, int]:
    """Return, for each partition, the landed offset before which Kafka's messages are not needed. Pure.

    Args:
        marks: How far the partitions had landed at earlier times.
        landed: How far they have landed now. It may be less, if a file was discarded.
        before: Messages that had not landed by then are kept.
    """
    found: dict[int, int] = {}
    for mark in marks:
        if mark.at <= before and mark.partition in landed:
            end = min(mark.end, landed[mark.partition])
            found[mark.partition] = max(end, found.get(mark.partition, 0))
    return found


def kept_marks(marks: Sequence[Mark], landed: Mapping[int, int], *, before: datetime, now: datetime) -> list[Mark]:
    """Return the marks to keep, and those of now: later ones, and of the earlier ones the furthest. Pure.

    The last one is not always the furthest: while only one zone has merged, its files are not verified.
    """
    old = [mark for mark in marks if mark.at <= before]
    furthest = {mark.partition: mark for mark in sorted(old, key=lambda mark: mark.end)}
    later = [mark for mark in marks if before < mark.at < now]
    return [*furthest.values(), *later, *(Mark(partition, end, now) for partition, end in sorted(landed.items()))]


def _unsettled_from(entries: Iterable[Entry]) -> Mapping[int, int]:
    """Return, for each partition, the first offset of a file that is not verified."""
    found: dict[int, int] = {}
    for entry in entries:
        if entry.verdict != "verified":
            for partition, (first, _) in entry.file.ranges.items():
                found[partition] = min(first, found.get(partition, first))
    return found


def _without_dead_letters(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if not entry.file.holds_dead_letters]


def _covers_of(zone: str, entries: Iterable[Entry]) -> list[Cover]:
    """Return the offsets of the live files of a zone; those of files that are not verified count as missing."""
    live = [entry for entry in entries if entry.file.zone == zone and entry.stage == "live"]
    return [Cover(entry.file.ranges, entry.verdict == "verified", parse_shard(entry.file.shard)) for entry in live]
