"""Filters by hours for DataFrames. Iceberg evaluates them on whole partitions. Pure Spark expressions."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.base.columns import column
from lake_assets.base.hours import moment_sql, ranges


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


def hours_condition(time_column: str, hours: Sequence[int]) -> Column:
    """Return the condition that a time is in any of the hours, as ranges of whole hours."""
    time = column(time_column)
    condition: Column | None = None
    for first, last in ranges(hours):
        in_range = (time >= moment(first)) & (time < moment(last + 1))
        condition = in_range if condition is None else condition | in_range
    return F.lit(False) if condition is None else condition
