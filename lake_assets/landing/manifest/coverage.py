"""Which offsets may be loaded next, by the files that cover them. Pure.

An offset is ready when all files of a zone that cover it may be read, and are of all shards that there are; and so is
each before it. Files come and go (they are compacted, resharded, scrubbed): offsets are what a loader counts by.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from lake_assets.landing.files.sharding import Shard, complete
from lake_assets.landing.manifest.compaction_choice import Ranges

Ends = Mapping[int, int]
"""Partition → an offset, exclusive."""


WHOLE = Shard("any")
"""All records of a topic: of which one does not matter here."""


class Cover(NamedTuple):
    """What a file covers, and whether it may be read. ranges: partition → first and last offset, both inclusive."""

    ranges: Mapping[int, tuple[int, int]]
    readable: bool
    shard: Shard = WHOLE


class _Span(NamedTuple):
    first: int
    last: int
    cover: Cover


def ready(covers: Iterable[Cover], starts: Ends) -> dict[int, int]:
    """How far each partition may be loaded from its start on: the offset after the last that is ready."""
    spans: dict[int, list[_Span]] = {partition: [] for partition in starts}
    for cover in covers:
        for partition, (first, last) in cover.ranges.items():
            if partition in spans and last >= starts[partition]:
                spans[partition].append(_Span(first, last, cover))
    return {partition: _reach(spans[partition], start) for partition, start in starts.items()}


def meets(several: Iterable[Ranges]) -> Callable[[Ranges], bool]:
    """What tells of a file's ranges whether any of several others has an offset of them: in log n for each."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for ranges in several:
        for partition, span in ranges.items():
            spans.setdefault(partition, []).append(span)
    ordered = {partition: sorted(found) for partition, found in spans.items()}
    reached = {partition: list(accumulate(map(itemgetter(1), found), max)) for partition, found in ordered.items()}

    def meet(partition: int, first: int, last: int) -> bool:
        begun = bisect_right(ordered.get(partition, ()), last, key=itemgetter(0))
        return begun > 0 and reached[partition][begun - 1] >= first

    return lambda ranges: any(meet(partition, *span) for partition, span in ranges.items())


def limited(starts: Ends, ends: Ends, *, most: int) -> dict[int, int]:
    """The ends, but for so many offsets at most behind each start."""
    return {partition: min(end, starts[partition] + most) for partition, end in ends.items()}


def _reach(spans: Iterable[_Span], start: int) -> int:
    """From one offset at which a file begins or ends to the next, as long as what covers it is whole."""
    ahead, over, at = sorted(spans, key=itemgetter(0), reverse=True), list[_Span](), start
    while True:
        while ahead and ahead[-1].first <= at:
            over.append(ahead.pop())
        over = [span for span in over if span.last >= at]
        if not (all(span.cover.readable for span in over) and complete(span.cover.shard for span in over)):
            return at
        at = min([span.last + 1 for span in over] + [span.first for span in ahead[-1:]])
