"""Comparison of rebuilt rows with the published ones: by an order-free checksum, and by rows where that differs.

Rows are equal if all values are. Floating point numbers are, too, if they differ by at most `TOLERANCE`, because a sum
of them depends on the order in which they are added; NaN is equal to NaN, and -0.0 to 0.0. What a session leaves out as
unchanged differs by at most `NOISE`: a number may be a time or a place, corrected in its tenth digit.

If large numbers cancel out in a sum, the order of addition decides more than its last digits. How much it decides
cannot be seen in the sum. A rebuild of perturbed numbers shows it: see `stage.PERTURBATION`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.base.columns import HOUR, ROWS, SIDE, SUM_BACKWARD, SUM_FORWARD, column, columns, hour_of
from lake_assets.base.time_filters import within
from lake_assets.incremental.declaration import Target

TOLERANCE = 1e-9
"""Greatest difference of two equal floating point numbers, as a part of the larger one."""

NOISE = 1e-13
"""The same in a session, which writes what differs: the order of addition rarely makes a greater difference, as long as
no numbers cancel out."""

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

    published: int = 0
    rebuilt: int = 0
    missing: int = 0
    extra: int = 0
    inexact: frozenset[str] = frozenset()

    @property
    def equal(self) -> bool:
        return self.missing == self.extra == 0


def unchanged_partitions(
    target: Target, rebuilt: DataFrame, published: DataFrame, hours: Sequence[int], *, overdue: Container[int]
) -> dict[int, int]:
    """Compare the partitions of some hours.

    Args:
        overdue: Hours that count as changed if they are empty: nobody has built them yet.

    Returns:
        First hour of each partition whose rows are the published ones, in whatever order → its number of rows.
    """
    after, before = (within(rows, target.time_column, hours) for rows in (rebuilt, published))
    compared = compare(target, after, before, tolerance=NOISE)
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
    tolerance: float = TOLERANCE,
) -> dict[int | None, Compared]:
    """Compare rows of a target with published ones, whatever their order.

    Most partitions are equal by the sums of their hashes, in one Spark job. A second one finds the rows that differ.

    Args:
        counted: Whether the rows that differ are counted. Otherwise the second job runs only for partitions that have
            as many rows on both sides, and only if the target has a column of floating point numbers.
        perturbed: Returns the rows of a perturbed rebuild; called if rows of such a target differ. None: as far as is
            known, no large numbers cancel out.
        tolerance: Greatest difference of two equal floating point numbers, as a part of the larger one.

    Returns:
        First hour of a partition → how its rows compare; None for rows without a time. Without partitions that have no
        row.
    """
    is_rebuilt = F.col(SIDE)
    sums = [F.count_if(is_rebuilt).alias("rebuilt"), F.count_if(~is_rebuilt).alias("published")]
    for value, name in zip(row_hashes(list(target.columns)), (SUM_FORWARD, SUM_BACKWARD), strict=True):
        # Of equal rows, the hashes add up to 0.
        exact = value.cast("decimal(20, 0)")
        sums.append(F.sum(F.when(is_rebuilt, exact).otherwise(-exact)).alias(name))
    by_hour = _both_sides(target, rebuilt, published).groupBy(hour_of(target.time_column).alias(HOUR)).agg(*sums)
    found: dict[int | None, Compared] = {}
    for row in by_hour.collect():
        first = None if row[HOUR] is None else target.grain.first(row[HOUR])
        known = found.get(first, Compared())
        differs = row["rebuilt"] != row["published"] or row[SUM_FORWARD] != 0 or row[SUM_BACKWARD] != 0
        found[first] = Compared(
            known.published + row["published"], known.rebuilt + row["rebuilt"], missing=int(differs or not known.equal)
        )
    floats = _floats(target)
    unsure: dict[int | None, Compared] = {}
    for first, each in found.items():
        if not each.equal and (counted or (floats and each.published == each.rebuilt)):
            unsure[first] = replace(each, missing=0)
    if unsure:
        found |= _by_rows(target, rebuilt, published, unsure, tolerance)
    apart = {first: each for first, each in unsure.items() if not found[first].equal}
    if apart and perturbed is not None and floats:
        found |= _by_rows(target, rebuilt, published, apart, tolerance, perturbed())
    return found


def row_hashes(names: Sequence[str]) -> tuple[Column, Column]:
    """Return two hashes of a row, 64 bits each, of different input.

    Spark's hash ignores nulls, so whether a value is null is hashed, too: else ('a', null) and (null, 'a') would have
    one hash.
    """
    values = columns(names)
    nulls = [value.isNull() for value in values]
    return F.xxhash64(*values, *nulls), F.xxhash64(*reversed(values), *nulls, F.lit(1))


def _by_rows(
    target: Target,
    rebuilt: DataFrame,
    published: DataFrame,
    partitions: dict[int | None, Compared],
    tolerance: float,
    perturbed: DataFrame | None = None,
) -> dict[int | None, Compared]:
    """Return some partitions with the number of rows that only one side has.

    Pairs are equal if all their numbers are near. If one side has more rows that are equal but for their numbers, more
    of them may be counted than differ.
    """
    floats = _floats(target)
    pairs = _pairs(target, rebuilt, published, partitions)
    changes = {
        f"{DIFFERENCE}{place}": F.abs(F.col(f"rebuilt.{NUMBER}{place}") - F.col(f"published.{NUMBER}{place}"))
        for place in range(len(floats))
    }
    if perturbed is None:
        pairs = pairs.select("*", *(F.lit(None).cast("double").alias(name) for name in changes))
    else:
        largest = [F.max(F.when(change < F.lit(float("inf")), change)).alias(name) for name, change in changes.items()]
        changed = _pairs(target, rebuilt, perturbed, partitions).groupBy(HOUR).agg(*largest)
        pairs = pairs.join(changed.withColumnRenamed(HOUR, SIDE), F.col(HOUR).eqNullSafe(F.col(SIDE)), "left")
    near = F.col("rebuilt").isNotNull() & F.col("published").isNotNull() & F.lit(bool(floats))
    inexact = []
    for place, (name, change) in enumerate(changes.items()):
        left, right = F.col(f"rebuilt.{NUMBER}{place}"), F.col(f"published.{NUMBER}{place}")
        larger = F.greatest(F.abs(left), F.abs(right))
        is_close = (larger < F.lit(float("inf"))) & (change <= larger * tolerance)
        is_near = left.eqNullSafe(right) | F.coalesce(is_close, F.lit(False))
        is_near_enough = F.coalesce(change <= F.col(name) * CONDITION, F.lit(False))
        inexact.append(is_near_enough & ~is_near)
        near = near & (is_near | is_near_enough)
    counts = [F.count(F.when(~near, F.col(side))).alias(side) for side in ("rebuilt", "published")]
    are_inexact = [F.max(near & each).alias(f"{INEXACT}{place}") for place, each in enumerate(inexact)]
    found = dict(partitions)
    for row in pairs.groupBy(HOUR).agg(*counts, *are_inexact).collect():
        first = None if row[HOUR] is None else target.grain.first(row[HOUR])
        known = found[first]
        found[first] = replace(
            known,
            missing=known.missing + row["rebuilt"],
            extra=known.extra + row["published"],
            inexact=known.inexact.union(name for place, name in enumerate(floats) if row[f"{INEXACT}{place}"]),
        )
    return found


def _pairs(target: Target, rebuilt: DataFrame, published: DataFrame, firsts: Collection[int | None]) -> DataFrame:
    """Return the rows of some partitions that only one side has, in pairs: their hour, and their numbers on each side.

    Rows that are equal by their hash are left out in pairs. Others are paired by the columns without floating point
    numbers, in the order of these numbers. Where there is no other row, a side is null.
    """
    floats = _floats(target)
    rows = _both_sides(target, rebuilt, published)
    if None not in firsts:
        # An Iceberg table leaves out files by it.
        hours = target.grain.whole(each for each in firsts if each is not None)
        rows = within(rows, target.time_column, sorted(hours))
    hashes = []
    rest = [name for name in target.columns if name not in floats]
    for names, aliases in ((rest, SAME_REST), (list(target.columns), SAME_ROW)):
        hashes += [value.alias(alias) for value, alias in zip(row_hashes(names), aliases, strict=True)]
    numbers = [f"{NUMBER}{place}" for place in range(len(floats))]
    values = [column(name).cast("double").alias(number) for name, number in zip(floats, numbers, strict=True)]
    rows = rows.select(hour_of(target.time_column).alias(HOUR), SIDE, *hashes, *values)
    # Published rows count as -1: of rows that both sides have, none is left.
    surplus = F.sum(F.when(F.col(SIDE), 1).otherwise(-1))
    unpaired = rows.groupBy(HOUR, *SAME_REST, *SAME_ROW, *numbers).agg(surplus.alias(ROWS)).where(F.col(ROWS) != 0)
    single = unpaired.withColumns(
        {SIDE: F.col(ROWS) > 0, PLACE: F.explode(F.sequence(F.lit(1), F.abs(ROWS).cast("int")))}
    )
    order = Window.partitionBy(HOUR, *SAME_REST, SIDE).orderBy(*numbers, *SAME_ROW)
    placed = single.withColumn(PLACE, F.row_number().over(order))
    in_order = F.struct(F.lit(1), *numbers)
    sides = [F.max(F.when(F.col(SIDE), in_order)), F.max(F.when(~F.col(SIDE), in_order))]
    by_place = placed.groupBy(HOUR, *SAME_REST, PLACE)
    return by_place.agg(sides[0].alias("rebuilt"), sides[1].alias("published"))


def _both_sides(target: Target, rebuilt: DataFrame, published: DataFrame) -> DataFrame:
    """Return the rows of both, with `SIDE`: whether they are rebuilt. -0.0 is 0.0, and each NaN is the same."""
    selected = []
    for name, kind in target.columns.items():
        value = column(name)
        if kind in FLOATS:
            value = F.when(F.isnan(value), F.lit(float("nan"))).otherwise(value + F.lit(0.0)).cast(kind)
        selected.append(value.alias(name))
    after = rebuilt.select(*selected, F.lit(True).alias(SIDE))
    return after.unionByName(published.select(*selected, F.lit(False).alias(SIDE)))


def _floats(target: Target) -> list[str]:
    return [name for name, kind in target.columns.items() if kind in FLOATS]
