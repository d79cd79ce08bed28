"""Reshard: the records of a shard go to other shards, by distinct id; offsets stay.

The copies wait, staged, until each is verified against the other zone's; then all of them take the place of the old
files at once: readers see the old shard or the new ones, never both. The zones agree first on how far it goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lake_assets.errors import UsageError
from lake_assets.landing.agreements import Agreements, Round
from lake_assets.landing.compaction import last_offsets
from lake_assets.landing.manifest import DataFile
from lake_assets.landing.rounds import place, shard_files
from lake_assets.landing.schema import Entry
from lake_assets.landing.sharding import DistinctId, Shard, shards
from lake_assets.landing.writing import ZoneWriter, reach


@dataclass(frozen=True)
class Resharded:
    """What a call did. copies: names of those that were made. waits_for: what, if the old shard has not retired."""

    copies: list[str]
    waits_for: str | None


def reshard(writer: ZoneWriter, shard: Shard, of: int, distinct_id: DistinctId, *, now: datetime) -> Resharded:
    """Copy the files of a shard to `of` shards, and let it retire when all copies are verified. Called again, goes on.

    Raises `UsageError` for a number of shards that is none, or other than the one that is being worked on.
    """
    found = _agreed(writer, shard, of)
    files = shard_files(writer.manifest, writer.zone.name, shard)
    if files.has_done(found):
        return Resharded([], None)
    taken = files.up_to(found.cut)
    if found.of is None or not taken:
        return Resharded([], f"round {found.number} of {shard}: " + ("compaction" if found.of is None else "its files"))
    made: list[str] = []
    for target in shards(shard.topic, of):
        made += _copy(writer, taken, target, distinct_id, now=now)
    return Resharded(made, _retire(writer, taken, shards(shard.topic, of), now=now))


def _agreed(writer: ZoneWriter, shard: Shard, of: int) -> Round:
    """The round of a shard that is under way; else a new reshard, up to all that this zone has verified of it."""
    if of < 1 or of == shard.of or shard.dead_letters:
        raise UsageError(f"{shard} can not be resharded to {of}.", remedy="Name another number of shards, from 1 on.")
    agreements = Agreements(writer.manifest)
    rounds, files = agreements.rounds(shard), shard_files(writer.manifest, writer.zone.name, shard)
    under_way = [found for found in rounds if not files.has_done(found)]
    if under_way and under_way[0].of not in (of, None):
        raise UsageError(
            f"{shard} is being resharded to {under_way[0].of} shards, not to {of}.",
            remedy=f"Finish that first: `lake landing reshard {shard.topic} {under_way[0].of}`.",
        )
    if under_way:
        return under_way[0]
    found = Round(str(shard), len(rounds) + 1, last_offsets(files.settled()), of=of)
    if found.cut:
        agreements.open_round(found)
        reach("landing-round-opened")
    return found


def _copy(
    writer: ZoneWriter, taken: list[DataFile], target: Shard, distinct_id: DistinctId, *, now: datetime
) -> list[str]:
    """Make the copies in one new shard that are not there yet."""
    there, made = shard_files(writer.manifest, writer.zone.name, target), []
    for file in taken:
        if place(file.ranges) in there.present:
            continue
        records = (record for record in writer.records(file) if target.takes(distinct_id(record)))
        draft = writer.zone.draft(
            str(target), file.ranges, records, deletions=file.deletions, kind=file.kind, made_from=(file.name,)
        )
        writer.land(draft, now=now, stage="staged")
        made.append(draft.file.name)
    return made


def _retire(writer: ZoneWriter, taken: list[DataFile], targets: list[Shard], *, now: datetime) -> str | None:
    """Let the copies take the place of the old files; or what still has to come before."""
    copies: list[Entry] = []
    for target in targets:
        there = shard_files(writer.manifest, writer.zone.name, target).present
        for file in taken:
            entry = there.get(place(file.ranges))
            if entry is None or entry.file.deletions != file.deletions:
                return f"a scrub of {target}"
            copies.append(entry)
    if waiting := [e.file.name for e in copies if e.verdict != "verified"]:
        return f"the other zone's {len(waiting)} of {len(copies)} copies"
    names = [e.file.name for e in copies]
    writer.manifest.exchange("reshard", writer.zone.name, [f.name for f in taken], names, now=now)
    reach("landing-exchanged")
    return None
