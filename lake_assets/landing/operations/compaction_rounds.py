"""What a zone has of a shard, and which of the rounds that are agreed for it it has to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.sharding import Shard
from lake_assets.landing.manifest.compaction_choice import Ranges, candidates, graph, union
from lake_assets.landing.manifest.schema import Entry
from lake_assets.landing.manifest.shared_state import Agreements, Round
from lake_assets.landing.manifest.store import Manifest

Place = tuple[tuple[int, tuple[int, int]], ...]
"""Ranges as a key."""


@dataclass(frozen=True)
class ShardFiles:
    """The files of a shard in a zone as of one look at the manifest: staged and live, but none in quarantine."""

    entries: Sequence[Entry]

    @cached_property
    def present(self) -> Mapping[Place, Entry]:
        """By their ranges."""
        return {place(e.file.ranges): e for e in self.entries}

    @cached_property
    def live(self) -> Sequence[DataFile]:
        """Those that readers read."""
        return [e.file for e in self.entries if e.stage == "live"]

    def up_to(self, cut: Mapping[int, int]) -> list[DataFile]:
        """The live files up to a cut, in the order that they came; none as long as they do not reach it."""
        return candidates(self.live, cut)

    def settled(self) -> list[DataFile]:
        """The live files that are verified, and behind none that is not: they can be agreed on."""
        edges = graph(self.live)
        waiting = {e.file.name for e in self.entries if e.stage == "live" and e.verdict != "verified"}
        beyond = waiting.union(*(nx.descendants(edges, name) for name in waiting))
        return [f for f in self.live if f.name not in beyond]

    def merged(self, found: Round) -> bool:
        """Whether each group of a round of compaction is one file. Later this one may be merged, too, and gone."""
        return all(place(union(group)) in self.present for group in found.groups)


def shard_files(manifest: Manifest, zone: str, shard: Shard) -> ShardFiles:
    """What a zone has of a shard now."""
    found = manifest.entries(zone, shard.topic, stages=("staged", "live"))
    return ShardFiles([e for e in found if e.file.shard == str(shard)])


def due(manifest: Manifest, zone: str, shard: Shard) -> list[Round]:
    """The rounds of a shard that a zone has not done, in order."""
    agreements = Agreements(manifest)
    ended = agreements.ended(zone, shard)
    return [found for found in agreements.rounds(shard) if found.number not in ended]


def place(ranges: Ranges) -> Place:
    """Ranges as a key."""
    return tuple(sorted(ranges.items()))
