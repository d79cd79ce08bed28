"""The hour and the content of a row, as Spark computes them, held against plain Python."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

from lake_assets.base.columns import PREFIX, hash_sql, hour_of, is_own
from lake_assets.base.hours import hour_of as hour_in_python
from lake_assets.base.hours import hour_start, moment_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = datetime(1, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def moments(number: int) -> list[datetime]:
    """Moments of all years that Python knows, with the neighbours of full hours, from a fixed seed."""
    random = Random(1964)
    last_hour = (LAST - FIRST) // timedelta(hours=1)
    found = [FIRST, FIRST + MICROSECOND, LAST, EPOCH, EPOCH - MICROSECOND, EPOCH - timedelta(hours=1, microseconds=1)]
    for _ in range(number):
        hour = FIRST + timedelta(hours=random.randint(1, last_hour - 1))
        found += [hour - MICROSECOND, hour, hour + MICROSECOND, hour + timedelta(microseconds=random.randrange(10**6))]
    return found


def test_spark_counts_hours_as_python_does_and_reads_each_hour_as_a_literal(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    wanted = moments(2_000)
    micros = [((each - EPOCH) // MICROSECOND,) for each in wanted]
    rows = spark.createDataFrame(micros, "us long").withColumn("a `time`.x", F.timestamp_micros("us"))
    without_zone = rows.withColumn("a `time`.x", F.col("`a ``time``.x`").cast("timestamp_ntz"))
    for given in (rows, without_zone):
        found = {row[0]: row[1] for row in given.select("us", hour_of("a `time`.x")).collect()}
        assert found == {us: hour_in_python(each) for (us,), each in zip(micros, wanted, strict=True)}
    starts = sorted({hour_in_python(each) for each in wanted})[::400]
    starts = [starts[0] - 1, starts[0], *starts, hour_in_python(LAST), hour_in_python(LAST) + 1, 500_000_000]
    literals = spark.sql(f"SELECT {', '.join(f'unix_micros({moment_sql(hour)})' for hour in starts)}").first()
    assert literals is not None
    assert list(literals) == [hour * 3_600_000_000 for hour in starts]
    assert hour_start(starts[1]) >= FIRST


SCHEMA = """
    s string, b binary, t timestamp, n timestamp_ntz, d date, x double, f float, c decimal(38, 10), l long, k boolean,
    a array<string>, m map<binary, timestamp>, r struct<`p.q`: string, z: struct<y: array<double>>>
"""
NAMES = ("s", "b", "t", "n", "d", "x", "f", "c", "l", "k", "a", "m", "r")
VALUES: dict[str, list[Any]] = {
    "s": ["", "null", "(", ")", "()", "1", "1)62(", "é", "e\u0301", "a\tb", '"', "\\", "-"],
    "b": [b"", b"\x00", b"\x00\x00", b"\xff", b"("],
    "t": [EPOCH, EPOCH + MICROSECOND, EPOCH - MICROSECOND, EPOCH + timedelta(milliseconds=1), FIRST],
    "n": [each.replace(tzinfo=None) for each in (EPOCH, EPOCH + MICROSECOND, EPOCH - MICROSECOND)],
    "d": [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31)],
    "x": [0.0, -0.0, 0.1, 0.1 + 2**-56, 1e300, float("nan"), float("inf"), float("-inf"), 5e-324],
    "f": [0.0, -0.0, 1.5, float("nan")],
    "c": [Decimal("0"), Decimal("0.0000000001"), Decimal("12345678901234567890.1")],
    "l": [0, 1, -1, 2**63 - 1, 2**63 - 2],
    "k": [True, False],
    "a": [[], [None], [""], ["", ""], ["(", ")"], ["()"], [")("], ["a", "b"], ["ab"], [None, ""], ["", None]],
    "m": [{}, {b"\x01": None}, {b"\x01": EPOCH}, {b"\x01": EPOCH + MICROSECOND}, {b"\x02": EPOCH}],
    "r": [(None, None), ("", None), ("a", (None,)), ("a", ([],)), ("a", ([0.0],)), ("a", ([-0.0],)), ("a", ([None],))],
}


def test_rows_have_one_hash_only_if_all_values_are_equal(spark: SparkSession) -> None:
    nothing = dict.fromkeys(NAMES)
    rows = [nothing] + [{**nothing, name: value} for name, values in VALUES.items() for value in values]
    given = spark.createDataFrame([tuple(row.values()) for row in rows], SCHEMA).coalesce(1)
    hashes = [row[0] for row in given.selectExpr(hash_sql(given.schema)).collect()]
    assert len(set(hashes)) == len(rows), [r for r, h in zip(rows, hashes, strict=True) if hashes.count(h) > 1]


def test_a_hash_stays_when_a_column_is_added_or_moved_or_a_map_is_written_in_another_order(spark: SparkSession) -> None:
    same = [
        "SELECT 'a' AS x, 1L AS y, map('p', 1, 'q', 2) AS m",
        "SELECT map('q', 2, 'p', 1) AS m, 1L AS y, CAST(NULL AS string) AS added, 'a' AS x",
    ]
    found = set()
    for query in same:
        rows = spark.sql(query)
        found.add(rows.selectExpr(hash_sql(rows.schema)).first())
    assert len(found) == 1


def test_the_engines_names_are_reserved_in_every_case() -> None:
    assert all(map(is_own, (PREFIX, "_LAKE_x", "_Lake_hour")))
    assert not any(map(is_own, ("_time", "lake_x", "__lake_x", "_lak", "")))
