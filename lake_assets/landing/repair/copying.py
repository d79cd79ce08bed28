"""Copies of another zone's files, for a zone that cannot read their messages any more.

A copy is the other zone's word: nothing compares it with a second reading. So a zone copies by itself only a *verified*
file, which it has once landed equally. Other files are copied when a person says so (`lake landing repair`, `lake
landing accept`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from lake_assets.errors import FileDamaged
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.zone_folder import Zone
from lake_assets.landing.manifest.schema import Verdict
from lake_assets.landing.manifest.zone_writer import ZoneWriter


def copy_file(writer: ZoneWriter, others: Iterable[Zone], file: DataFile, *, now: datetime) -> Verdict:
    """Land a copy of another zone's file.

    Args:
        writer: Of the zone that misses the file.
        others: The other zones.
        file: The file of one of them.
        now: The present time.

    Raises:
        FileDamaged: The file is damaged too, or its zone is not among the others.
        LandingError: What else `ZoneWriter.land` raises.
    """
    source = _zone_of(file, list(others))
    draft = writer.zone.draft(
        file.shard,
        file.ranges,
        source.records(file),
        deletions=file.deletions,
        kind=file.kind,
    )
    return writer.land(draft, now=now)


def is_verified(writer: ZoneWriter, file: DataFile) -> bool:
    """Return whether a file of any zone is verified: a zone may copy it by itself."""
    entry = writer.manifest.entry(file.zone, file.name)
    return entry is not None and entry.verdict == "verified"


def _zone_of(file: DataFile, zones: Sequence[Zone]) -> Zone:
    for zone in zones:
        if zone.name == file.zone:
            return zone
    raise FileDamaged(file.name, f"is of zone {file.zone}, whose folder is not known here")
