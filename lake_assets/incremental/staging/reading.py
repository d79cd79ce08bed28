"""Reading tables of the lake on Spark, as of a snapshot or between two, and hints for small amounts of rows."""

from __future__ import annotations

from math import ceil

from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.present_columns import with_present_columns
from lake_assets.incremental.planning.session import SourceRange

CATALOG = "lake"

SINGLE_PARTITION_ROWS = 50_000
"""Most rows that are handled as one partition, so that nothing is shuffled: tasks are the main cost of few rows."""

FEW_PARTITIONS = 20
"""Most partitions of so many rows that others are merged into. Of more rows, a table's own partitions are as good.

Iceberg reads four small files in a task, so an hourly table gives a task for each hour or so.
"""


def read_at(spark: SparkSession, catalog: Catalog, table: str, snapshot_id: int | None) -> DataFrame:
    """Return the rows of a table as of a snapshot, with the columns that the table has now; no rows for None."""
    if snapshot_id is None:
        return spark.table(f"{CATALOG}.{table}").where(F.lit(False))
    reader = spark.read.option("versionAsOf", str(snapshot_id))
    return with_present_columns(reader.table(f"{CATALOG}.{table}"), tables.load(catalog, table), snapshot_id)


def read_appended(spark: SparkSession, catalog: Catalog, source: SourceRange) -> DataFrame:
    """Return the rows that the snapshots of a range appended. Only for a range that metadata shows to be appends."""
    if source.from_snapshot_id is None:
        return read_at(spark, catalog, source.source, source.to_snapshot_id)
    if source.from_snapshot_id == source.to_snapshot_id:
        return read_at(spark, catalog, source.source, None)  # Iceberg refuses an empty range
    reader = spark.read.format("iceberg")
    reader = reader.option("start-snapshot-id", str(source.from_snapshot_id))
    reader = reader.option("end-snapshot-id", str(source.to_snapshot_id))
    return reader.load(f"{CATALOG}.{source.source}")


def is_few(rows: float) -> bool:
    """Return whether a number of rows is handled as one partition."""
    return rows <= SINGLE_PARTITION_ROWS


def coalesce_if_few(rows: DataFrame, number: float) -> DataFrame:
    """Return the rows in as few partitions as their number needs, if it is small.

    Args:
        number: About how many rows there are, at most; infinite if that is not known.
    """
    if is_few(number):
        return rows.coalesce(1)
    if number <= FEW_PARTITIONS * SINGLE_PARTITION_ROWS:
        return rows.coalesce(ceil(number / SINGLE_PARTITION_ROWS))
    return rows


def hash_join_hint(rows: DataFrame, *, few: bool) -> DataFrame:
    """Return the right side of a join with a hint to hash it in place, if both sides are few rows in one partition.

    Without the hint Spark broadcasts a small side to all tasks of the other, which is a job of its own.
    """
    if few:
        return rows.hint("shuffle_hash")
    return rows
