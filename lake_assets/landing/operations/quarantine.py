"""Quarantine: the files that differ from the other zone's files, and the decisions on them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.offset_ranges import RangeIndex
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.manifest.open_zones import no_such_zone
from lake_assets.landing.manifest.schema import ALL_STAGES, ALL_VERDICTS, Entry, Verdict, files_of
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.operations.coverage_checks import is_misnamed

Decision = Literal["release", "discard"]


def quarantined(manifest: Manifest) -> list[Entry]:
    """Return the files that differ from another zone's file and wait for a decision."""
    return manifest.entries(stages=ALL_STAGES, verdicts=("quarantined",))


def decide(writers: Sequence[ZoneWriter], zone: str, name: str, decision: Decision, *, now: datetime) -> list[Entry]:
    """Release or discard a quarantined file. If it dies, another call finishes it.

    A provisional file can be discarded too, and a verified one that is damaged, misnamed, or overlaps another one.

    Args:
        writers: Of all zones.
        zone: The zone of the file.
        name: Of the file.
        decision: `release` takes the file as right and the other zone's file as wrong; `discard` removes it.
        now: The present time.

    Returns:
        The files of other zones that a release has put in quarantine.

    Raises:
        UsageError: There is no such zone or file, or its verdict does not allow the decision.
    """
    by_name = {writer.zone.name: writer for writer in writers}
    if zone not in by_name:
        raise no_such_zone(zone)
    if decision == "discard":
        _discard(by_name[zone], name)
        return []
    # Restored first: a file that the manifest calls verified must be in its place.
    by_name[zone].zone.restore(name)
    others = by_name[zone].manifest.release(zone, name, now=now)
    for other in others:
        by_name[other.file.zone].zone.quarantine(other.file.name)
    return others


def _discard(writer: ZoneWriter, name: str) -> None:
    removed = writer.manifest.discard(writer.zone.name, name, verdicts=_discardable(writer, name))
    for each in removed:
        writer.zone.drop(each)


def _discardable(writer: ZoneWriter, name: str) -> Sequence[Verdict]:
    """Return the verdicts with which a file may be discarded: `verified` only if something is wrong with it."""
    entry = writer.entry(name)
    if entry is not None and entry.verdict == "verified" and _is_wrong(writer, entry.file):
        return ALL_VERDICTS
    return ("quarantined", "provisional")


def _is_wrong(writer: ZoneWriter, file: DataFile) -> bool:
    """Return whether a file is damaged, is not what its name says, or has an offset of another live file."""
    if is_misnamed(file) or writer.zone.damage(file):
        return True
    others = files_of(writer.entries(parse_shard(file.shard).topic))
    index = RangeIndex(other.ranges for other in others if _shares_records(file, other))
    return index.overlaps(file.ranges)


def _shares_records(file: DataFile, other: DataFile) -> bool:
    return other.name != file.name and parse_shard(other.shard).overlaps(parse_shard(file.shard))
