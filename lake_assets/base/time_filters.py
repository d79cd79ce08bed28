"""Filters by hours for DataFrames. Iceberg evaluates them on whole partitions. Pure Spark expressions.

The hours may be as many as the data has, and none may adjoin another. So a condition is one SQL text, which Spark reads
as a flat list: a condition that is built from Python nests one level deeper with each run of hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.base.columns import column, quoted
from lake_assets.base.hours import hour_sql, moment_sql, ranges

MAX_RUNS = 32
"""Most runs of hours that a filter compares each row with. Of more, the hour of each row is looked up in a hash set."""

Run = tuple[int, int]
"""The first and the last of consecutive hours, inclusive."""


def moment(hour: int) -> Column:
    """Return the start of an hour, as a literal with its time zone: it is pushed down, and needs no session setting."""
    return F.expr(moment_sql(hour))


def within(rows: DataFrame, time_column: str, hours: Sequence[int]) -> DataFrame:
    """Return the rows with a time in any of the hours, which may have gaps."""
    return rows.where(hours_condition(time_column, hours))


def outside(rows: DataFrame, time_column: str, hours: Sequence[int]) -> DataFrame:
    """Return the rows with a time in none of the hours."""
    return rows.where(~hours_condition(time_column, hours))


def before(rows: DataFrame, time_column: str, hour: int) -> DataFrame:
    """Return the rows with a time before an hour."""
    return rows.where(column(time_column) < moment(hour))


def hours_condition(time_column: str, hours: Iterable[int]) -> Column:
    """Return the condition that a time is in any of the hours; null without a time. For filters on rows.

    Of many runs, Iceberg leaves out files by at most `MAX_RUNS` wider ones, and Spark looks up each row's hour.
    """
    wanted = set(hours)
    runs = list(ranges(wanted))
    if len(runs) <= MAX_RUNS:
        return F.expr(_in_runs(time_column, runs))
    numbers = ", ".join(f"{hour}L" for hour in sorted(wanted))
    envelope = _in_runs(time_column, widened(runs, MAX_RUNS))
    return F.expr(f"({envelope}) AND {hour_sql(quoted(time_column))} IN ({numbers})")


def replaced_hours(time_column: str, hours: Iterable[int]) -> Column:
    """Return the condition of an overwrite that replaces the hours: ranges alone, for Iceberg evaluates no more."""
    return F.expr(_in_runs(time_column, ranges(hours)))


def widened(runs: Sequence[Run], most: int) -> list[Run]:
    """Return at most so many runs that cover ascending runs; those with the least gaps between them are joined."""
    gaps = sorted(range(1, len(runs)), key=lambda place: runs[place][0] - runs[place - 1][1], reverse=True)
    starts = [0, *sorted(gaps[: most - 1]), len(runs)]
    return [(runs[start][0], runs[end - 1][1]) for start, end in pairwise(starts)]


def _in_runs(time_column: str, runs: Iterable[Run]) -> str:
    time = quoted(time_column)
    texts = [f"({time} >= {moment_sql(first)} AND {time} < {moment_sql(last + 1)})" for first, last in runs]
    return " OR ".join(texts) or "false"
