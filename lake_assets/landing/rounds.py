"""What a zone has of a shard, and how far it is with the rounds that are agreed for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from lake_assets.landing.agreements import Round
from lake_assets.landing.compaction import Ranges, candidates, graph, last_offsets, union
from lake_assets.landing.manifest import DataFile
from lake_assets.landing.schema import Entry
from lake_assets.landing.sharding import Shard
from lake_assets.landing.store import Manifest

Place = tuple[tuple[int, tuple[int, int]], ...]
"""Ranges as a key."""


@dataclass(frozen=True)
class ShardFiles:
    """The files of a shard in a zone as of one look at the manifest, retired ones too, but none in quarantine."""

    entries: Sequence[Entry]

    @cached_property
    def present(self) -> Mapping[Place, Entry]:
        """Those that are staged or live."""
        return {place(e.file.ranges): e for e in self.entries if e.stage != "retired"}

    @cached_property
    def live(self) -> Sequence[DataFile]:
        """Those that readers read."""
        return [e.file for e in self.entries if e.stage == "live"]

    def had(self, ranges: Ranges) -> bool:
        """Whether there is, or was, a file of exactly these offsets."""
        return place(ranges) in self._places

    def up_to(self, cut: Mapping[int, int]) -> list[DataFile]:
        """The live files up to a cut, in the order that they came; none as long as they do not reach it."""
        return candidates(self.live, cut)

    def settled(self) -> list[DataFile]:
        """The live files that are verified, and behind none that is not: they can be agreed on."""
        edges = graph(self.live)
        waiting = {e.file.name for e in self.entries if e.stage == "live" and e.verdict != "verified"}
        beyond = waiting.union(*(nx.descendants(edges, name) for name in waiting))
        return [f for f in self.live if f.name not in beyond]

    def has_done(self, found: Round) -> bool:
        """Whether this zone has done a round: the groups are merged, or all up to the cut is in other shards."""
        if found.of is None:
            return all(self.had(union(group)) for group in found.groups)
        landed = last_offsets(e.file for e in self.entries)
        left = [f for f in self.live if any(first <= found.cut.get(p, -1) for p, (first, _) in f.ranges.items())]
        return not left and all(landed.get(p, -1) >= last for p, last in found.cut.items())

    @cached_property
    def _places(self) -> frozenset[Place]:
        return frozenset(place(e.file.ranges) for e in self.entries)


def shard_files(manifest: Manifest, zone: str, shard: Shard) -> ShardFiles:
    """What a zone has of a shard now."""
    found = manifest.entries(zone, shard.topic, stages=("staged", "live", "retired"))
    return ShardFiles([e for e in found if e.file.shard == str(shard)])


def place(ranges: Ranges) -> Place:
    """Ranges as a key."""
    return tuple(sorted(ranges.items()))
