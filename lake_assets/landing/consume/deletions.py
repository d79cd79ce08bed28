"""Which records a deletion request deletes. Pure.

A file lands scrubbed for all requests that are recorded by then, and is scrubbed later for those that come after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lake_assets.landing.files.checksum import Tally
from lake_assets.landing.files.mentions import mentions
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import DistinctId
from lake_assets.landing.manifest.shared_state import DeletionRequest

Hashed = Callable[[str], str]
"""Returns the keyed hash of a distinct id, hexadecimal."""

IsDeleted = Callable[[Record, Sequence[DeletionRequest]], bool]
"""Returns whether one of the requests deletes a record."""


def sent_at(record: Record) -> int:
    """Return the timestamp of a record: milliseconds since 1970."""
    return record.timestamp


@dataclass(frozen=True)
class Scrub:
    """The rules by which a deletion request applies to a record.

    Attributes:
        distinct_id: Returns the distinct id of a record.
        hashed: Returns the keyed hash of a distinct id.
        sent: Returns when a record happened or was sent, whichever is earlier, in milliseconds since 1970.
    """

    distinct_id: DistinctId
    hashed: Hashed
    sent: Callable[[Record], int] = sent_at

    def is_named(self, record: Record, requests: Sequence[DeletionRequest]) -> bool:
        """Return whether a request that covers a record names its distinct id."""
        # Of new records most requests are excluded by offset and timestamp, before anything is decoded.
        possible = [request for request in requests if request.cut is None or request.covers(record, self.sent)]
        distinct_id = self.distinct_id(record) if possible else None
        if distinct_id is None:
            return False
        id_hash = self.hashed(distinct_id)
        return any(request.id_hash == id_hash and request.covers(record, self.sent) for request in possible)

    def is_mentioned(self, record: Record, requests: Sequence[DeletionRequest]) -> bool:
        """Return whether a request that covers a dead letter names an id that it mentions."""
        eligible = {request.id_hash for request in requests if request.covers(record, sent_at)}
        if not eligible:
            return False
        return not eligible.isdisjoint(map(self.hashed, mentions(record)))

    def kept(
        self, records: Iterable[Record], requests: Sequence[DeletionRequest], removed: Tally, *, dead_letters: bool
    ) -> Iterator[Record]:
        """Yield the records that no request deletes; `removed` counts the others."""
        is_deleted = self.is_mentioned if dead_letters else self.is_named
        for record in records:
            if is_deleted(record, requests):
                removed.add(record)
            else:
                yield record

    def rule_for(self, *, dead_letters: bool) -> IsDeleted:
        """Return the rule for rows, or for dead letters."""
        return self.is_mentioned if dead_letters else self.is_named
