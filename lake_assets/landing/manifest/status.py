"""How the zones stand, by zone and shard, from the manifest alone; and what of the past they let go of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from lake_assets.base.failpoints import reach
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.zone_folder import Zone
from lake_assets.landing.manifest.compaction_choice import next_offsets
from lake_assets.landing.manifest.schema import ALL_VERDICTS, Entry
from lake_assets.landing.manifest.store import Manifest


@dataclass(frozen=True)
class ShardStatus:
    """What a zone has of a shard: files that readers may read or that are staged, by verdict, and those in quarantine.

    records, bytes: of files that are not quarantined. next: partition → the offset behind the last.
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
    """Every shard of every zone, by shard and zone."""
    entries = manifest.entries(stages=("staged", "live"), verdicts=ALL_VERDICTS)
    apart: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        apart.setdefault((entry.file.shard, entry.file.zone), []).append(entry)
    return [_status(zone, shard, found) for (shard, zone), found in sorted(apart.items())]


def sweep(
    manifest: Manifest,
    zone: Zone,
    *,
    retired_before: datetime,
    topic: str | None = None,
    but: Callable[[DataFile], bool] = lambda _: False,
) -> list[str]:
    """Remove the files of a zone that were retired before a time, when no reader has them open; their names.

    but: which of them stay. Files first, then what the manifest knows of them: cut short, it is finished by the next
    call.
    """
    found = manifest.entries(zone.name, topic, stages=("retired",))
    names = [e.file.name for e in found if e.retired_at and e.retired_at < retired_before and not but(e.file)]
    for name in names:
        zone.drop(name)
    reach("landing-swept")
    manifest.forget(zone.name, names)
    return names


def _status(zone: str, shard: str, entries: list[Entry]) -> ShardStatus:
    verdicts = Counter(e.verdict for e in entries)
    files = [e.file for e in entries if e.verdict != "quarantined"]
    return ShardStatus(
        zone,
        shard,
        verdicts["verified"],
        verdicts["provisional"],
        verdicts["quarantined"],
        records=sum(f.count for f in files),
        bytes=sum(f.size for f in files),
        next=next_offsets(files),
    )
