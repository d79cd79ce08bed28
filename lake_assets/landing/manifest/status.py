"""The shards and topics that have files, and the status of each shard in each zone. Reads the manifest alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lake_assets.errors import UsageError
from lake_assets.landing.files.offset_ranges import next_offsets
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.manifest.schema import ALL_VERDICTS, CURRENT_STAGES, Entry, files_of
from lake_assets.landing.manifest.store import Manifest


@dataclass(frozen=True)
class ShardStatus:
    """The staged and live files of a shard in a zone.

    Attributes:
        verified: Number of verified files.
        provisional: Number of provisional files.
        quarantined: Number of quarantined files.
        records: Records in files that are not quarantined.
        bytes: Bytes of files that are not quarantined, as in `DataFile.size`.
        next: Partition → the offset after the last one.
    """

    zone: str
    shard: str
    verified: int
    provisional: int
    quarantined: int
    records: int
    bytes: int
    next: dict[int, int]


def status(manifest: Manifest) -> list[ShardStatus]:
    """Return the status of every shard in every zone, ordered by shard and zone."""
    grouped: dict[tuple[str, str], list[Entry]] = {}
    for entry in manifest.entries(stages=CURRENT_STAGES, verdicts=ALL_VERDICTS):
        grouped.setdefault((entry.file.shard, entry.file.zone), []).append(entry)
    return [_status(zone, shard, entries) for (shard, zone), entries in sorted(grouped.items())]


def shards_of(manifest: Manifest, topic: str | None = None) -> list[Shard]:
    """Return the shards that have live files, without dead letters, of one topic or (None) of all."""
    names = {file.shard for file in files_of(manifest.entries(topic=topic)) if not file.holds_dead_letters}
    return [parse_shard(name) for name in sorted(names)]


def topics_of(manifest: Manifest, topic: str | None = None) -> list[str]:
    """Return the topics that have live files.

    Args:
        manifest: The manifest.
        topic: Return only this topic; None means all.

    Raises:
        UsageError: The named topic has no files.
    """
    found = sorted({shard.topic for shard in shards_of(manifest, topic)})
    if topic and not found:
        raise UsageError(f"Nothing of the topic {topic!r} has landed.", remedy="See `lake landing status`.")
    return found


def _status(zone: str, shard: str, entries: list[Entry]) -> ShardStatus:
    verdicts = Counter(entry.verdict for entry in entries)
    files = files_of(entry for entry in entries if entry.verdict != "quarantined")
    return ShardStatus(
        zone=zone,
        shard=shard,
        verified=verdicts["verified"],
        provisional=verdicts["provisional"],
        quarantined=verdicts["quarantined"],
        records=sum(file.count for file in files),
        bytes=sum(file.size for file in files),
        next=next_offsets(files),
    )
