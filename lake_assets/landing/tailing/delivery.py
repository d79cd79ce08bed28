"""Writing the files that the tails of a zone close, and adding them to the manifest; see `zone_tailer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from lake_assets.base.failpoints import reach
from lake_assets.landing.consume.deletions import Scrub
from lake_assets.landing.files.checksum import Tally
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import Shard
from lake_assets.landing.files.zone_folder import Draft, Zone
from lake_assets.landing.manifest.shared_state import SharedState
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
        scrubs: Topic → how its deletion requests find their records; a topic without one lands unscrubbed.
    """

    writer: ZoneWriter
    clock: Callable[[], datetime]
    others: Sequence[Zone] = ()
    count_given: CountGiven = count_offsets
    scrubs: Mapping[str, Scrub] = field(default_factory=dict)

    def take(self, closed: Closed) -> None:
        """Write a closed file and its dead letters, scrubbed for all requests that are recorded, and add them.

        Raises:
            IntakeIncomplete: The drafts do not hold every message that Kafka gave; nothing is added.
            LandingError: What `ZoneWriter.land` raises.
        """
        reach("tailing-closed")
        drafts = []
        removed = Tally()
        if closed.dead:
            drafts.append(self._draft(Shard(closed.place.topic, dead_letters=True), closed, closed.dead, removed))
        drafts.append(self._draft(Shard(closed.place.topic), closed, closed.records, removed))
        try:
            kept = sum(draft.file.count for draft in drafts)
            require_conserved(closed, kept + removed.count, self.count_given)
            for draft in drafts:
                self.writer.land(draft, now=self.clock())
                if draft is not drafts[-1]:
                    reach("tailing-dead-letters-landed")
        finally:
            for draft in drafts:
                draft.path.unlink(missing_ok=True)

    def _draft(self, shard: Shard, closed: Closed, records: Sequence[Record], removed: Tally) -> Draft:
        ranges = {closed.place.partition: (closed.first, closed.last)}
        scrub = self.scrubs.get(shard.topic)
        requests = SharedState(self.writer.manifest).deletions(shard.topic) if scrub else []
        kept = records if scrub is None else scrub.kept(records, requests, removed, dead_letters=shard.dead_letters)
        deletions = frozenset(request.request_id for request in requests)
        return self.writer.zone.draft(str(shard), ranges, kept, deletions=deletions)
