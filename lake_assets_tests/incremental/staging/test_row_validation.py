"""Which delivery of a row counts, and which hash a row has: held against a plain loop over the rows."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from lake_assets.base.columns import DELIVERY, HASH, REASON
from lake_assets.incremental.declaration import Rule, Source
from lake_assets.incremental.engine.stage import COUNTED, classify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYED = Source(
    "raw.x",
    time_column="event_ts",
    key="id",
    rules=(Rule(reason="a bad word", where="word = 'bad'"),),
    landed_column="landed_at",
)
LAST = replace(KEYED, keep="last", order_by="version")
EACH = replace(KEYED, keep="all", order_by="version")
KEYLESS = replace(KEYED, key=None)
TRUSTED = Source("core.x", time_column="event_ts")
SCHEMA = "id string, event_ts timestamp, landed_at timestamp, batch_id string, word string, version string"
Row = dict[str, Any]


def random_rows(seed: int) -> list[Row]:
    """Deliveries of few keys at few times: many agree in all but their content."""
    random = Random(seed)
    rows = []
    for _ in range(400):
        row = {
            "id": random.choice([None, *"abcdefgh"]),
            "event_ts": START + timedelta(minutes=random.randrange(3)),
            "landed_at": START + timedelta(hours=1, minutes=random.randrange(2)),
            "batch_id": random.choice("xy"),
            "word": random.choice(["good", "bad", "fine", "well"]),
            "version": random.choice("12"),
        }
        rows.append(row)
    lonely = {**rows[0], "id": "only once", "word": "good"}
    return [*rows, lonely]


def content(row: Row) -> str:
    """SHA-256 of the names and values of a row, by name: without nulls, times in microseconds, the rest in bytes."""
    written = ""
    for name, value in sorted(row.items()):
        if isinstance(value, datetime):
            written += f"{name.encode().hex()}({(value - EPOCH) // timedelta(microseconds=1)})"
        elif value is not None:
            written += f"{name.encode().hex()}({value.encode().hex().upper()})"
    return hashlib.sha256(written.encode()).hexdigest()


def is_valid(row: Row) -> bool:
    return row["id"] is not None and row["word"] != "bad"


def one_delivery(row: Row, source: Source) -> tuple[Any, ...]:
    """What the deliveries of one row, or the versions of one key, have in common."""
    if source.keep == "first":
        return row["id"], row["event_ts"], is_valid(row)
    if source.keep == "last":
        return row["id"], is_valid(row)
    return row["id"], row["version"], is_valid(row)


def counted_rows(rows: list[Row], source: Source) -> list[str]:
    """The contents of the rows that count, sorted."""
    first: dict[tuple[Any, ...], Row] = {}
    for row in filter(is_valid, rows):
        group = one_delivery(row, source)
        if group not in first or comes_before(row, first[group], source):
            first[group] = row
    return sorted(content(row) for row in first.values())


def comes_before(row: Row, other: Row, source: Source) -> bool:
    keys = [(row["landed_at"], row["batch_id"], content(row)) for row in (row, other)]
    if source.keep == "first":
        return keys[0] < keys[1]
    return (row["version"], *keys[0]) > (other["version"], *keys[1])


MANY = pytest.mark.parametrize("number", [0, inf], ids=["few", "many"])


@MANY
@pytest.mark.parametrize("source", [KEYED, LAST, EACH], ids=["first", "last", "all"])
def test_the_delivery_that_counts_is_that_of_a_plain_loop(source: Source, number: float, spark: SparkSession) -> None:
    rows = random_rows(seed=1)
    found = classified(spark, rows, source, number)
    assert len(found) == len(rows)
    assert sorted(content(row) for row, made in found if made[DELIVERY] == COUNTED and not made[REASON]) == (
        counted_rows(rows, source)
    )


@MANY
@pytest.mark.parametrize("source", [KEYED, LAST, KEYLESS, TRUSTED], ids=["first", "last", "no key", "trusted"])
def test_a_row_has_a_hash_if_it_is_bad_or_one_of_several(source: Source, number: float, spark: SparkSession) -> None:
    rows = random_rows(seed=2)
    groups = [one_delivery(row, source) for row in rows]
    for row, made in classified(spark, rows, source, number):
        is_one_of_several = source.key is not None and groups.count(one_delivery(row, source)) > 1
        is_bad = row["word"] == "bad" or (source.key is not None and row["id"] is None)
        expected = content(row) if (is_bad or is_one_of_several) and not source.trusted else None
        assert made[HASH] == expected, row


@MANY
def test_rows_of_keys_of_their_own_all_count(number: float, spark: SparkSession) -> None:
    rows = [{**row, "id": str(place)} for place, row in enumerate(random_rows(seed=3)) if row["word"] != "bad"]
    assert {made[DELIVERY] for _, made in classified(spark, rows, KEYED, number)} == {COUNTED}


def classified(spark: SparkSession, rows: list[Row], source: Source, number: float) -> list[tuple[Row, Row]]:
    """Each row, as it was given, with its classification. number: how many rows are said to be there."""
    given: DataFrame = spark.createDataFrame([tuple(row.values()) for row in rows], SCHEMA)
    names = list(rows[0])
    found = classify(given, source, schema=given.schema, start=0, number=number).collect()
    return [({name: utc(each[name]) for name in names}, each.asDict()) for each in found]


def utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value
