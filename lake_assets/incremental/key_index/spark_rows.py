"""Rows between Spark and this process: the values to look up, and the rows that were found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lake_assets.base.columns import column
from lake_assets.incremental.key_index.lookup import MAX_VALUES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def distinct_values(rows: DataFrame, name: str) -> set[object] | None:
    """Return the values of a column, null as None; None if they are more than one lookup takes."""
    found = rows.select(column(name)).distinct().limit(MAX_VALUES + 1).collect()
    return None if len(found) > MAX_VALUES else {row[0] for row in found}


def local_rows(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return rows of this process as a DataFrame of one partition."""
    return spark.createDataFrame(rows).coalesce(1)
