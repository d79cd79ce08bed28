"""Comparison of rebuilt hours with the published ones, by the number of rows and an order-free checksum."""

from __future__ import annotations

from collections.abc import Container, Sequence
from decimal import Context, Decimal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.base.columns import HOUR, ROWS, SIDE, SUM_BACKWARD, SUM_FORWARD, columns, hour_of
from lake_assets.base.time_filters import within
from lake_assets.incremental.declaration import Target

PUBLISHED = 0
REBUILT = 1

Content = tuple[int, Decimal, Decimal]
"""Number of rows, and the sums of their two hashes."""

NOTHING: Content = (0, Decimal(0), Decimal(0))

_EXACTLY = Context(prec=40)
"""Spark's sums have up to 30 digits; Python's own context rounds to 28."""


def row_hashes(names: Sequence[str]) -> tuple[Column, Column]:
    """Return two hashes of a row, 64 bits each, of different input.

    Spark's hash ignores nulls, so whether a value is null is hashed, too: else ('a', null) and (null, 'a') would have
    one hash.
    """
    values = columns(names)
    nulls = [value.isNull() for value in values]
    forward = F.xxhash64(*values, *nulls)
    backward = F.xxhash64(*reversed(values), *nulls, F.lit(1))
    return forward, backward


def unchanged_partitions(
    target: Target,
    rebuilt: DataFrame,
    published: DataFrame,
    hours: Sequence[int],
    *,
    overdue: Container[int],
) -> dict[int, int]:
    """Compare the partitions of some hours.

    Args:
        overdue: Hours that count as changed if they are empty: nobody has built them yet.

    Returns:
        First hour of each partition whose rows are the published ones, in whatever order → its number of rows.
    """
    content = content_by_side(target, rebuilt, published, hours)
    unchanged: dict[int, int] = {}
    for first_hour in target.grain.firsts(hours):
        before = content.get((first_hour, PUBLISHED))
        after = content.get((first_hour, REBUILT))
        if before is None and after is None:
            if first_hour not in overdue:
                unchanged[first_hour] = 0
        elif before is not None and before == after:
            unchanged[first_hour] = before[0]
    return unchanged


def content_by_side(
    target: Target,
    rebuilt: DataFrame,
    published: DataFrame,
    hours: Sequence[int],
) -> dict[tuple[int, int], Content]:
    """Return (first hour of a partition, side) → content, in one Spark job; without partitions that have no row."""
    names = list(target.columns)
    published = within(published, target.time_column, hours).select(*columns(names), F.lit(PUBLISHED).alias(SIDE))
    rebuilt = within(rebuilt, target.time_column, hours).select(*columns(names), F.lit(REBUILT).alias(SIDE))
    forward, backward = row_hashes(names)
    sums = (
        rebuilt.unionByName(published)
        .groupBy(hour_of(target.time_column).alias(HOUR), SIDE)
        .agg(
            F.count("*").alias(ROWS),
            F.sum(forward.cast("decimal(20, 0)")).alias(SUM_FORWARD),
            F.sum(backward.cast("decimal(20, 0)")).alias(SUM_BACKWARD),
        )
    )
    content: dict[tuple[int, int], Content] = {}
    for row in sums.collect():
        partition = target.grain.first(row[HOUR]), row[SIDE]
        of_hour = row[ROWS], row[SUM_FORWARD], row[SUM_BACKWARD]
        content[partition] = _sum(content.get(partition, NOTHING), of_hour)
    return content


def _sum(left: Content, right: Content) -> Content:
    rows = left[0] + right[0]
    return rows, _EXACTLY.add(left[1], right[1]), _EXACTLY.add(left[2], right[2])
