"""The regular work on a zone's files: finish scrubs, merge small files, remove files that were replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from lake_assets.landing.consume.deletions import Scrub
from lake_assets.landing.manifest.compaction_choice import GroupLimits
from lake_assets.landing.manifest.shared_state import SharedState
from lake_assets.landing.manifest.status import shards_of
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.operations.compact import merge
from lake_assets.landing.operations.scrub import scrub
from lake_assets.landing.operations.sweep import sweep


@dataclass(frozen=True)
class Upkeep:
    """What was done in a zone: the names of files.

    Attributes:
        scrubbed: Files that were scrubbed for a request that the zone had not finished.
        merged: Columnar files that were made from several files.
        removed: Files that were replaced long ago, and drafts of processes that died.
    """

    zone: str
    scrubbed: tuple[str, ...]
    merged: tuple[str, ...]
    removed: tuple[str, ...]


def keep_up(
    writer: ZoneWriter, rules: Mapping[str, Scrub], limits: GroupLimits, *, keep: timedelta, now: datetime
) -> Upkeep:
    """Do the regular work on the files of a zone. Safe to repeat; other zones follow when it is their turn.

    Args:
        writer: Of the zone.
        rules: Topic → how its deletion requests find their records.
        limits: Of the files that become one file.
        keep: For how long files that were replaced are kept for readers.
        now: The present time.

    Raises:
        LandingError: An operation is refused; what was done before it stays.
    """
    scrubbed: list[str] = []
    merged: list[str] = []
    for topic, by in rules.items():
        if SharedState(writer.manifest).deletions(topic):
            scrubbed += scrub(writer, topic, by, now=now)
    for shard in shards_of(writer.manifest):
        merged += merge(writer, shard, limits, now=now)
    oldest = now - keep
    removed = [*sweep(writer.manifest, writer.zone, retired_before=oldest), *writer.zone.drop_drafts(oldest)]
    return Upkeep(writer.zone.name, tuple(scrubbed), tuple(merged), tuple(removed))
