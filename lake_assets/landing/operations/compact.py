"""Compaction: append files become columnar files with the same records, one by one or several together.

Both zones make the same files. Before a zone begins a round, the manifest records its cut and the groups chosen up to
it. A zone works on the rounds of a shard in order, on each as soon as it has the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import chain

from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.offset_ranges import Ranges, last_offsets
from lake_assets.landing.files.sharding import Shard
from lake_assets.landing.manifest.compaction_choice import GroupLimits, select
from lake_assets.landing.manifest.shared_state import Round, SharedState
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.operations.compaction_rounds import (
    ShardFiles,
    open_reshards,
    open_round,
    shard_files,
    unfinished_rounds,
)
from lake_assets.landing.operations.rewrite import rewrite


def to_columns(writer: ZoneWriter, topic: str, *, now: datetime) -> list[str]:
    """Rewrite each verified append file of a topic as a columnar file; return the names of the new files."""
    made = []
    for entry in writer.entries(topic, verdicts=("verified",)):
        if entry.file.kind == "append":
            made.append(_compact(writer, [entry.file], now=now))
    return made


def merge(writer: ZoneWriter, shard: Shard, limits: GroupLimits, *, now: datetime) -> list[str]:
    """Work on the rounds of a shard that this zone has not finished, or else on a new one.

    It stops where files are missing or are not scrubbed for the same requests; the next call continues there.

    Args:
        writer: Of the zone.
        shard: The shard.
        limits: Of the groups of a new round.
        now: The present time.

    Returns:
        The names of the new files.
    """
    made: list[str] = []
    rounds = unfinished_rounds(writer, shard)
    if not rounds and not open_reshards(writer, shard.topic):
        rounds = _open_rounds(writer, shard, limits)
    for compaction in rounds:
        if compaction.of is not None:
            break
        for group in _ready_groups(shard_files(writer, shard), compaction):
            made.append(_compact(writer, group, now=now))
        if not shard_files(writer, shard).has_merged(compaction):
            break
        SharedState(writer.manifest).finish_round(writer.zone.name, compaction)
    return made


def _open_rounds(writer: ZoneWriter, shard: Shard, limits: GroupLimits) -> list[Round]:
    """Open the next round, up to all files that this zone has verified; empty if there is nothing to merge."""
    settled = shard_files(writer, shard).settled()
    groups = []
    for group in select(settled, limits):
        groups.append(tuple(file.ranges for file in group))
    if not groups:
        return []
    return [open_round(writer, shard, last_offsets(settled), groups=tuple(groups))]


def _ready_groups(files: ShardFiles, compaction: Round) -> list[list[DataFile]]:
    """Return the groups of a round that this zone has completely and has not merged.

    The files were verified in the zone that opened the round. Files that this zone has scrubbed since need no new
    verification: the other zone only has the merged file to compare with.
    """
    ready = []
    for group in compaction.groups:
        live = _live_files(files, group)
        is_complete = len(live) == len(group)
        scrubbed_alike = len({file.deletions for file in live}) == 1
        if is_complete and scrubbed_alike:
            ready.append(live)
    return ready


def _compact(writer: ZoneWriter, taken: Sequence[DataFile], *, now: datetime) -> str:
    return rewrite(
        writer,
        "compaction",
        taken,
        chain.from_iterable(map(writer.records, taken)),
        kind="columnar",
        deletions=taken[0].deletions,
        now=now,
    )


def _live_files(files: ShardFiles, group: Iterable[Ranges]) -> list[DataFile]:
    entries = [files.find(ranges) for ranges in group]
    return [entry.file for entry in entries if entry and entry.stage == "live"]
