"""Writing the files that the tails of a zone close, and adding them to the manifest; see `zone_tailer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from lake_assets.base.failpoints import reach
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import Shard
from lake_assets.landing.files.zone_folder import Draft, Zone
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.tailing.intake import CountGiven, count_offsets, require_conserved
from lake_assets.landing.tailing.tailer import Closed


@dataclass(frozen=True)
class Delivery:
    """Writes the files that the tails of a zone close.

    Attributes:
        writer: Of the zone.
        clock: Returns the present time, in UTC.
        others: The other zones, whose verified files may be copied.
        count_given: Returns how many messages Kafka gives of a file that has fewer of them than offsets.
    """

    writer: ZoneWriter
    clock: Callable[[], datetime]
    others: Sequence[Zone] = ()
    count_given: CountGiven = count_offsets

    def take(self, closed: Closed) -> None:
        """Write a closed file and its dead letters, and add them.

        Raises:
            IntakeIncomplete: The drafts do not hold every message that Kafka gave; nothing is added.
            LandingError: What `ZoneWriter.land` raises.
        """
        reach("tailing-closed")
        drafts = []
        if closed.dead:
            drafts.append(self._draft(Shard(closed.place.topic, dead_letters=True), closed, closed.dead))
        drafts.append(self._draft(Shard(closed.place.topic), closed, closed.records))
        try:
            require_conserved(closed, sum(draft.file.count for draft in drafts), self.count_given)
            for draft in drafts:
                self.writer.land(draft, now=self.clock())
                if draft is not drafts[-1]:
                    reach("tailing-dead-letters-landed")
        finally:
            for draft in drafts:
                draft.path.unlink(missing_ok=True)

    def _draft(self, shard: Shard, closed: Closed, records: Sequence[Record]) -> Draft:
        ranges = {closed.place.partition: (closed.first, closed.last)}
        return self.writer.zone.draft(str(shard), ranges, records)
