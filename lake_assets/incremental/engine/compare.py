"""Comparison of rebuilt hours with the published ones: by an order-free checksum, and by rows where that differs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.base.columns import HOUR, ROWS, SIDE, SUM_BACKWARD, SUM_FORWARD, column, columns, hour_of
from lake_assets.base.time_filters import within
from lake_assets.incremental.declaration import Target

PUBLISHED = 0
REBUILT = 1

TOLERANCE = 1e-9
"""Greatest difference of two equal floating point numbers, as a part of the larger one."""

CONDITION = 10
"""Two numbers are also equal if they differ by at most so many times what a perturbed rebuild changes in their hour."""

FLOATS = ("double", "float")

SAME_REST = ("rest_forward", "rest_backward")
SAME_ROW = ("row_forward", "row_backward")
"""Hashes of the columns without floating point numbers, and of all columns."""

PLACE = "place"
NUMBER = "number_"
"""Column of the row's place among those with equal hashes, and columns of its numbers."""

DIFFERENCE = "difference_"
INEXACT = "inexact_"
"""Of each column of numbers: what a perturbed rebuild changes, and whether pairs are equal only because of it."""

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


@dataclass(frozen=True)
class Compared:
    """One partition on both sides.

    Attributes:
        published: Rows published.
        rebuilt: Rows rebuilt.
        missing: Rows rebuilt that are not published. If rows are not counted: 1 if there are any, or `extra` ones.
        extra: Rows published that are not rebuilt.
        inexact: Columns in which rows differ by no more than a perturbed rebuild.
    """

    published: int
    rebuilt: int
    missing: int = 0
    extra: int = 0
    inexact: frozenset[str] = frozenset()

    @property
    def equal(self) -> bool:
        return self.missing == self.extra == 0


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
    compared = compare(target, within(rebuilt, target.time_column, hours), within(published, target.time_column, hours))
    unchanged: dict[int, int] = {}
    for first_hour in target.grain.firsts(hours):
        found = compared.get(first_hour)
        if found is None and first_hour not in overdue:
            unchanged[first_hour] = 0
        elif found is not None and found.equal and found.published:
            unchanged[first_hour] = found.published
    return unchanged


def compare(
    target: Target,
    rebuilt: DataFrame,
    published: DataFrame,
    *,
    counted: bool = False,
    perturbed: Callable[[], DataFrame] | None = None,
) -> dict[int | None, Compared]:
    """Compare rows of a target with published ones, whatever their order.

    Rows are equal if all values are. Floating point numbers are, too, if they differ by at most `TOLERANCE`, because a
    sum of them depends on the order in which they are added; NaN is equal to NaN, and -0.0 to 0.0.

    Most partitions are equal by the sums of their hashes, in one Spark job. A second one finds the rows that differ.

    If large numbers cancel out in a sum, the order of addition decides more than its last digits. How much it decides
    cannot be seen in the sum. A rebuild of perturbed numbers shows it: see `target_build.PERTURBATION`.

    Args:
        counted: Whether the rows that differ are counted. Otherwise the second job runs only for partitions that have
            as many rows on both sides, and only if the target has a column of floating point numbers.
        perturbed: Returns the rows of a perturbed rebuild; called if rows of such a target differ. None: as far as is
            known, no large numbers cancel out.

    Returns:
        First hour of a partition → how its rows compare; None for rows without a time. Without partitions that have no
        row.
    """
    content = _content_by_side(target, rebuilt, published)
    found: dict[int | None, Compared] = {}
    unsure = set()
    for first in dict.fromkeys(first for first, _ in content):
        before, after = content.get((first, PUBLISHED), NOTHING), content.get((first, REBUILT), NOTHING)
        found[first] = Compared(before[0], after[0], missing=int(before != after))
        if before != after and (counted or (before[0] == after[0] and _floats(target))):
            unsure.add(first)
    if unsure:
        found.update(_by_rows(target, rebuilt, published, {first: found[first] for first in unsure}))
    apart = {first: found[first] for first in unsure if not found[first].equal}
    if apart and perturbed is not None and _floats(target):
        found.update(_by_rows(target, rebuilt, published, apart, perturbed()))
    return found


def _by_rows(
    target: Target,
    rebuilt: DataFrame,
    published: DataFrame,
    firsts: Mapping[int | None, Compared],
    perturbed: DataFrame | None = None,
) -> dict[int | None, Compared]:
    """Return how the rows of some partitions compare: first hour → with the rows of one side alone.

    Pairs are equal if all their numbers are near. If one side has more rows that are equal but for their numbers, more
    of them may be counted than differ.
    """
    floats = _floats(target)
    pairs = _pairs(target, rebuilt, published, firsts)
    names = [f"{DIFFERENCE}{place}" for place in range(len(floats))]
    if perturbed is not None and floats:
        changes = [F.abs(left - right) for left, right in _numbers(floats)]
        largest = [
            F.max(F.when(each < F.lit(float("inf")), each)).alias(name)
            for each, name in zip(changes, names, strict=True)
        ]
        changed = _pairs(target, rebuilt, perturbed, firsts).groupBy(HOUR).agg(*largest)
        pairs = pairs.join(changed.withColumnRenamed(HOUR, SIDE), F.col(HOUR).eqNullSafe(F.col(SIDE)), "left")
    near = F.col("rebuilt").isNotNull() & F.col("published").isNotNull() & F.lit(bool(floats))
    inexact = []
    for (left, right), name in zip(_numbers(floats), names, strict=True):
        is_near = _is_near(left, right)
        if perturbed is not None:
            is_near_enough = F.coalesce(F.abs(left - right) <= F.col(name) * CONDITION, F.lit(False))
            inexact.append(is_near_enough & ~is_near)
            is_near = is_near | is_near_enough
        near = near & is_near
    counts = [F.count(F.when(~near, F.col(side))).alias(side) for side in ("rebuilt", "published")]
    are_inexact = [F.max(near & each).alias(f"{INEXACT}{place}") for place, each in enumerate(inexact)]
    found = {first: replace(known, missing=0, extra=0) for first, known in firsts.items()}
    for row in pairs.groupBy(HOUR).agg(*counts, *are_inexact).collect():
        first = _first(target, row[HOUR])
        known = found[first]
        columns_found = {floats[place] for place in range(len(inexact)) if row[f"{INEXACT}{place}"]}
        found[first] = replace(
            known,
            missing=known.missing + row["rebuilt"],
            extra=known.extra + row["published"],
            inexact=known.inexact | columns_found,
        )
    return found


def _pairs(target: Target, rebuilt: DataFrame, published: DataFrame, firsts: Collection[int | None]) -> DataFrame:
    """Return the rows of some partitions that only one side has, in pairs: their hour, and their numbers on each side.

    Rows that are equal by their hash are left out in pairs. Others are paired by the columns without floating point
    numbers, in the order of these numbers. Where there is no other row, a side is null.
    """
    floats = _floats(target)
    rest = [name for name in target.columns if name not in floats]
    rows = _of_both_sides(target, rebuilt, published)
    if None not in firsts:
        # An Iceberg table leaves out files by it.
        hours = target.grain.whole(each for each in firsts if each is not None)
        rows = within(rows, target.time_column, sorted(hours))
    same_rest = [value.alias(name) for value, name in zip(row_hashes(rest), SAME_REST, strict=True)]
    same_row = [value.alias(name) for value, name in zip(row_hashes(list(target.columns)), SAME_ROW, strict=True)]
    numbers = [f"{NUMBER}{place}" for place in range(len(floats))]
    values = [column(name).cast("double").alias(number) for name, number in zip(floats, numbers, strict=True)]
    rows = rows.select(hour_of(target.time_column).alias(HOUR), SIDE, *same_rest, *same_row, *values)
    # Published rows count as -1: of rows that both sides have, none is left.
    surplus = F.sum(F.when(F.col(SIDE) == REBUILT, 1).otherwise(-1))
    unpaired = rows.groupBy(HOUR, *SAME_REST, *SAME_ROW, *numbers).agg(surplus.alias(ROWS)).where(F.col(ROWS) != 0)
    single = unpaired.withColumn(PLACE, F.explode(F.sequence(F.lit(1), F.abs(ROWS).cast("int"))))
    is_rebuilt = (F.col(ROWS) > 0).alias(SIDE)
    order = Window.partitionBy(HOUR, *SAME_REST, SIDE).orderBy(*numbers, *SAME_ROW)
    placed = single.select(HOUR, *SAME_REST, *SAME_ROW, *numbers, is_rebuilt)
    placed = placed.withColumn(PLACE, F.row_number().over(order))
    in_order = F.struct(F.lit(1), *numbers)
    sides = [
        F.max(F.when(F.col(SIDE), in_order)).alias("rebuilt"), F.max(F.when(~F.col(SIDE), in_order)).alias("published")
    ]  # fmt: skip
    return placed.groupBy(HOUR, *SAME_REST, PLACE).agg(*sides)


def _numbers(floats: Sequence[str]) -> list[tuple[Column, Column]]:
    """Return the numbers of a pair, rebuilt and published, of each column."""
    return [(F.col(f"rebuilt.{NUMBER}{place}"), F.col(f"published.{NUMBER}{place}")) for place in range(len(floats))]


def _is_near(left: Column, right: Column) -> Column:
    """Return the condition that two numbers are equal, or differ by at most `TOLERANCE`; false if one is null."""
    largest = F.greatest(F.abs(left), F.abs(right))
    is_finite = largest < F.lit(float("inf"))
    return left.eqNullSafe(right) | F.coalesce(is_finite & (F.abs(left - right) <= largest * TOLERANCE), F.lit(False))


def _floats(target: Target) -> list[str]:
    return [name for name, kind in target.columns.items() if kind in FLOATS]


def _first(target: Target, hour: int | None) -> int | None:
    return None if hour is None else target.grain.first(hour)


def _of_both_sides(target: Target, rebuilt: DataFrame, published: DataFrame) -> DataFrame:
    """Return the rows of both, with their side. -0.0 is 0.0, and each NaN is the same."""
    floats = _floats(target)
    selected = []
    for name in target.columns:
        value = column(name)
        if name in floats:
            value = F.when(F.isnan(value), F.lit(float("nan"))).otherwise(value + F.lit(0.0)).cast(target.columns[name])
        selected.append(value.alias(name))
    after = rebuilt.select(*selected, F.lit(REBUILT).alias(SIDE))
    return after.unionByName(published.select(*selected, F.lit(PUBLISHED).alias(SIDE)))


def _content_by_side(target: Target, rebuilt: DataFrame, published: DataFrame) -> dict[tuple[int | None, int], Content]:
    """Return (first hour of a partition, side) → content, in one Spark job; without partitions that have no row."""
    forward, backward = row_hashes(list(target.columns))
    sums = (
        _of_both_sides(target, rebuilt, published)
        .groupBy(hour_of(target.time_column).alias(HOUR), SIDE)
        .agg(
            F.count("*").alias(ROWS),
            F.sum(forward.cast("decimal(20, 0)")).alias(SUM_FORWARD),
            F.sum(backward.cast("decimal(20, 0)")).alias(SUM_BACKWARD),
        )
    )
    content: dict[tuple[int | None, int], Content] = {}
    for row in sums.collect():
        partition = _first(target, row[HOUR]), row[SIDE]
        of_hour = row[ROWS], row[SUM_FORWARD], row[SUM_BACKWARD]
        content[partition] = _sum(content.get(partition, NOTHING), of_hour)
    return content


def _sum(left: Content, right: Content) -> Content:
    rows = left[0] + right[0]
    return rows, _EXACTLY.add(left[1], right[1]), _EXACTLY.add(left[2], right[2])
