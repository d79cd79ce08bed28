"""The days on which copies are looked for: those of the batch and the days next to them, in few ranges."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.engagement.pruning import MAX_RANGES, day_ranges

NEW_YEAR = date(2026, 1, 1)
ONE_DAY = timedelta(days=1)


def covered(days: set[date], margin: int = 1) -> list[date]:
    """Each day of the ranges, in order. A day that two ranges have would come twice."""
    found = []
    for first, last in day_ranges(days, margin):
        found += [first + number * ONE_DAY for number in range((last - first).days + 1)]
    return found


@given(st.sets(st.dates(NEW_YEAR, NEW_YEAR + 50 * ONE_DAY), max_size=MAX_RANGES))
def test_ranges_are_the_days_and_those_next_to_them(days: set[date]) -> None:
    assert covered(days) == sorted({day + n * ONE_DAY for day in days for n in (-1, 0, 1)})


@given(st.sets(st.dates(NEW_YEAR, NEW_YEAR + 300 * ONE_DAY), max_size=MAX_RANGES), st.integers(0, 40))
def test_ranges_have_as_many_days_around_as_are_asked_for(days: set[date], margin: int) -> None:
    assert covered(days, margin) == sorted({day + n * ONE_DAY for day in days for n in range(-margin, margin + 1)})


@given(st.sets(st.dates(NEW_YEAR, NEW_YEAR + 500 * ONE_DAY), min_size=MAX_RANGES + 1))
def test_of_many_ranges_the_nearest_become_one(days: set[date]) -> None:
    ranges = day_ranges(days)
    wanted = {day + n * ONE_DAY for day in days for n in (-1, 0, 1)}
    assert wanted <= set(covered(days))
    assert len(ranges) <= MAX_RANGES
    within = max((gap(covered(days), wanted, first, last) for first, last in ranges), default=0)
    between = [(after[0] - before[1]).days - 1 for before, after in pairwise(ranges)]
    assert all(within <= left_out for left_out in between)


def gap(days: list[date], wanted: set[date], first: date, last: date) -> int:
    """The longest row of days in a range that nobody asked for."""
    longest = length = 0
    for day in days:
        length = length + 1 if first <= day <= last and day not in wanted else 0
        longest = max(longest, length)
    return longest
