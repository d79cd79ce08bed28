"""Reshard: the records of a shard go to other shards, by distinct id; offsets stay.

The copies wait, staged, until each is verified against the other zone's; then all of them take the place of the old
files at once: readers see the old shard or the new ones, never both. The zones agree first on how far it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from lake_assets.base.failpoints import reach
from lake_assets.errors import UsageError
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.sharding import DistinctId, Shard, shards
from lake_assets.landing.manifest.compaction_choice import last_offsets
from lake_assets.landing.manifest.schema import Entry
from lake_assets.landing.manifest.shared_state import Agreements, Round
from lake_assets.landing.manifest.writing import ZoneWriter
from lake_assets.landing.operations.compaction_rounds import due, place, shard_files


@dataclass(frozen=True)
class Resharded:
    """What a call did. copies: names of those that were made. waits_for: what, if the old shard has not retired."""

    copies: list[str]
    waits_for: str | None


def reshard(writer: ZoneWriter, shard: Shard, of: int, distinct_id: DistinctId, *, now: datetime) -> Resharded:
    """Copy the files of a shard to `of` shards, and let it retire when all copies are verified. Called again, goes on.

    A shard splits: `of` is a multiple of what it is one of, so each new shard has records of one old shard alone.
    Raises `UsageError` for another number, and for one that differs from that which is being worked on.
    """
    if of <= shard.of or of % shard.of or shard.dead_letters:
        raise UsageError(
            f"{shard} can not be resharded to {of}.", remedy=f"Name a multiple of {shard.of}: a shard is split."
        )
    found = _agreed(writer, shard, of)
    if found is None:
        return Resharded([], None)
    if found.of not in (of, None):
        raise UsageError(
            f"{shard} is being resharded to {found.of} shards, not to {of}.",
            remedy=f"Finish that first: `lake landing reshard {shard.topic} {found.of}`.",
        )
    taken = shard_files(writer.manifest, writer.zone.name, shard).up_to(found.cut)
    if found.of is None or not taken:
        return Resharded([], f"round {found.number} of {shard}: " + ("compaction" if found.of is None else "its files"))
    targets = [target for target in shards(shard.topic, of) if target.number % shard.of == shard.number]
    made = [name for target in targets for name in _copy(writer, taken, target, distinct_id, now=now)]
    return Resharded(made, _retire(writer, found, taken, targets, now=now))


def reshard_all(
    writers: Sequence[ZoneWriter], shard: Shard, of: int, distinct_id: DistinctId, clock: Callable[[], datetime]
) -> Iterator[tuple[str, Resharded]]:
    """`reshard` in one zone after the other; zone and what was done, call by call.

    Copies of the first zone are verified by those of the last: so the first ones are asked once more.
    """
    for writer in [*writers, *writers[:-1]]:
        yield writer.zone.name, reshard(writer, shard, of, distinct_id, now=clock())


def _agreed(writer: ZoneWriter, shard: Shard, of: int) -> Round | None:
    """The round of a shard that is due; else a new reshard, up to all that this zone has verified; None: of nothing."""
    if rounds := due(writer.manifest, writer.zone.name, shard):
        return rounds[0]
    agreements = Agreements(writer.manifest)
    cut = last_offsets(shard_files(writer.manifest, writer.zone.name, shard).settled())
    if not cut:
        return None
    found = agreements.agree(Round(str(shard), len(agreements.rounds(shard)) + 1, cut, of=of))
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


def _retire(
    writer: ZoneWriter, found: Round, taken: list[DataFile], targets: list[Shard], *, now: datetime
) -> str | None:
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
    old, new = [f.name for f in taken], [e.file.name for e in copies]
    writer.manifest.exchange(writer.zone.name, old, new, ends=(found.shard, found.number), now=now)
    reach("landing-exchanged")
    return None
