"""The rounds of a shard, compactions and reshards alike: opening them, and the files that a zone has for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import networkx as nx

from lake_assets.base.failpoints import reach
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.offset_ranges import Ranges, union
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.manifest.compaction_choice import candidates, graph
from lake_assets.landing.manifest.coverage import Cover, uncovered
from lake_assets.landing.manifest.schema import CURRENT_STAGES, Entry, files_of
from lake_assets.landing.manifest.shared_state import Round, SharedState
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.topics.ledger import Ledger

RangesKey = tuple[tuple[int, tuple[int, int]], ...]
"""Ranges as a key of a mapping."""


@dataclass(frozen=True)
class ShardFiles:
    """The files of a shard in a zone, from one read of the manifest: staged and live, without quarantined ones.

    Attributes:
        entries: The files.
        lost: Offsets that are lost for good.
    """

    entries: Sequence[Entry]
    lost: Sequence[Cover] = ()

    @cached_property
    def by_ranges(self) -> Mapping[RangesKey, Entry]:
        """All files by their ranges."""
        return {ranges_key(entry.file.ranges): entry for entry in self.entries}

    @cached_property
    def live(self) -> Sequence[DataFile]:
        """The files that readers read."""
        return files_of(entry for entry in self.entries if entry.stage == "live")

    def find(self, ranges: Ranges) -> Entry | None:
        """Return the file with exactly these ranges, if any."""
        return self.by_ranges.get(ranges_key(ranges))

    def up_to(self, cut: Mapping[int, int]) -> list[DataFile]:
        """Return the live files up to a cut, in order of their add.

        Empty as long as they do not reach it, or as one is missing between them.
        """
        found = candidates(self.live, cut)
        return [] if self._behind_holes(found) else found

    def settled(self) -> list[DataFile]:
        """Return the live files that a round may include.

        They are verified, and follow neither a file that is not, nor a hole where a file was discarded or is in
        quarantine: the round would merge files that the other zone cannot merge without the one between them.
        """
        edges = graph(self.live)
        excluded: set[str] = set()
        for name in self._behind_holes(self.live):
            excluded |= {name, *nx.descendants(edges, name)}
        for entry in self.entries:
            if entry.stage == "live" and entry.verdict != "verified":
                excluded.add(entry.file.name)
                excluded |= nx.descendants(edges, entry.file.name)
        return [file for file in self.live if file.name not in excluded]

    def most_unmerged(self) -> int:
        """Return the number of append files that a round may include, of the partition that has most of them."""
        counts: Counter[int] = Counter()
        for file in self.settled():
            if file.kind == "append":
                counts.update(file.ranges.keys())
        return max(counts.values(), default=0)

    def _behind_holes(self, files: Sequence[DataFile]) -> set[str]:
        """Return the names of the files before whose first offset another file is missing."""
        found = set()
        spans: dict[int, list[tuple[int, int, str]]] = {}
        for file in files:
            for partition, (first, last) in file.ranges.items():
                spans.setdefault(partition, []).append((first, last, file.name))
        for partition, chain in spans.items():
            for (_, last, _), (first, _, name) in pairwise(sorted(chain)):
                if uncovered(self.lost, {partition: last + 1}, {partition: first}):
                    found.add(name)
        return found

    def has_merged(self, compaction: Round) -> bool:
        """Return whether each group of a compaction round is one file; a later round may merge that file too."""
        return all(self.find(union(group)) for group in compaction.groups)


def shard_files(writer: ZoneWriter, shard: Shard) -> ShardFiles:
    """Return the files that a zone has of a shard now."""
    entries = writer.entries(shard.topic, stages=CURRENT_STAGES)
    lost = Ledger(writer.manifest).gaps(shard.topic)
    return ShardFiles([entry for entry in entries if entry.file.shard == str(shard)], lost)


def unfinished_rounds(writer: ZoneWriter, shard: Shard) -> list[Round]:
    """Return the rounds of a shard that a zone has not finished, in order."""
    state = SharedState(writer.manifest)
    finished = state.finished_rounds(writer.zone.name, shard)
    return [found for found in state.rounds(shard) if found.number not in finished]


def open_reshards(writer: ZoneWriter, topic: str) -> list[Round]:
    """Return the reshards of a topic that a zone has not finished, in order."""
    state, zone = SharedState(writer.manifest), writer.zone.name
    rounds = state.reshards(topic)
    finished = {shard: state.finished_rounds(zone, parse_shard(shard)) for shard in {found.shard for found in rounds}}
    return [found for found in rounds if found.number not in finished[found.shard]]


def open_round(
    writer: ZoneWriter,
    shard: Shard,
    cut: Mapping[int, int],
    *,
    groups: tuple[tuple[Ranges, ...], ...] = (),
    of: int | None = None,
) -> Round:
    """Propose the next round of a shard; return the recorded one, which may be the proposal of the other zone.

    Args:
        writer: Of the zone.
        shard: The shard.
        cut: Partition → last offset, inclusive.
        groups: Of a compaction: for each group the ranges of its files.
        of: Of a reshard: the new number of shards.
    """
    state = SharedState(writer.manifest)
    number = len(state.rounds(shard)) + 1
    recorded = state.propose_round(Round(str(shard), number, cut, groups, of))
    reach("landing-round-opened")
    return recorded


def ranges_key(ranges: Ranges) -> RangesKey:
    """Return ranges as a key of a mapping."""
    return tuple(sorted(ranges.items()))
