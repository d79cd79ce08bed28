"""Rows of a DataFrame by hours: filters that Iceberg can answer with whole partitions. Pure Spark expressions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.base.hours import hour_start, ranges


def moment(hour: int) -> Column:
    """The start of an hour, spelled with its zone: a literal that hangs on no session setting, and is pushed down."""
    return F.expr(f"TIMESTAMP '{hour_start(hour):%Y-%m-%d %H:%M:%S}Z'")


def within(rows: DataFrame, time_column: str, hours: Sequence[int]) -> DataFrame:
    """The rows whose time lies in the hours, which may have gaps."""
    return rows.where(hours_condition(time_column, hours))


def outside(rows: DataFrame, time_column: str, hours: Sequence[int]) -> DataFrame:
    """The rows whose time lies in none of the hours."""
    return rows.where(~hours_condition(time_column, hours))


def before(rows: DataFrame, time_column: str, hour: int) -> DataFrame:
    """The rows whose time lies before an hour."""
    return rows.where(F.col(time_column) < moment(hour))


def hours_condition(time_column: str, hours: Sequence[int]) -> Column:
    """Time in the hours, as ranges that end on hours: so Iceberg can tell whole partitions by it."""
    time = F.col(time_column)
    spans = [(time >= moment(first)) & (time < moment(last + 1)) for first, last in ranges(hours)]
    return reduce(lambda a, b: a | b, spans) if spans else F.lit(False)
