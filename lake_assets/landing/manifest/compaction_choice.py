"""Which files to compact together, so that both zones choose the same and a later choice stays possible.

The files of a shard are a graph: an edge goes from a file to the next one of a partition that they share. A group must
be consecutive in each of its partitions (R1), and replacing it by one file must leave no cycle (R2): it is convex, no
path leaves it and comes back. R2 implies R1, not the other way round. Whatever follows itself without a gap in a
topological order is convex, and so are all such groups at once; so an order is cut into groups.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import networkx as nx

from lake_assets.errors import ConfigurationError, OffsetsOverlap
from lake_assets.landing.files.entries import DataFile

Ranges = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group does not exceed: files, and bytes (`DataFile.size`) together."""

    max_files: int
    max_bytes: int

    def __post_init__(self) -> None:
        if self.max_files < 2 or self.max_bytes < 1:
            raise ConfigurationError(
                f"Groups of at most {self.max_files} files and {self.max_bytes} bytes can not be.",
                remedy="Allow 2 files and 1 byte, or more.",
            )


def select(files: Iterable[DataFile], limits: Limits) -> list[list[DataFile]]:
    """The groups to compact, each of two files or more of one shard and with equal deletions.

    Files are taken in a topological order: of those that no file left comes before, the smallest, ties by name. A
    group ends where the next one does not fit. Replacing each group by one file leaves the graphs without a cycle; so
    rounds of it come to an end. The order in which files are given does not matter. Linear in files but for the
    sorting of those that are free at a time. Raises `OffsetsOverlap`.

    It chooses among all it is given. For zones that see different files, give it `candidates`.
    """
    shards: dict[str, list[DataFile]] = {}
    for file in files:
        shards.setdefault(file.shard, []).append(file)
    groups = (group for _, members in sorted(shards.items()) for group in _groups(members, limits))
    return [group for group in groups if len(group) > 1]


def candidates(files: Iterable[DataFile], cut: Mapping[int, int]) -> list[DataFile]:
    """The files of one shard up to a cut: partition → last offset, inclusive. What lies beyond does not exist.

    None, as long as the files do not reach the cut, or one of them lies across it: another zone may see more.
    """
    within = [file for file in files if all(last <= cut.get(p, -1) for p, (_, last) in file.ranges.items())]
    reached = merged_ranges(within)
    complete = all(p in reached and reached[p][1] == last for p, last in cut.items())
    return within if complete else []


def last_offsets(files: Iterable[DataFile]) -> dict[int, int]:
    """Partition → the last offset of files of one shard: a cut at all of them."""
    return {partition: last for partition, (_, last) in merged_ranges(files).items()}


def next_offsets(files: Iterable[DataFile]) -> dict[int, int]:
    """Partition → the offset behind the last one of files."""
    return {partition: last + 1 for partition, last in last_offsets(files).items()}


def first_offsets(files: Iterable[DataFile]) -> dict[int, int]:
    """Partition → the first offset of files."""
    return {partition: first for partition, (first, _) in merged_ranges(files).items()}


def merged_ranges(files: Iterable[DataFile]) -> dict[int, tuple[int, int]]:
    """The ranges of the one file that replaces files: in each partition, from the least offset to the greatest."""
    return union(file.ranges for file in files)


def union(several: Iterable[Ranges]) -> dict[int, tuple[int, int]]:
    """The same of ranges alone."""
    merged: dict[int, tuple[int, int]] = {}
    for ranges in several:
        for partition, (first, last) in ranges.items():
            least, greatest = merged.get(partition, (first, last))
            merged[partition] = (min(least, first), max(greatest, last))
    return dict(sorted(merged.items()))


def graph(files: Iterable[DataFile]) -> nx.DiGraph[str]:
    """The files of one shard, by name; an edge goes to the next one of each partition. Raises `OffsetsOverlap`."""
    found: nx.DiGraph[str] = nx.DiGraph()
    chains: dict[int, list[tuple[int, int, str]]] = {}
    for file in files:
        found.add_node(file.name)
        for partition, (first, last) in file.ranges.items():
            chains.setdefault(partition, []).append((first, last, file.name))
    for partition, chain in chains.items():
        for (_, last, name), (first, _, following) in pairwise(sorted(chain)):
            if first <= last:
                raise OffsetsOverlap(partition, first, names=(name, following))
            found.add_edge(name, following)
    return found


def _groups(files: Sequence[DataFile], limits: Limits) -> Iterator[list[DataFile]]:
    """All files of one shard, cut into groups."""
    order = _Order(files)
    while order:
        group = [order.take_first()]
        size = group[0].size
        while len(group) < limits.max_files and (file := order.take(group[0].deletions, limits.max_bytes - size)):
            group.append(file)
            size += file.size
        yield group


@dataclass
class _Order:
    """A topological order that is asked for file by file, by what fits (Kahn, 1962).

    Files on a cycle never come: no choice of ours makes one, and none could be undone by choosing.
    """

    files: Sequence[DataFile]
    _free: dict[frozenset[str], list[tuple[int, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name = {file.name: file for file in self.files}
        self._graph = graph(self.files)
        self._before = dict(self._graph.in_degree())
        for name, count in self._before.items():
            if not count:
                self._release(self._by_name[name])

    def __bool__(self) -> bool:
        return any(self._free.values())

    def take_first(self) -> DataFile:
        """The smallest free file."""
        return self._take(min((heap for heap in self._free.values() if heap), key=lambda heap: heap[0]))

    def take(self, deletions: frozenset[str], room: int) -> DataFile | None:
        """The smallest free file with these deletions; None if it has more than `room` bytes, or there is none."""
        heap = self._free.get(deletions)
        return self._take(heap) if heap and heap[0][0] <= room else None

    def _take(self, heap: list[tuple[int, str]]) -> DataFile:
        _, name = heapq.heappop(heap)
        for following in self._graph.successors(name):
            self._before[following] -= 1
            if not self._before[following]:
                self._release(self._by_name[following])
        return self._by_name[name]

    def _release(self, file: DataFile) -> None:
        heapq.heappush(self._free.setdefault(file.deletions, []), (file.size, file.name))
