"""Scrub: what was sent of somebody by a time goes from every file of a topic; the file then names the request.

A file that holds nothing of the person is written again, too: that it was looked through is what the zones agree on.
Requests are recorded first, so a zone that lags, and a file that lands late, are scrubbed for all of them later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lake_assets.landing.agreements import Agreements, DeletionRequest
from lake_assets.landing.manifest import DataFile
from lake_assets.landing.records import Record
from lake_assets.landing.sharding import DistinctId, parse_shard
from lake_assets.landing.status import sweep
from lake_assets.landing.writing import ZoneWriter
from lake_assets.landing.zone import Tally

_NEXT = timedelta(milliseconds=1)
"""Behind a moment, as the manifest tells moments."""

Hashed = Callable[[str], str]
"""The keyed hash of a distinct id, hexadecimal."""


@dataclass(frozen=True)
class Scrub:
    """What tells whose a record is, and whether it goes."""

    distinct_id: DistinctId
    hashed: Hashed

    def named(self, record: Record, requests: Sequence[DeletionRequest]) -> bool:
        """Whether a record is of somebody who is named, and was sent by the time of that request."""
        eligible = {r.id_hash for r in requests if record.timestamp <= r.sent_through}
        if not eligible or (whose := self.distinct_id(record)) is None:
            return False
        return self.hashed(whose) in eligible


def scrub(writer: ZoneWriter, topic: str, by: Scrub, *, now: datetime) -> list[str]:
    """Scrub the files of a topic, staged ones too, for all requests that they were not scrubbed for; the new names.

    Dead letters have no distinct id, and are left as they are. Raises what `Manifest.replace` does.
    """
    requests = Agreements(writer.manifest).deletions(topic)
    made = []
    for entry in writer.manifest.entries(writer.zone.name, topic, stages=("staged", "live")):
        due = [request for request in requests if request.request_id not in entry.file.deletions]
        if due and not parse_shard(entry.file.shard).dead_letters:
            made.append(_write(writer, entry.file, due, by, now=now))
    return made


def forget_unscrubbed(writer: ZoneWriter, topic: str, *, now: datetime) -> list[str] | None:
    """Remove the replaced files of a topic, which still hold what was scrubbed; their names.

    None, and nothing is removed, as long as a file is not scrubbed for every request, or not verified.
    """
    requests = {request.request_id for request in Agreements(writer.manifest).deletions(topic)}
    found = writer.manifest.entries(writer.zone.name, topic, stages=("staged", "live"))
    records = [e for e in found if not parse_shard(e.file.shard).dead_letters]
    if any(e.verdict != "verified" or e.file.deletions != requests for e in records):
        return None
    return sweep(writer.manifest, writer.zone, retired_before=now + _NEXT, topic=topic)


def _write(writer: ZoneWriter, file: DataFile, due: Sequence[DeletionRequest], by: Scrub, *, now: datetime) -> str:
    gone = Tally()

    def kept() -> Iterator[Record]:
        for record in writer.records(file):
            if by.named(record, due):
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
