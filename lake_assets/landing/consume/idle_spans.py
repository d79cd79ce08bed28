"""Idle spans: offsets after the last file of a partition that hold heartbeats alone, by the account of each zone.

An idle partition cuts few files. So that its heartbeats count all the same, a zone records how far it has read them. A
span holds no row, and both zones read the same messages: if both of them have read a span from the same offset on, the
earlier one of their latest heartbeats tells how far the partition is complete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from lake_assets.base.hours import from_milliseconds, milliseconds
from lake_assets.landing.manifest.schema import IDLE_SPANS
from lake_assets.landing.manifest.store import Manifest


@dataclass(frozen=True)
class IdleSpan:
    """Heartbeats that a zone has read of a partition, and nothing else.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: The offset after the last file of the zone.
        last: Offset of the last heartbeat.
        heartbeat: Time of the last heartbeat.
    """

    topic: str
    partition: int
    first: int
    last: int
    heartbeat: datetime


SpansByZone = Mapping[str, Mapping[int, IdleSpan]]
"""Zone → partition → span."""


def record_idle(manifest: Manifest, zone: str, spans: Iterable[IdleSpan]) -> None:
    """Record the spans of a zone, in one transaction. One that ends earlier than the recorded one changes nothing."""
    with manifest.change() as (connection, _):
        for span in spans:
            _record(connection, zone, span)


def idle_spans(manifest: Manifest, topic: str) -> SpansByZone:
    """Return the spans of a topic."""
    found: dict[str, dict[int, IdleSpan]] = {}
    with manifest.engine.connect() as connection:
        for row in connection.execute(sa.select(IDLE_SPANS).where(IDLE_SPANS.c.topic == topic)):
            span = IdleSpan(row.topic, row.partition, row.first, row.last, from_milliseconds(row.heartbeat))
            found.setdefault(row.zone, {})[row.partition] = span
    return found


def with_idle(landed: Mapping[int, int], spans: Mapping[int, IdleSpan]) -> dict[int, int]:
    """Return the offset after the last one that a zone has landed, or has read as an idle span, by partition. Pure."""
    ends = dict(landed)
    for partition, span in spans.items():
        ends[partition] = max(span.last + 1, ends.get(partition, 0))
    return ends


def idle_heartbeats(
    spans: SpansByZone, zones: Collection[str], next_offsets: Mapping[int, int | None], *, any_zone: bool
) -> dict[int, datetime]:
    """Return, for each idle partition, the heartbeat up to which it has no row that is not loaded. Pure.

    Args:
        spans: Of the topic.
        zones: All zones.
        next_offsets: Partition → the next offset to load; None for a partition that has no file yet.
        any_zone: Whether the account of one zone is enough.
    """
    found: dict[int, datetime] = {}
    for partition, offset in next_offsets.items():
        times = list(_times(spans, zones, partition, offset))
        if any_zone and times:
            found[partition] = max(times)
        elif times and len(times) == len(zones):
            found[partition] = min(times)
    return found


def _times(spans: SpansByZone, zones: Iterable[str], partition: int, offset: int | None) -> Iterator[datetime]:
    """Yield the last heartbeat of each zone whose span of the partition begins at the offset."""
    for zone in zones:
        span = spans.get(zone, {}).get(partition)
        if span is not None and offset in (None, span.first):
            yield span.heartbeat


def _record(connection: sa.Connection, zone: str, span: IdleSpan) -> None:
    key = sa.and_(IDLE_SPANS.c.zone == zone, IDLE_SPANS.c.topic == span.topic, IDLE_SPANS.c.partition == span.partition)
    last = connection.execute(sa.select(IDLE_SPANS.c.last).where(key)).scalar_one_or_none()
    values = {"first": span.first, "last": span.last, "heartbeat": milliseconds(span.heartbeat)}
    if last is None:
        place = {"zone": zone, "topic": span.topic, "partition": span.partition}
        connection.execute(sa.insert(IDLE_SPANS).values(**place, **values))
    elif last < span.last:
        connection.execute(sa.update(IDLE_SPANS).where(key).values(**values))
