"""Which hours a fixed lookback does, from one run to the next; and that rows which it misses are seen."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sides import Done, EngineSide, SixHoursBack, looked_back
from lake_assets_tests.incremental.scenario import NOW, Lake, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

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


def test_a_row_that_is_later_than_the_lookback_is_missed_and_counted(
    catalog: Catalog, home: Settings, spark: SparkSession
) -> None:
    lake, side = Lake(catalog, spark), EngineSide(SixHoursBack, home, spark)
    target = lake.target("signup_fact")
    lake.append("raw.signups", [signup(1, hour) for hour in range(10)])
    assert side.run(target, NOW) == Done(rows=10, hours=10)
    lake.append("raw.signups", [signup(2, 1), signup(2, 5), signup(1, 10)])
    assert side.run(target, NOW) == Done(rows=8, hours=7), "hours 4 to 10"
    assert side.run(target, NOW) == Done()
    assert side.missed(target) == 1
