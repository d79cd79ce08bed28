"""Replacing files of a zone by one new file. Compaction and scrub share it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from lake_assets.landing.files.checksum import Tally
from lake_assets.landing.files.entries import DataFile, Kind, names_of
from lake_assets.landing.files.offset_ranges import merged_ranges
from lake_assets.landing.files.records import Record
from lake_assets.landing.manifest.zone_writer import ZoneWriter


def rewrite(
    writer: ZoneWriter,
    operation: str,
    taken: Sequence[DataFile],
    records: Iterable[Record],
    *,
    kind: Kind,
    deletions: frozenset[str],
    now: datetime,
    removed: Tally | None = None,
) -> str:
    """Write records of files to a new file of the same shard, which replaces them.

    Args:
        writer: Of the zone.
        operation: Its name, for messages.
        taken: The files that are replaced, of one shard.
        records: The records of the new file.
        kind: Its format.
        deletions: Ids of the deletion requests that it is scrubbed for.
        now: The present time.
        removed: The records that are left out; it must count them while `records` is read. None means no record.

    Returns:
        The name of the new file.

    Raises:
        LandingError: What `Manifest.replace` raises.
    """
    draft = writer.zone.draft(
        taken[0].shard,
        merged_ranges(taken),
        records,
        deletions=deletions,
        kind=kind,
        made_from=tuple(names_of(taken)),
    )
    left_out = removed or Tally()
    writer.replace(operation, taken, draft, removed=left_out.checksum, now=now)
    return draft.file.name
