"""The partitions that a zone does not land any more, and why: written by tailers, read by status, report and checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from lake_assets.base.hours import from_milliseconds, milliseconds
from lake_assets.errors import LakeError
from lake_assets.landing.manifest.schema import STOPS
from lake_assets.landing.manifest.store import Manifest


@dataclass(frozen=True)
class Stop:
    """A partition that stopped in a zone.

    Attributes:
        since: When a tailer first stopped there for this reason.
    """

    zone: str
    topic: str
    partition: int
    problem: str
    remedy: str
    since: datetime

    @property
    def sentence(self) -> str:
        """Where it stopped, and why."""
        return f"zone {self.zone} has stopped at {self.topic} partition {self.partition}: {self.problem}"


@dataclass(frozen=True)
class Stops:
    """Reads and records stops."""

    manifest: Manifest

    def all(self, topic: str | None = None) -> list[Stop]:
        """Return the stops of a topic or (None) of all, by topic, partition and zone."""
        query = sa.select(STOPS).order_by(STOPS.c.topic, STOPS.c.partition, STOPS.c.zone)
        if topic:
            query = query.where(STOPS.c.topic == topic)
        with self.manifest.engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
        return [Stop(**{**row, "since": from_milliseconds(row["since"])}) for row in rows]

    def record(self, zone: str, topic: str, partition: int, error: LakeError, *, now: datetime) -> None:
        """Record that a partition stopped. The time of a stop for the same reason does not change."""
        place = (STOPS.c.zone == zone) & (STOPS.c.topic == topic) & (STOPS.c.partition == partition)
        with self.manifest.change() as (connection, _):
            recorded = connection.execute(sa.select(STOPS.c.problem).where(place)).scalar()
            if recorded == error.problem:
                return
            connection.execute(sa.delete(STOPS).where(place))
            values = {
                "zone": zone,
                "topic": topic,
                "partition": partition,
                "problem": error.problem,
                "remedy": error.remedy,
                "since": milliseconds(now),
            }
            connection.execute(sa.insert(STOPS).values(values))

    def clear(self, topic: str, zones: Iterable[str], partitions: Iterable[int] | None = None) -> None:
        """Forget the stops of partitions of a topic (None: of all of them) in zones."""
        cleared = (STOPS.c.topic == topic) & STOPS.c.zone.in_(list(zones))
        if partitions is not None:
            cleared &= STOPS.c.partition.in_(list(partitions))
        with self.manifest.engine.connect() as connection:
            if connection.execute(sa.select(STOPS.c.zone).where(cleared)).first() is None:
                return  # nothing to change, so no new version
        with self.manifest.change() as (connection, _):
            connection.execute(sa.delete(STOPS).where(cleared))
