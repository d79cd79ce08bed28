"""Reshard: the records of a shard are copied to other shards by distinct id; offsets stay the same.

The copies are staged until each of them is verified against the other zone's copy. Then all of them replace the old
files at once, so readers see either the old shard or the new shards. Both zones work up to the same recorded cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from lake_assets.base.failpoints import reach
from lake_assets.errors import UsageError
from lake_assets.landing.files.entries import DataFile, names_of
from lake_assets.landing.files.offset_ranges import first_offsets, last_offsets
from lake_assets.landing.files.sharding import DistinctId, Shard, shards
from lake_assets.landing.manifest.schema import Entry, files_of
from lake_assets.landing.manifest.shared_state import Round, SharedState
from lake_assets.landing.manifest.store import RoundNumber
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.operations.compaction_rounds import open_round, shard_files, unfinished_rounds
from lake_assets.landing.tailing.refetch import missing_files


@dataclass(frozen=True)
class Resharded:
    """The result of a call.

    Attributes:
        copies: Names of the copies that it made.
        waits_for: Why the old shard has not retired yet; None if it has.
    """

    copies: list[str]
    waits_for: str | None


def reshard(writer: ZoneWriter, shard: Shard, of: int, distinct_id: DistinctId, *, now: datetime) -> Resharded:
    """Copy the files of a shard to new shards, and retire it when all copies are verified. Another call continues.

    Args:
        writer: Of the zone.
        shard: The shard to split.
        of: The new number of shards: a multiple of the present one, so each new shard has records of one old shard.
        distinct_id: Returns the distinct id of a record.
        now: The present time.

    Raises:
        UsageError: The number is not a multiple, or differs from that of an unfinished reshard.
    """
    _require_multiple(shard, of)
    current = _current_round(writer, shard, of)
    if current is None:
        return Resharded([], None)
    if current.of is None:
        return Resharded([], f"round {current.number} of {shard}: compaction")
    if current.of != of:
        raise UsageError(
            f"{shard} is being resharded to {current.of} shards, not to {of}.",
            remedy=f"Finish that first: `lake landing reshard {shard.topic} {current.of}`.",
        )
    taken = _complete_files(writer, shard, current)
    if not taken:
        return _finish_if_split(writer, shard, current)
    targets = [target for target in shards(shard.topic, of) if target.number % shard.of == shard.number]
    made: list[str] = []
    for target in targets:
        made += _copy(writer, taken, target, distinct_id, now=now)
    return Resharded(made, _retire(writer, current, taken, targets, now=now))


def reshard_all(
    writers: Sequence[ZoneWriter], shard: Shard, of: int, distinct_id: DistinctId, clock: Callable[[], datetime]
) -> Iterator[tuple[str, Resharded]]:
    """Reshard in one zone after the other; yield the zone and the result of each call.

    The copies of the last zone verify those of the others, so the others are called once more.
    """
    for writer in [*writers, *writers[:-1]]:
        yield writer.zone.name, reshard(writer, shard, of, distinct_id, now=clock())


def _require_multiple(shard: Shard, of: int) -> None:
    if of <= shard.of or of % shard.of or shard.dead_letters:
        raise UsageError(
            f"{shard} cannot be resharded to {of}.",
            remedy=f"Name a multiple of {shard.of}: a shard is split.",
        )


def _current_round(writer: ZoneWriter, shard: Shard, of: int) -> Round | None:
    """Return the first unfinished round of a shard, else a new reshard; None if there is no file to reshard."""
    unfinished = unfinished_rounds(writer, shard)
    if unfinished:
        return unfinished[0]
    cut = last_offsets(shard_files(writer, shard).settled())
    if not cut:
        return None
    return open_round(writer, shard, cut, of=of)


def _complete_files(writer: ZoneWriter, shard: Shard, current: Round) -> list[DataFile]:
    """Return the files of a round; empty as long as the zone misses one.

    A file that lands again after the round would be in the old shard, where the other zone has nothing left to split.
    """
    if missing_files(writer.manifest, writer.zone.name, shard.topic):
        return []
    return shard_files(writer, shard).up_to(current.cut)


def _finish_if_split(writer: ZoneWriter, shard: Shard, current: Round) -> Resharded:
    if not _is_split(writer, shard, current):
        return Resharded([], f"round {current.number} of {shard}: its files")
    SharedState(writer.manifest).finish_round(writer.zone.name, current)
    return Resharded([], None)


def _is_split(writer: ZoneWriter, shard: Shard, current: Round) -> bool:
    """Return whether the records of a round are in the new shards alone, where files that were discarded landed again.

    The old shard then has no file up to the cut, and each new one has files up to it.
    """
    if current.of is None or missing_files(writer.manifest, writer.zone.name, shard.topic):
        return False
    begins = first_offsets(shard_files(writer, shard).live)
    for partition, last in current.cut.items():
        if begins.get(partition, last + 1) <= last:
            return False
        for target in shards(shard.topic, current.of):
            ends = last_offsets(shard_files(writer, target).live)
            if target.number % shard.of == shard.number and ends.get(partition, -1) < last:
                return False
    return True


def _copy(
    writer: ZoneWriter, taken: list[DataFile], target: Shard, distinct_id: DistinctId, *, now: datetime
) -> list[str]:
    """Make the missing copies in one new shard."""
    existing = shard_files(writer, target)
    made = []
    for file in taken:
        if existing.find(file.ranges):
            continue
        draft = writer.zone.draft(
            str(target),
            file.ranges,
            (record for record in writer.records(file) if target.takes(distinct_id(record))),
            deletions=file.deletions,
            kind=file.kind,
            made_from=(file.name,),
        )
        writer.land(draft, now=now, stage="staged")
        made.append(draft.file.name)
    return made


def _retire(
    writer: ZoneWriter, current: Round, taken: list[DataFile], targets: list[Shard], *, now: datetime
) -> str | None:
    """Replace the old files by the copies; return what this waits for, or None if it is done."""
    copies: list[Entry] = []
    for target in targets:
        existing = shard_files(writer, target)
        for file in taken:
            copy = existing.find(file.ranges)
            if copy is None or copy.file.deletions != file.deletions:
                return f"a scrub of {target}"
            copies.append(copy)
    waiting = [copy for copy in copies if copy.verdict != "verified"]
    if waiting:
        return f"{len(waiting)} of {len(copies)} copies of the other zone"
    writer.manifest.exchange(
        writer.zone.name,
        taken=names_of(taken),
        given=names_of(files_of(copies)),
        finishes=RoundNumber(current.shard, current.number),
        now=now,
    )
    reach("landing-exchanged")
    return None
