"""Scrub: the records that deletion requests name are removed from every file of a topic.

A file without such a record is rewritten too: its list of processed requests is part of what the zones compare.
Requests are recorded first, so a zone that lags and a file that lands late are scrubbed for all of them later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lake_assets.landing.files.checksum import Tally
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.mentions import mentions
from lake_assets.landing.files.offset_ranges import RangeIndex
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import DistinctId
from lake_assets.landing.manifest.schema import ALL_VERDICTS, CURRENT_STAGES
from lake_assets.landing.manifest.shared_state import DeletionRequest, SharedState
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.operations.rewrite import rewrite
from lake_assets.landing.operations.sweep import sweep

_CLOCK_TICK = timedelta(milliseconds=1)
"""The precision of times in the manifest."""

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
        sent: Returns when a record counts as sent, in milliseconds since 1970.
    """

    distinct_id: DistinctId
    hashed: Hashed
    sent: Callable[[Record], int] = sent_at

    def is_named(self, record: Record, requests: Sequence[DeletionRequest]) -> bool:
        """Return whether a request names the distinct id of a record that was sent by the time of the request."""
        if not requests:
            return False
        distinct_id = self.distinct_id(record)
        if distinct_id is None:
            return False
        id_hash = self.hashed(distinct_id)
        same_id = [request for request in requests if request.id_hash == id_hash]
        return any(self.sent(record) <= request.sent_through for request in same_id)

    def is_mentioned(self, record: Record, requests: Sequence[DeletionRequest]) -> bool:
        """Return whether a request names an id that a dead letter mentions; it counts as sent at its timestamp."""
        eligible = {request.id_hash for request in requests if sent_at(record) <= request.sent_through}
        if not eligible:
            return False
        return not eligible.isdisjoint(map(self.hashed, mentions(record)))

    def rule_for(self, file: DataFile) -> IsDeleted:
        """Return the rule for the records of a file."""
        if file.holds_dead_letters:
            return self.is_mentioned
        return self.is_named


def scrub(writer: ZoneWriter, topic: str, by: Scrub, *, now: datetime) -> list[str]:
    """Scrub the live and staged files of a topic for all requests that they were not scrubbed for.

    Args:
        writer: Of the zone.
        topic: The topic.
        by: The rules.
        now: The present time.

    Returns:
        The names of the new files.

    Raises:
        ZoneMismatch: The folder of the zone and the manifest do not belong together.
        LandingError: What `Manifest.replace` raises.
    """
    mismatch = writer.storage_problem()
    if mismatch is not None:
        raise mismatch
    requests = SharedState(writer.manifest).deletions(topic)
    made = []
    for entry in writer.entries(topic, stages=CURRENT_STAGES):
        due = [request for request in requests if request.request_id not in entry.file.deletions]
        if due:
            made.append(_scrub_file(writer, entry.file, due, by, now=now))
    return made


def remove_unscrubbed(writer: ZoneWriter, topic: str, *, now: datetime) -> list[str] | None:
    """Remove the replaced files of a topic that are not scrubbed for every request.

    A file stays as long as a current file with one of its offsets is not scrubbed for every request or is not verified,
    for example because it is in quarantine. A file that lands meanwhile replaces nothing and delays nothing.

    Returns:
        The names of the removed files; None if any file had to stay.
    """
    requests = {request.request_id for request in SharedState(writer.manifest).deletions(topic)}
    unfinished = []
    for entry in writer.entries(topic, stages=CURRENT_STAGES, verdicts=ALL_VERDICTS):
        if entry.verdict != "verified" or entry.file.deletions != requests:
            unfinished.append(entry.file.ranges)
    waiting = RangeIndex(unfinished)

    def must_stay(file: DataFile) -> bool:
        return file.deletions >= requests or waiting.overlaps(file.ranges)

    removed = sweep(
        writer.manifest,
        writer.zone,
        retired_before=now + _CLOCK_TICK,
        topic=topic,
        keep=must_stay,
    )
    for entry in writer.entries(topic, stages=("retired",)):
        if not entry.file.deletions >= requests:
            return None
    return removed


def _scrub_file(writer: ZoneWriter, file: DataFile, due: Sequence[DeletionRequest], by: Scrub, *, now: datetime) -> str:
    removed = Tally()
    is_deleted = by.rule_for(file)

    def kept() -> Iterator[Record]:
        for record in writer.records(file):
            if is_deleted(record, due):
                removed.add(record)
            else:
                yield record

    return rewrite(
        writer,
        "scrub",
        [file],
        kept(),
        kind=file.kind,
        deletions=file.deletions | {request.request_id for request in due},
        now=now,
        removed=removed,
    )
