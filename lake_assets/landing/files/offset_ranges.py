"""Offset ranges of files: for each partition the first and the last offset, both inclusive. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from operator import itemgetter
from typing import TypeVar

from lake_assets.landing.files.entries import DataFile

Ranges = Mapping[int, tuple[int, int]]
"""Partition → first and last offset, both inclusive."""

Value = TypeVar("Value")

_first = itemgetter(0)
_last = itemgetter(1)


def union(several: Iterable[Ranges]) -> dict[int, tuple[int, int]]:
    """Return, for each partition, the range from the least offset to the greatest; partitions ascend."""
    merged: dict[int, tuple[int, int]] = {}
    for ranges in several:
        for partition, (first, last) in ranges.items():
            least, greatest = merged.get(partition, (first, last))
            merged[partition] = (min(least, first), max(greatest, last))
    return dict(sorted(merged.items()))


def merged_ranges(files: Iterable[DataFile]) -> dict[int, tuple[int, int]]:
    """Return the ranges of the one file that replaces files."""
    return union(file.ranges for file in files)


def first_offsets(files: Iterable[DataFile]) -> dict[int, int]:
    """Return, for each partition, the first offset of files."""
    return {partition: first for partition, (first, _) in merged_ranges(files).items()}


def last_offsets(files: Iterable[DataFile]) -> dict[int, int]:
    """Return, for each partition, the last offset of files, inclusive."""
    return {partition: last for partition, (_, last) in merged_ranges(files).items()}


def next_offsets(files: Iterable[DataFile]) -> dict[int, int]:
    """Return, for each partition, the offset after the last one of files."""
    return {partition: last + 1 for partition, last in last_offsets(files).items()}


def with_text_keys(by_partition: Mapping[int, Value]) -> dict[str, Value]:
    """Return a mapping by partition with the keys that JSON needs."""
    return {str(partition): value for partition, value in by_partition.items()}


def with_number_keys(by_partition: Mapping[str, Value]) -> dict[int, Value]:
    """Return a mapping by partition that was read from JSON, with numbers as keys."""
    return {int(partition): value for partition, value in by_partition.items()}


class RangeIndex:
    """Finds overlaps with many ranges, in O(log n) for each partition of a query."""

    def __init__(self, several: Iterable[Ranges]) -> None:
        spans: dict[int, list[tuple[int, int]]] = {}
        for ranges in several:
            for partition, span in ranges.items():
                spans.setdefault(partition, []).append(span)
        self._spans: dict[int, list[tuple[int, int]]] = {}
        self._greatest: dict[int, list[int]] = {}
        for partition, found in spans.items():
            ordered = sorted(found)
            self._spans[partition] = ordered
            self._greatest[partition] = list(accumulate(map(_last, ordered), max))

    def overlaps(self, ranges: Ranges) -> bool:
        """Return whether any of the indexed ranges has an offset of these."""
        for partition, (first, last) in ranges.items():
            begun = bisect_right(self._spans.get(partition, ()), last, key=_first)
            if begun > 0 and self._greatest[partition][begun - 1] >= first:
                return True
        return False
