"""Which hours a fixed lookback does, from one run to the next."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sides import looked_back

HOURS = st.integers(0, 60)


def test_a_lookback_does_what_is_new_and_so_many_hours_before_it() -> None:
    assert list(looked_back(11, done=8, lookback=6, start=0)) == [*range(3, 12)]
    assert list(looked_back(9, done=8, lookback=6, start=0)) == [*range(3, 10)]


def test_within_an_hour_it_does_that_hour_again() -> None:
    assert list(looked_back(8, done=8, lookback=6, start=0)) == [*range(2, 9)]


def test_late_rows_alone_do_not_take_it_back() -> None:
    assert list(looked_back(2, done=8, lookback=3, start=0)) == [*range(5, 9)]


def test_a_full_rebuild_looks_back_to_the_start() -> None:
    assert list(looked_back(8, done=8, lookback=inf, start=3)) == [*range(3, 9)]


@given(HOURS, st.none() | HOURS, st.integers(0, 30))
def test_it_reaches_from_its_lookback_to_the_newest_hour(last: int, done: int | None, lookback: int) -> None:
    hours = looked_back(last, done=done, lookback=lookback, start=0)
    newest = max(last, done or 0)
    assert hours[-1] == newest
    assert hours[0] <= max(newest - lookback, 0)
    assert done is None or set(range(done + 1, newest + 1)) <= set(hours), "no new hour is left out"
