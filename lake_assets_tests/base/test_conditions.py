"""Conditions and unions as long as the data: pure, on Spark Connect, and on Spark in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise
from operator import or_

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lake_assets.base.columns import any_of, any_of_filters, joined_in_pairs, union_by_name
from lake_assets.base.time_filters import MAX_RUNS, hours_condition, replaced_hours, widened

MANY = 5_000
FIRST = -3
"""Two of the hours are before 1970."""
HOURS = range(FIRST, FIRST + 2 * MANY, 2)
"""No two of them adjoin."""

HALF_HOURS = range(2 * FIRST - 1, 2 * FIRST + 60)
"""Numbers of half hours since 1970, around the first hours. 29 of the hours lie among them."""


@given(st.lists(st.integers(), max_size=300))
def test_parts_are_joined_in_order_and_nest_as_their_logarithm(parts: list[int]) -> None:
    def join(left: tuple[list[int], int], right: tuple[list[int], int]) -> tuple[list[int], int]:
        return left[0] + right[0], max(left[1], right[1]) + 1

    joined = joined_in_pairs([([part], 0) for part in parts], join)
    assert joined == (None if not parts else (parts, (len(parts) - 1).bit_length()))


@given(st.sets(st.integers(-50, 400), min_size=1), st.integers(1, 12))
def test_widened_runs_cover_all_hours_and_leave_out_the_widest_gaps(hours: set[int], most: int) -> None:
    ordered = sorted(hours)
    runs = [(hour, hour) for hour in ordered]
    wide = widened(runs, most)
    assert len(wide) == min(most, len(runs))
    assert (wide[0][0], wide[-1][1]) == (ordered[0], ordered[-1])
    covered = {hour for first, last in wide for hour in range(first, last + 1)}
    assert hours <= covered
    left_out = sorted((after[0] - before[1] for before, after in pairwise(wide)), reverse=True)
    assert left_out == sorted((b - a for a, b in pairwise(ordered)), reverse=True)[: most - 1]


def test_filters_of_pyiceberg_nest_little() -> None:
    from pyiceberg.expressions import EqualTo
    from pyiceberg.expressions.visitors import bind
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    schema = Schema(NestedField(1, "n", LongType(), required=False))
    of_many = any_of_filters(EqualTo("n", number) for number in range(MANY))  # type: ignore[call-arg, arg-type]
    assert str(bind(schema, of_many, case_sensitive=True)).count("BoundEqualTo") == MANY
    assert str(any_of_filters([])) == "AlwaysFalse()"


def check_many(spark: SparkSession) -> None:
    """What holds on Spark Connect and in a process."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    half_hours = spark.range(HALF_HOURS.start, HALF_HOURS.stop)
    rows = half_hours.select("id", F.expr("timestamp_seconds(id * 1800 + 1799)").alias("`a` b"))
    right = [number for number in HALF_HOURS if number // 2 in HOURS]
    # A few runs are compared, more are looked up.
    for hours in (HOURS, HOURS[:MAX_RUNS], HOURS[: MAX_RUNS + 1]):
        found = rows.where(hours_condition("`a` b", hours)).collect()
        assert sorted(row["id"] for row in found) == [number for number in right if number // 2 in hours]
    replaced = rows.where(replaced_hours("`a` b", HOURS[:500])).collect()
    assert sorted(row["id"] for row in replaced) == right
    assert rows.where(hours_condition("`a` b", [])).count() == 0
    of_many = any_of(F.col("id") == number for number in range(0, 2 * MANY, 2))
    assert rows.where(of_many).count() == sum(number >= 0 and number % 2 == 0 for number in HALF_HOURS)
    ones = [spark.range(number, number + 1) for number in range(150)]
    assert union_by_name(*ones).agg(F.sum("id")).first()[0] == 149 * 75  # type: ignore[index]


def test_many_hours_conditions_and_unions_over_spark_connect(spark: SparkSession) -> None:
    check_many(spark)
    chain = reduce(or_, (F.col("id") == number for number in range(100)))
    with pytest.raises(Exception, match=r"DecodeError|recursion|nest|pars"):
        spark.range(1).where(chain).count()  # else the helper is not needed any more


@pytest.mark.journey
def test_many_hours_conditions_and_unions_in_a_process() -> None:
    code = (
        "from pyspark.sql import SparkSession\n"
        "from lake_assets_tests.base.test_conditions import check_many\n"
        "check_many(SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate())\n"
        "print('all right')"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "LAKE_"))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("all right\n"), done.stderr[-2000:]


def test_the_hours_are_those_of_the_calendar() -> None:
    assert datetime.fromtimestamp(HOURS[1] * 3600, UTC).isoformat() == "1969-12-31T23:00:00+00:00"
