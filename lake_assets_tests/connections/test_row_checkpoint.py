"""Rows that are kept are aggregated in the job that computes them, and the values are those of a query of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lake_assets.connections.row_checkpoint import aggregate, checkpoint_and_aggregate, release_checkpoints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_aggregates_of_kept_rows_are_those_of_the_rows(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(5, 1.5), (3, 2.5), (3, None)], "hour long, late double")
    aggregates = [
        F.count("*").alias("read"),
        F.count_if(F.col("late").isNull()).alias("nulls"),
        F.sort_array(F.collect_set("hour")).alias("hours"),
        F.percentile_approx("late", [0.5, 0.95]).alias("lateness"),
        F.max("late").alias("latest"),
    ]
    kept, values = checkpoint_and_aggregate(rows, aggregates)
    assert values == {"read": 3, "nulls": 1, "hours": [3, 5], "lateness": [1.5, 2.5], "latest": 2.5}
    assert sorted(kept.select("hour").toPandas()["hour"]) == [3, 3, 5]
    assert aggregate(kept, aggregates) == values

    none, of_none = checkpoint_and_aggregate(rows.where("hour = 9").coalesce(1), aggregates)
    assert of_none == {"read": 0, "nulls": 0, "hours": [], "lateness": None, "latest": None}
    assert none.count() == 0
    release_checkpoints(spark)
