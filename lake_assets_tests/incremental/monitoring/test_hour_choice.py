"""The hours of a day: at most so many, of one stretch, and in the course of days all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.base.hours import DAY, HOUR, Grain
from lake_assets.incremental.operations.verify import hours_of_day

DAYS = st.integers(700_000, 800_000)


@given(
    candidates=st.sets(st.integers(480_000, 480_200), min_size=1, max_size=20),
    day=DAYS,
    limit=st.integers(1, 60),
    grain=st.sampled_from([HOUR, DAY]),
)
@settings(max_examples=30, deadline=None)
def test_all_hours_come_round(candidates: set[int], day: int, limit: int, grain: Grain) -> None:
    chunks = len(candidates)  # at most
    seen: set[int] = set()
    for later in range(day, day + 3 * chunks + 3):
        chosen = hours_of_day(candidates, day=later, limit=limit, grain=grain)
        assert chosen == tuple(sorted(chosen))
        assert 0 < len(chosen) <= max(limit, grain.hours)
        assert chosen[-1] - chosen[0] < max(limit, grain.hours)
        seen.update(chosen)
    assert seen == candidates


@given(day=DAYS, hours=st.integers(1, 30))
@settings(max_examples=10, deadline=None)
def test_the_hours_of_a_slowly_growing_table_come_round_too(day: int, hours: int) -> None:
    seen: set[int] = set()
    for later in range(80):
        present = range(480_000, 480_000 + hours + later)
        seen.update(hours_of_day(present, day=day + later, limit=8, grain=HOUR))
    assert seen >= set(range(480_000, 480_000 + hours))


def test_without_hours_there_is_nothing_to_choose() -> None:
    assert hours_of_day((), day=1, limit=6, grain=HOUR) == ()
