"""Days as few ranges: those on which a stored copy of an engagement may be, or which a MERGE must read. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta

MAX_RANGES = 16
"""Maximum number of ranges. Each is a condition that Spark evaluates for every row."""

Range = tuple[date, date]
"""First and last day, both inclusive."""


def day_ranges(days: Iterable[date], margin: int = 1) -> list[Range]:
    """Return ranges that cover these days and the days around them, ascending.

    Args:
        margin: Number of days before and after each day that are covered, too.
    """
    around = timedelta(days=margin)
    return few_ranges((day - around, day + around) for day in set(days))


def few_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges that cover some others, ascending: at most `MAX_RANGES`, with the widest gaps between them.

    Ranges that touch are joined.
    """
    ordered = sorted(ranges)
    if not ordered:
        return []
    gaps: list[tuple[timedelta, date, date]] = []
    first, end = ordered[0]
    for start, last in ordered:
        if start - end > timedelta(days=1):
            gaps.append((start - end, end, start))
        end = max(end, last)
    found = []
    for _, before, after in sorted(sorted(gaps, reverse=True)[: MAX_RANGES - 1], key=lambda gap: gap[1]):
        found.append((first, before))
        first = after
    return [*found, (first, end)]
