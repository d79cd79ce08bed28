"""What `lake new` writes, as templates of `string.Template`. Text only."""

from __future__ import annotations

from collections.abc import Mapping

DECLARATION = '''"""`$table`: ${title}.

Written by `lake new`. Give the raw table its columns, then say in the function what becomes of them.
"""

$spark_imports

from lake_assets.incremental.staging.audits import $audit_imports
from lake_assets.incremental.declaration import (
    Pipeline,
    RawTable,
    $declaration_imports,
    incremental_asset,
)${hours_import}

# Landed by you: these columns, and landed_at, landing_date, landing_hour, batch_id. Leave it out if it is declared
# elsewhere already.
$constant = RawTable(
    "$source",
    columns={"$key": "string", "amount": "long", "$time": "timestamptz"},
    time_column="$time",
    description="What one row is.",
)


@incremental_asset(
    namespace="$namespace",
    mode=$mode_class(),
    sources=[Source("$source", time_column="$time", key="$key")],
    key="$key",
    time_column="$target_time",$grain_option
    columns={$columns},
    audits=[$audits],
)
def $name(session: SessionContext, $rows: DataFrame) -> DataFrame:
$body


PIPELINE = Pipeline(raw=($constant,), targets=($name,), start="2026-01-01-00:00")
'''

TEST = '''"""`$table` on a real lake of its own: rows land, late ones too, and the table follows."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from $name import PIPELINE

from lake_assets.incremental.execution.catch_up import catch_up
from lake_assets.incremental.execution.engine import Engine
from lake_assets.base.hours import hour_key, hour_start
from lake_assets.incremental.metadata.tables import COMPLETE_THROUGH
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.settings import Settings

START = PIPELINE.start_hour
HOURS = PIPELINE.target("$name").grain.hours  # of one partition; they are counted from the start


def test_late_rows_reach_their_partitions(tmp_path: Path) -> None:
    home = Settings(home=tmp_path / "home")
    catalog, spark = open_catalog(home), open_spark(home)
    try:
        engine = Engine(catalog, PIPELINE, clock=lambda: hour_start(START), spark=lambda: spark)
        engine.create_tables()
        land(catalog, {"a": 0, "b": 2}, through=2)
        assert built(engine) == $first_built
        land(catalog, {"c": 1}, through=3)  # late: 1 was complete. What comes out equal is left alone
        assert built(engine) == $late_built
        assert rows(catalog) == $result
    finally:
        spark.stop()


def land(catalog, partitions, *, through):
    """One row for each key, in its partition; then complete-through: rows first, never after."""
    table, end = catalog.load_table("$source"), START + HOURS * (through + 1)
    landed_at = hour_start(end)
    landed = [
        {
            "$key": key,
            "amount": 1,
            "$time": hour_start(START + HOURS * number) + timedelta(minutes=5),
            "landed_at": landed_at,
            "landing_date": landed_at.date(),
            "landing_hour": landed_at.hour,
            "batch_id": str(through),
        }
        for key, number in partitions.items()
    ]
    with table.transaction() as transaction:
        transaction.append(pa.Table.from_pylist(landed, schema=table.schema().as_arrow()))
        transaction.set_properties({COMPLETE_THROUGH: hour_key(end - 1)})


def built(engine):
    """The partitions that all due sessions build."""
    outcomes = catch_up(engine, PIPELINE.in_order())
    assert not [o.failure for o in outcomes if o.failure]
    return sorted({(hour - START) // HOURS for o in outcomes if o.report for hour in o.report.hours_built})


def rows(catalog):
    """(partition, key, amount) of every row."""
    found = catalog.load_table("$table").scan().to_arrow().to_pylist()
    start, partition = hour_start(START), timedelta(hours=HOURS)
    return sorted(((row["$target_time"] - start) // partition, row["$key"], row["amount"]) for row in found)
'''

_WINDOWED = "from pyspark.sql import DataFrame, Window\nfrom pyspark.sql import functions as F"

_STATELESS = {
    "title": "one row for each row of `$source`",
    "mode_class": "Stateless",
    "spark_imports": "from pyspark.sql import DataFrame",
    "declaration_imports": "SessionContext,\n    Source,\n    Stateless",
    "hours_import": "",
    "audit_imports": "no_missing_events, not_null, source_target_counts, unique_key",
    "audits": 'source_target_counts(), no_missing_events(), not_null("amount"), unique_key()',
    "target_time": "$time",
    "columns": '"$key": "string", "amount": "long", "$time": "timestamptz"',
    "body": '''    """What one row is. It depends on one row of the source alone, so new rows are appended."""
    return $rows.select("$key", "amount", "$time")''',
    "first_built": "[0, 2]",
    "late_built": "[1]",
    "result": '[(0, "a", 1), (1, "c", 1), (2, "b", 1)]',
}

_STATEFUL = {
    **_STATELESS,
    "title": "one row for each row of `$source`, told with those before it",
    "mode_class": "Stateful",
    "spark_imports": _WINDOWED,
    "declaration_imports": "SessionContext,\n    Source,\n    Stateful",
    "columns": '"$key": "string", "amount": "long", "events": "long", "$time": "timestamptz"',
    "body": '''    """What one row is. events: how many rows of the same key there are, up to this one.

    The ${period}s from the first that changed to the last complete are built anew, so a row may depend on any before.
    """
    history = Window.partitionBy("$key").orderBy("$time")
    counted = $rows.withColumn("events", F.count("*").over(history))
    return session.within(counted, "$time").select("$key", "amount", "events", "$time")''',
    "first_built": "[0, 1, 2]",
    "late_built": "[1, 3]",
}

_SEQUENTIAL = {
    "title": "the state of each $key at the end of every $period",
    "mode_class": "Sequential",
    "spark_imports": _WINDOWED,
    "declaration_imports": "Sequential,\n    SessionContext,\n    Source",
    "hours_import": "\nfrom lake_assets.base.hours import hour_start",
    "audit_imports": "not_null, unique_key",
    "audits": 'not_null("amount"), unique_key()',
    "target_time": "state_$period",
    "columns": '"state_$period": "timestamptz", "$key": "string", "amount": "long"',
    "body": '''    """amount: the sum so far: the $period before, in `session.published`, and its own rows."""
    first, last = $first_and_last
    before = session.published.where(F.col("state_$period") == F.lit(hour_start($before_first)))
    before = before.select("$key", F.lit(first).cast("long").alias("$period"), "amount")
    $period = F.floor(F.unix_seconds(F.col("$time")) / $seconds).alias("$period")
    changes = before.unionByName(session.within($rows, "$time").select("$key", $period, "amount"))
    to_the_end = F.sequence(F.min("$period"), F.lit(last).cast("long"))
    every = changes.groupBy("$key").agg(F.explode(to_the_end).alias("$period"))
    summed = changes.groupBy("$key", "$period").agg(F.sum("amount").alias("amount"))
    filled = every.join(summed, ["$key", "$period"], "left")
    so_far = F.sum("amount").over(Window.partitionBy("$key").orderBy("$period"))
    at = F.timestamp_seconds(F.col("$period") * $seconds)
    return filled.select(at.alias("state_$period"), "$key", so_far.alias("amount"))''',
    "first_built": "[0, 1, 2]",
    "late_built": "[1, 2, 3]",
    "result": '[(h, k, 1) for h, keys in enumerate(("a", "ac", "abc", "abc")) for k in keys]',
}

MODES: Mapping[str, Mapping[str, str]] = {
    "stateless": _STATELESS,
    "stateful": _STATEFUL,
    "sequential": _SEQUENTIAL,
}
"""Mode → what differs by it."""

GRAINS: Mapping[str, Mapping[str, str]] = {
    "hour": {
        "period": "hour",
        "grain_option": "",
        "seconds": "3600",
        "first_and_last": "session.hours[0], session.hours[-1]",
        "before_first": "first - 1",
    },
    "day": {
        "period": "day",
        "grain_option": '\n    grain="day",',
        "seconds": "86400",
        "first_and_last": "session.hours[0] // 24, session.hours[-1] // 24",
        "before_first": "24 * (first - 1)",
    },
}
"""Grain → what differs by it."""
