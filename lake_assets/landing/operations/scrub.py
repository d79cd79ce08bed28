"""Scrub: what was sent of somebody by a time goes from every file of a topic; the file then names the request.

A file that holds nothing of the person is written again, too: that it was looked through is what the zones agree on.
Requests are recorded first, so a zone that lags, and a file that lands late, are scrubbed for all of them later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.mentions import mentions
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import DistinctId, parse_shard
from lake_assets.landing.files.zone_folder import Tally
from lake_assets.landing.manifest.coverage import meets
from lake_assets.landing.manifest.schema import ALL_VERDICTS
from lake_assets.landing.manifest.shared_state import Agreements, DeletionRequest
from lake_assets.landing.manifest.status import sweep
from lake_assets.landing.manifest.writing import ZoneWriter

_NEXT = timedelta(milliseconds=1)
"""Behind a moment, as the manifest tells moments."""

Hashed = Callable[[str], str]
"""The keyed hash of a distinct id, hexadecimal."""


def sent_at(record: Record) -> int:
    """When a record was sent, by its own timestamp: milliseconds since 1970."""
    return record.timestamp


@dataclass(frozen=True)
class Scrub:
    """What tells whose a record is, and whether it goes. sent: when it counts as sent, in milliseconds since 1970."""

    distinct_id: DistinctId
    hashed: Hashed
    sent: Callable[[Record], int] = sent_at

    def named(self, record: Record, requests: Sequence[DeletionRequest]) -> bool:
        """Whether a record is of somebody who is named, and was sent by the time of that request."""
        if not requests or (whose := self.distinct_id(record)) is None:
            return False
        hashed = self.hashed(whose)
        return any(r.id_hash == hashed and self.sent(record) <= r.sent_through for r in requests)

    def mentioned(self, record: Record, requests: Sequence[DeletionRequest]) -> bool:
        """The same of a dead letter, which has no distinct id: it is of whomever it mentions, sent at its timestamp."""
        eligible = {r.id_hash for r in requests if sent_at(record) <= r.sent_through}
        return bool(eligible) and not eligible.isdisjoint(map(self.hashed, mentions(record)))

    def of(self, file: DataFile) -> Callable[[Record, Sequence[DeletionRequest]], bool]:
        """What tells of the records of a file whether they go."""
        return self.mentioned if parse_shard(file.shard).dead_letters else self.named


def scrub(writer: ZoneWriter, topic: str, by: Scrub, *, now: datetime) -> list[str]:
    """Scrub the files of a topic, staged ones too, for all requests that they were not scrubbed for; the new names.

    Dead letters go by whom they mention. Raises what `Manifest.replace` does.
    """
    requests = Agreements(writer.manifest).deletions(topic)
    made = []
    for entry in writer.manifest.entries(writer.zone.name, topic, stages=("staged", "live")):
        due = [request for request in requests if request.request_id not in entry.file.deletions]
        if due:
            made.append(_write(writer, entry.file, due, by, now=now))
    return made


def forget_unscrubbed(writer: ZoneWriter, topic: str, *, now: datetime) -> list[str] | None:
    """Remove the replaced files of a topic that are not scrubbed for every request; their names.

    One stays as long as a file with an offset of it is not scrubbed for every request, either, or not verified, such as
    one in quarantine; None if any does. What is landed meanwhile replaces nothing, and holds up nothing.
    """
    requests = {request.request_id for request in Agreements(writer.manifest).deletions(topic)}
    found = writer.manifest.entries(writer.zone.name, topic, stages=("staged", "live"), verdicts=ALL_VERDICTS)
    waits = meets(e.file.ranges for e in found if e.verdict != "verified" or e.file.deletions != requests)

    def stays(file: DataFile) -> bool:
        return file.deletions >= requests or waits(file.ranges)

    gone = sweep(writer.manifest, writer.zone, retired_before=now + _NEXT, topic=topic, but=stays)
    left = writer.manifest.entries(writer.zone.name, topic, stages=("retired",))
    return None if any(not entry.file.deletions >= requests for entry in left) else gone


def _write(writer: ZoneWriter, file: DataFile, due: Sequence[DeletionRequest], by: Scrub, *, now: datetime) -> str:
    gone, goes = Tally(), by.of(file)

    def kept() -> Iterator[Record]:
        for record in writer.records(file):
            if goes(record, due):
                gone.add(record)
            else:
                yield record

    draft = writer.zone.draft(
        file.shard,
        file.ranges,
        kept(),
        deletions=file.deletions | {request.request_id for request in due},
        kind=file.kind,
        made_from=(file.name,),
    )
    writer.replace("scrub", [file], draft, removed=gone.checksum, now=now)
    return draft.file.name
