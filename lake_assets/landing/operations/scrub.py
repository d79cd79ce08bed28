"""Scrub: the records that deletion requests name are removed from every file of a topic.

A file without such a record is rewritten too: its list of processed requests is part of what the zones compare.
Requests are recorded first, so a zone that lags and a file that lands late are scrubbed for all of them later.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from lake_assets.landing.consume.deletions import Scrub
from lake_assets.landing.files.checksum import Tally
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.offset_ranges import RangeIndex
from lake_assets.landing.manifest.schema import ALL_VERDICTS, CURRENT_STAGES
from lake_assets.landing.manifest.shared_state import DeletionRequest, SharedState
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.operations.rewrite import rewrite
from lake_assets.landing.operations.sweep import sweep

_CLOCK_TICK = timedelta(milliseconds=1)
"""The precision of times in the manifest."""


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
    kept = by.kept(writer.records(file), due, removed, dead_letters=file.holds_dead_letters)
    return rewrite(
        writer,
        "scrub",
        [file],
        kept,
        kind=file.kind,
        deletions=file.deletions | {request.request_id for request in due},
        now=now,
        removed=removed,
    )
