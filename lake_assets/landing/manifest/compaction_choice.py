"""The choice of the files to compact together. Both zones choose the same, and a later choice stays possible.

The files of a shard form a graph: an edge goes from a file to the next one of a partition that they share. Two rules
hold for a group. R1: it is consecutive in each of its partitions. R2: replacing it by one file leaves no cycle, that
is, the group is convex: no path leaves it and returns. R2 implies R1, but not the other way round. Consecutive files
of a topological order are convex, and so are all groups of such an order together; so the order is cut into groups.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import networkx as nx

from lake_assets.errors import ConfigurationError, OffsetsOverlap
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.offset_ranges import last_offsets

_BEFORE_ALL = -1
"""Less than any offset."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The limits of a group.

    Attributes:
        max_files: Number of files, 2 or more.
        max_bytes: Bytes of all files together (`DataFile.size`), 1 or more.
    """

    max_files: int
    max_bytes: int

    def __post_init__(self) -> None:
        if self.max_files < 2 or self.max_bytes < 1:
            raise ConfigurationError(
                f"Groups of at most {self.max_files} files and {self.max_bytes} bytes are not possible.",
                remedy="Allow 2 files and 1 byte, or more.",
            )


def select(files: Iterable[DataFile], limits: GroupLimits) -> list[list[DataFile]]:
    """Return the groups to compact, each of two or more files of one shard with equal deletions.

    The files are taken in a topological order: among the files that no remaining file precedes, the smallest comes
    first; ties are broken by name. A group ends where the next file does not fit. Replacing each group by one file
    leaves the graphs without a cycle, so repeated rounds come to an end. The cost is linear in the number of files,
    except for the sorting of the files that are free at a time.

    Args:
        files: All files to choose from, in any order. For zones that see different files, pass `candidates`.
        limits: Of each group.

    Raises:
        OffsetsOverlap: Two files of a shard have an offset in common.
    """
    shards: dict[str, list[DataFile]] = {}
    for file in files:
        shards.setdefault(file.shard, []).append(file)
    selected = []
    for _, members in sorted(shards.items()):
        selected += [group for group in _groups(members, limits) if len(group) > 1]
    return selected


def candidates(files: Iterable[DataFile], cut: Mapping[int, int]) -> list[DataFile]:
    """Return the files of one shard up to a cut.

    Args:
        files: The files of one shard in a zone.
        cut: Partition → last offset, inclusive. Files beyond it are ignored.

    Returns:
        Empty as long as the files do not reach the cut, or one of them lies across it: another zone may see more.
    """
    within = [file for file in files if _is_within(file, cut)]
    reached = last_offsets(within)
    for partition, last in cut.items():
        if reached.get(partition) != last:
            return []
    return within


def _is_within(file: DataFile, cut: Mapping[int, int]) -> bool:
    return all(last <= cut.get(partition, _BEFORE_ALL) for partition, (_, last) in file.ranges.items())


def graph(files: Iterable[DataFile]) -> nx.DiGraph[str]:
    """Return the graph of the files of one shard: names, with an edge to the next file of each partition.

    Raises:
        OffsetsOverlap: Two files have an offset in common.
    """
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


def _groups(files: Sequence[DataFile], limits: GroupLimits) -> Iterator[list[DataFile]]:
    """Yield groups of files of one shard; every file is in one of them."""
    order = _TopologicalOrder(files)
    while not order.is_empty():
        yield _next_group(order, limits)


def _next_group(order: _TopologicalOrder, limits: GroupLimits) -> list[DataFile]:
    first = order.take_first()
    group = [first]
    size = first.size
    while len(group) < limits.max_files:
        file = order.take(first.deletions, max_bytes=limits.max_bytes - size)
        if file is None:
            break
        group.append(file)
        size += file.size
    return group


@dataclass
class _TopologicalOrder:
    """A topological order that is taken file by file (Kahn, 1962).

    Files on a cycle are never returned. No choice of ours makes a cycle, and no choice could remove one.
    """

    files: Sequence[DataFile]
    _free: dict[frozenset[str], list[tuple[int, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name = {file.name: file for file in self.files}
        self._graph = graph(self.files)
        self._remaining_before = dict(self._graph.in_degree())
        for name, count in self._remaining_before.items():
            if count == 0:
                self._release(name)

    def is_empty(self) -> bool:
        return not any(self._free.values())

    def take_first(self) -> DataFile:
        """Take the smallest free file."""
        heaps = [heap for heap in self._free.values() if heap]
        return self._take(min(heaps, key=lambda heap: heap[0]))

    def take(self, deletions: frozenset[str], *, max_bytes: int) -> DataFile | None:
        """Take the smallest free file with these deletions; None if it is larger than `max_bytes` or there is none."""
        heap = self._free.get(deletions)
        if not heap:
            return None
        size, _ = heap[0]
        if size > max_bytes:
            return None
        return self._take(heap)

    def _take(self, heap: list[tuple[int, str]]) -> DataFile:
        _, name = heapq.heappop(heap)
        for following in self._graph.successors(name):
            self._remaining_before[following] -= 1
            if self._remaining_before[following] == 0:
                self._release(following)
        return self._by_name[name]

    def _release(self, name: str) -> None:
        file = self._by_name[name]
        heap = self._free.setdefault(file.deletions, [])
        heapq.heappush(heap, (file.size, name))
