"""The zones of a home, opened: what `lake landing` works on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from lake_assets.errors import UsageError
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.files.zone_folder import Zone
from lake_assets.landing.manifest.schema import ALL_VERDICTS, Entry, Verdict
from lake_assets.landing.manifest.store import Manifest, open_manifest
from lake_assets.landing.manifest.writing import ZoneWriter
from lake_assets.settings import Settings

ZONES = ("a", "b")


def open_zones(settings: Settings, names: Iterable[str] = ()) -> list[ZoneWriter]:
    """The zones of a home, or those named, with the one manifest that they share. Raises `UsageError`."""
    wanted = tuple(names) or ZONES
    for name in wanted:
        if name not in ZONES:
            raise _no_zone(name)
    manifest = open_manifest(settings)
    return [ZoneWriter(Zone(name, settings.landing_folder / name), manifest) for name in wanted]


def shards_of(manifest: Manifest, topic: str | None = None) -> list[Shard]:
    """The shards that have files, of all topics or of one; dead letters are none."""
    found = {e.file.shard for e in manifest.entries(topic=topic)}
    return [shard for shard in map(parse_shard, sorted(found)) if not shard.dead_letters]


def topics_of(manifest: Manifest, topic: str | None = None) -> list[str]:
    """The topics that have files; the one that is named. Raises `UsageError` if it has none."""
    found = sorted({shard.topic for shard in shards_of(manifest, topic)})
    if topic and not found:
        raise UsageError(f"Nothing of the topic {topic!r} has landed.", remedy="See `lake landing status`.")
    return found


Decision = Literal["release", "discard"]


def decide(writers: Sequence[ZoneWriter], zone: str, name: str, decision: Decision, *, now: datetime) -> list[Entry]:
    """Release or discard a file of a zone that is in quarantine; the files that are quarantined in its stead.

    Discarded may be a provisional one, too, and one that is damaged. Cut short, it is finished by the next call: files
    follow the manifest. Raises `UsageError`.
    """
    by_name = {writer.zone.name: writer for writer in writers}
    if zone not in by_name:
        raise _no_zone(zone)
    writer = by_name[zone]
    if decision == "discard":
        for gone in writer.manifest.discard(zone, name, verdicts=_discardable(writer, name)):
            writer.zone.drop(gone)
        return []
    writer.zone.take_back(name)
    others = writer.manifest.release(zone, name, now=now)
    for other in others:
        by_name[other.file.zone].zone.set_aside(other.file.name)
    return others


def _discardable(writer: ZoneWriter, name: str) -> Sequence[Verdict]:
    """What a file may be that is discarded: not verified, unless it is damaged."""
    entry = writer.manifest.entry(writer.zone.name, name)
    damaged = entry is not None and entry.verdict == "verified" and writer.zone.damage(entry.file)
    return ALL_VERDICTS if damaged else ("quarantined", "provisional")


def _no_zone(name: str) -> UsageError:
    return UsageError(f"There is no zone {name!r}.", remedy=f"Name one of: {', '.join(ZONES)}.")
