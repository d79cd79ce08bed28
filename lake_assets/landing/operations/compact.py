"""Compaction: append files become columnar ones of the same records, alone or several together.

Both zones make the same files of the same files: a round is recorded in the manifest, with a cut and the groups that
were chosen up to it, before either zone begins. A zone does the rounds of a shard in order, each when it has all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import chain

from lake_assets.base.failpoints import reach
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.sharding import Shard
from lake_assets.landing.manifest.compaction_choice import Limits, last_offsets, merged_ranges, select
from lake_assets.landing.manifest.shared_state import Agreements, Round
from lake_assets.landing.manifest.writing import ZoneWriter
from lake_assets.landing.operations.compaction_rounds import ShardFiles, due, place, shard_files


def to_columns(writer: ZoneWriter, topic: str, *, now: datetime) -> list[str]:
    """Write each verified append file of a topic anew as a columnar one; the names of these."""
    found = writer.manifest.entries(writer.zone.name, topic, verdicts=("verified",))
    return [_write(writer, [e.file], now=now) for e in found if e.file.kind == "append"]


def merge(writer: ZoneWriter, shard: Shard, limits: Limits, *, now: datetime) -> list[str]:
    """Do the rounds of a shard that this zone has not done, or else the next one; the names of what was made.

    limits: of the round that is then chosen, of verified files. Where files are not here yet, or not scrubbed alike,
    the work ends; the next call goes on.
    """
    made = []
    for found in due(writer.manifest, writer.zone.name, shard) or _opened(writer, shard, limits):
        for group in _ready(shard_files(writer.manifest, writer.zone.name, shard), found):
            made.append(_write(writer, group, now=now))
        if found.of is not None or not shard_files(writer.manifest, writer.zone.name, shard).merged(found):
            break
        Agreements(writer.manifest).end(writer.zone.name, found)
    return made


def _opened(writer: ZoneWriter, shard: Shard, limits: Limits) -> list[Round]:
    """The next round, agreed on, up to all that this zone has verified; none if there is nothing to merge."""
    agreements = Agreements(writer.manifest)
    settled = shard_files(writer.manifest, writer.zone.name, shard).settled()
    groups = tuple(tuple(f.ranges for f in group) for group in select(settled, limits))
    if not groups:
        return []
    number = len(agreements.rounds(shard)) + 1
    found = agreements.agree(Round(str(shard), number, last_offsets(settled), groups))
    reach("landing-round-opened")
    return [found]


def _ready(files: ShardFiles, found: Round) -> list[list[DataFile]]:
    """The groups of a round that this zone has all files of, and has not merged; none of a reshard's.

    They were verified in the zone that opened the round. Those that were scrubbed here since need not be again: the
    other zone has none to compare them with any more, only the merged file.
    """
    complete = []
    for group in found.groups:
        entries = [files.present.get(place(ranges)) for ranges in group]
        ready = [e.file for e in entries if e and e.stage == "live"]
        if len(ready) == len(group) and len({f.deletions for f in ready}) == 1:
            complete.append(ready)
    return complete


def _write(writer: ZoneWriter, taken: Sequence[DataFile], *, now: datetime) -> str:
    draft = writer.zone.draft(
        taken[0].shard,
        merged_ranges(taken),
        chain.from_iterable(writer.records(file) for file in taken),
        deletions=taken[0].deletions,
        kind="columnar",
        made_from=tuple(file.name for file in taken),
    )
    writer.replace("compaction", taken, draft, now=now)
    return draft.file.name
