"""Which counts and rates the table of metrics shows: a digest in its properties, and columns that are added.

A lake that counts something else than before keeps its table. Columns that it no longer counts stay, and are null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.engagement.model.configuration.metric_groups import EMAILS_AND_CALLS, digest, metrics_columns
from lake_assets.engagement.model.delta_log import open_table
from lake_assets.engagement.model.table_schemas import ENGAGEMENT_METRICS, METRICS_DIGEST
from lake_assets.engagement.model.tables import LakeTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def shows_declared(tables: LakeTables) -> bool:
    """Return whether the metrics are those that the lake declares now. Needs no Spark."""
    properties = open_table(tables.location(ENGAGEMENT_METRICS)).metadata().configuration
    return properties.get(METRICS_DIGEST, digest(EMAILS_AND_CALLS)) == digest(tables.lake.metrics)


def add_columns(tables: LakeTables, spark: SparkSession) -> None:
    """Add the columns that the lake declares and its table of metrics lacks."""
    existing = _column_types(tables)
    lacking = [
        f"`{column}` {kind}" for column, kind in metrics_columns(tables.lake.metrics).items() if column not in existing
    ]
    if lacking:
        spark.sql(f"ALTER TABLE {tables.identifier(ENGAGEMENT_METRICS)} ADD COLUMNS ({', '.join(lacking)})")


def record_declared(tables: LakeTables, spark: SparkSession) -> None:
    """Record that the metrics are those that the lake declares now."""
    spark.sql(
        f"ALTER TABLE {tables.identifier(ENGAGEMENT_METRICS)}"
        f" SET TBLPROPERTIES ('{METRICS_DIGEST}' = '{digest(tables.lake.metrics)}')"
    )


def with_all_columns(rows: DataFrame, tables: LakeTables) -> DataFrame:
    """Return rows of metrics with a null in each column that the table has and the lake no longer declares."""
    from pyspark.sql import functions as F

    for column, kind in _column_types(tables).items():
        if column not in rows.columns:
            rows = rows.withColumn(column, F.lit(None).cast(kind))
    return rows


def _column_types(tables: LakeTables) -> dict[str, str]:
    fields = open_table(tables.location(ENGAGEMENT_METRICS)).schema().fields
    return {field.name: str(getattr(field.type, "type", field.type)) for field in fields}
