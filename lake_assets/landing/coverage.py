"""The offsets that may be loaded next, given the files that cover them. Pure.

An offset is ready if every file of a zone that covers it may be read, if these files include all shards, and if the
offset before it is ready. A loader counts by offsets because files are compacted, resharded and scrubbed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from lake_assets.landing.records import Ranges, Shard, complete

Ends = Mapping[int, int]
"""Partition → an offset, exclusive."""

WHOLE = Shard("any")
"""All records of a topic; the name of the topic does not matter here."""


class Cover(NamedTuple):
    """The offsets that a file covers, and whether it may be read."""

    ranges: Ranges
    readable: bool
    shard: Shard = WHOLE


class _Span(NamedTuple):
    first: int
    last: int
    cover: Cover


def ready_ends(covers: Iterable[Cover], starts: Ends) -> dict[int, int]:
    """Return, for each partition, the offset after the last one that is ready.

    Args:
        covers: The files of one zone.
        starts: Partition → the offset to start from; it is also the result if it is not ready.
    """
    spans = _spans_of(covers, starts)
    return {partition: _ready_end(spans[partition], start) for partition, start in starts.items()}


def uncovered(covers: Iterable[Cover], starts: Ends, ends: Ends) -> dict[int, list[tuple[int, int]]]:
    """Return, for each partition, the offsets that are not ready in all shards, as ranges in ascending order.

    Args:
        covers: The files of one zone.
        starts: Partition → the first offset to look at.
        ends: Partition → the offset after the last one to look at. A missing partition has nothing to look at.
    """
    spans = _spans_of(covers, starts)
    found = {}
    for partition, start in starts.items():
        holes = list(_holes(spans[partition], start, ends.get(partition, start)))
        if holes:
            found[partition] = holes
    return found


def _holes(spans: Sequence[_Span], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges, both inclusive, of offsets that are not ready."""
    boundaries = sorted({span.first for span in spans} | {span.last + 1 for span in spans} | {end})
    offset = _ready_end(spans, start)
    while offset < end:
        # Readiness changes only where a file begins or ends.
        after = offset
        while after < end and _ready_end(spans, after) == after:
            after = min(boundaries[bisect_right(boundaries, after)], end)
        yield offset, after - 1
        offset = _ready_end(spans, after)


def limit_ends(starts: Ends, ends: Ends, *, max_offsets: int) -> dict[int, int]:
    """Return the ends, at most `max_offsets` after each start."""
    return {partition: min(end, starts[partition] + max_offsets) for partition, end in ends.items()}


def _spans_of(covers: Iterable[Cover], starts: Ends) -> dict[int, list[_Span]]:
    spans: dict[int, list[_Span]] = {partition: [] for partition in starts}
    for cover in covers:
        for partition, (first, last) in cover.ranges.items():
            if partition in spans and last >= starts[partition]:
                spans[partition].append(_Span(first, last, cover))
    return spans


def _ready_end(spans: Iterable[_Span], start: int) -> int:
    """Walk from one offset where a file begins or ends to the next, while the covering files are ready."""
    ahead = sorted(spans, key=attrgetter("first"), reverse=True)
    covering: list[_Span] = []
    offset = start
    while True:
        while ahead and ahead[-1].first <= offset:
            covering.append(ahead.pop())
        covering = [span for span in covering if span.last >= offset]
        if not _is_ready(covering):
            return offset
        offset = _next_boundary(covering, ahead)


def _is_ready(covering: list[_Span]) -> bool:
    for span in covering:
        if not span.cover.readable:
            return False
    return complete(span.cover.shard for span in covering)


def _next_boundary(covering: list[_Span], ahead: list[_Span]) -> int:
    boundary = 1 + min(span.last for span in covering)
    if ahead:
        boundary = min(boundary, ahead[-1].first)
    return boundary
