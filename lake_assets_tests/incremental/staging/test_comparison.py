"""Two sets of rows compare as a plain comparison in Python says, whatever their order and the order of additions."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from lake_assets.base.hours import hour_of
from lake_assets.incremental.declaration import Source, Stateful, Target
from lake_assets.incremental.engine.compare import compare, unchanged_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[str | None, datetime, float | None, float | None]
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
START = hour_of(FIRST)
SCHEMA = "account string, at timestamp, balance double, rate float"
VALUES = [0.1, 0.1 + 1e-12, 0.1 + 1e-6, -0.0, 0.0, None, math.nan, math.inf, -math.inf, 1e15, 1e15 + 0.5, 1e-300]
CASES = 2


def target() -> Target:
    return Target(
        table="core.balance",
        mode=Stateful(load="changed"),
        sources=(Source("prod.moves", time_column="at", key="account"),),
        key=("account",),
        time_column="at",
        columns={"account": "string", "at": "timestamptz", "balance": "double", "rate": "float"},
        transform=lambda session, moves: moves,
    )


def near(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return left == right or (
        math.isfinite(left) and math.isfinite(right) and abs(left - right) <= 1e-9 * max(abs(left), abs(right))
    )


def expected(rebuilt: list[Row], published: list[Row]) -> dict[int, tuple[int, int]]:
    """Hour → rows that each side has alone. Each row has a key of its own, so that pairs are known."""
    sides: list[dict[Any, Row]] = [{row[:2]: row for row in rows} for rows in (rebuilt, published)]
    found: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for key in sides[0].keys() | sides[1].keys():
        after, before = sides[0].get(key), sides[1].get(key)
        both = after is not None and before is not None
        if both and near(after[2], before[2]) and near(after[3], before[3]):  # type: ignore[index]
            continue
        found[hour_of(key[1])].update(missing=int(after is not None), extra=int(before is not None))
    return {hour: (counts["missing"], counts["extra"]) for hour, counts in found.items()}


def test_rows_compare_as_in_python(spark: SparkSession) -> None:
    random.seed(1)
    for _ in range(CASES):
        published: list[Row] = []
        for number in range(60):
            at = FIRST + timedelta(hours=number % 6, minutes=number)
            published.append((f"a{number}", at, random.choice(VALUES), random.choice([0.5, None, math.nan, -0.0])))
        rebuilt: list[Row] = []
        for key, at, balance, rate in published:
            if random.random() < 0.02:
                continue
            if random.random() < 0.1:
                balance = random.choice([*VALUES, *([balance * (1 + 1e-14)] if balance is not None else [])])
            rebuilt.append((key, at, balance, rate))
        random.shuffle(rebuilt)
        after, before = (spark.createDataFrame(rows, SCHEMA) for rows in (rebuilt, published))
        differing = {}
        for hour, each in compare(target(), after, before, counted=True).items():
            assert each.published == sum(hour_of(row[1]) == hour for row in published)
            if not each.equal:
                differing[hour] = (each.missing, each.extra)
        assert differing == expected(rebuilt, published)
        hours = range(START, START + 6)
        same = unchanged_partitions(target(), after, before, hours, overdue=())
        assert set(same) == set(hours) - differing.keys()


def test_rows_with_one_identity_are_paired_by_their_numbers(spark: SparkSession) -> None:
    published: list[Row] = [("a", FIRST, value, None) for value in (3.0, 0.3, 0.3, 2.0)]
    rebuilt: list[Row] = [("a", FIRST, value, None) for value in (0.1 + 0.2, 2.0 + 4e-10, 3.0, 0.3)]
    after, before = (spark.createDataFrame(rows, SCHEMA) for rows in (rebuilt, published))
    assert compare(target(), after, before)[START].equal
    more = spark.createDataFrame([*rebuilt, ("a", FIRST, 0.3, None)], SCHEMA)
    found = compare(target(), more, before, counted=True)[START]
    assert not found.equal
    assert found.missing - found.extra == 1
