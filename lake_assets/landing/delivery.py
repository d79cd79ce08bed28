"""A zone at work: what its tails close becomes files of the zone, and entries of the manifest.

Failure model: the dead letters of a file are added before it, and the file tells where its partition goes on; so a
process that dies in between adds the same again, which is no change. A file that differs from the other zone's is
quarantined, and the zone stops there: started again, it reads those messages anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lake_assets.errors import FilesDiffer
from lake_assets.landing.coverage import first_offsets
from lake_assets.landing.failpoints import reach
from lake_assets.landing.kafka import Place, Reader, Starts, partitions
from lake_assets.landing.messages import Feed
from lake_assets.landing.records import Record
from lake_assets.landing.sharding import Shard, parse_shard
from lake_assets.landing.store import Manifest
from lake_assets.landing.tailer import Closed, Tail
from lake_assets.landing.zone import Zone


@dataclass(frozen=True)
class Delivery:
    """Takes what the tails of a zone close."""

    zone: Zone
    manifest: Manifest
    clock: Callable[[], datetime]

    def take(self, closed: Closed) -> None:
        """Write the files of what was closed, and add them. Raises `FilesDiffer`, and what `Manifest.add` raises."""
        reach("tailing-closed")
        if closed.dead:
            self._add(Shard(closed.place.topic, dead_letters=True), closed, closed.dead)
            reach("tailing-dead-letters-added")
        self._add(Shard(closed.place.topic), closed, closed.records)
        reach("tailing-added")

    def _add(self, shard: Shard, closed: Closed, records: Sequence[Record]) -> None:
        draft = self.zone.draft(str(shard), {closed.place.partition: (closed.first, closed.last)}, records)
        reach("tailing-drafted")
        draft.put(self.zone.path(draft.file.name))
        try:
            self.manifest.add(draft.file, now=self.clock())
        except FilesDiffer:
            self.zone.set_aside(draft.file.name)
            raise


def starts(manifest: Manifest, zone: str, servers: str, feeds: Sequence[Feed]) -> Starts:
    """Where a zone goes on, partition by partition: behind its last file, else where the other zone began."""
    found: dict[Place, int | None] = {}
    for topic, numbers in partitions(servers, [feed.topic for feed in feeds]).items():
        own, begun = manifest.next_offsets(zone, topic), manifest.first_offsets(topic)
        found |= {Place(topic, p): own.get(p, begun.get(p)) for p in numbers}
    return found


def tails(manifest: Manifest, begins: Starts, feeds: Sequence[Feed]) -> dict[Place, Tail]:
    """The open files of a zone, empty, of all partitions of the feeds."""
    by_topic = {feed.topic: feed for feed in feeds}
    return {
        place: Tail(place, by_topic[place.topic], manifest.policies(place.topic, place.partition), begin)
        for place, begin in begins.items()
    }
