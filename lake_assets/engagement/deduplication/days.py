"""The days on which a stored copy of an engagement may be, as few ranges. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta
from itertools import pairwise

MAX_RANGES = 16
"""Maximum number of ranges. Each is a condition that Spark evaluates for every row."""

_ONE_DAY = timedelta(days=1)


def day_ranges(days: Iterable[date], margin: int = 1) -> list[tuple[date, date]]:
    """Return ranges that cover these days and the days around them: both ends inclusive, ascending.

    Ranges that touch are joined. Of more than `MAX_RANGES`, those with the least gaps between them are joined, too.

    Args:
        margin: Number of days before and after each day that are covered, too.
    """
    around = margin * _ONE_DAY
    touching = 2 * around + _ONE_DAY
    in_order = sorted(set(days))
    if not in_order:
        return []
    gaps = [(after - before, before, after) for before, after in pairwise(in_order) if after - before > touching]
    widest = sorted(gaps, reverse=True)[: MAX_RANGES - 1]
    ranges = []
    first = in_order[0]
    for _, before, after in sorted(widest, key=lambda gap: gap[1]):
        ranges.append((first - around, before + around))
        first = after
    return [*ranges, (first - around, in_order[-1] + around)]
