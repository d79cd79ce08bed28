"""Records that mutation requests carry (`insert_record`): put in place as rows, and protected from ingestion.

A record replaces the rows of its engagement. If ingestion brings the engagement later, that message becomes a dead
letter: a batch of ingestion is either before the one that put the record in place, or reads its request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.model.messages import RECORD, record_format
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, ENGAGEMENT_COLUMNS, REPLACED
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.requests.grouped import RECORD_IDS, place_records_by_org
from lake_assets.engagement.streams.late_arrivals import ROW_ID, with_sent_id
from lake_assets.engagement.streams.message_validation import with_typed_record
from lake_assets.engagement.streams.settled.settled_requests import placed_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORD_TIME = "record_engaged_at"
"""Column with the time of the record of a request; null if it carries none."""

ROW_COLUMNS = (*ENGAGEMENT_COLUMNS, "engagement")
"""Columns of a row of `engagement`."""


def with_record_ids(requests: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the requests with `RECORD_IDS` and `RECORD_TIME`, null where they carry no record."""
    from pyspark.sql import functions as F

    record_engagement_id, record_who_id = RECORD_IDS
    typed = with_typed_record(requests, "insert_record", record_format(lake))
    ids = {
        record_engagement_id: F.col(f"{RECORD}.engagement_id"),
        record_who_id: F.col(f"{RECORD}.who_id"),
        RECORD_TIME: F.col(f"{RECORD}.engaged_at"),
    }
    return typed.withColumns(ids).drop(RECORD)


def final_records(applied: DataFrame, lake: EngagementLake) -> DataFrame | None:
    """Return the records of requests that are applied together, the current one of each engagement.

    Returns:
        `ROW_COLUMNS`. who_id is the id that the record ends under; null if no row is left. None if there are no
        records.
    """
    from pyspark.sql import functions as F

    from lake_assets.connections.row_checkpoint import checkpoint_rows

    carrying = applied.where("insert_record is not null")
    if carrying.isEmpty():
        return None
    typed = with_typed_record(carrying, "insert_record", record_format(lake))
    values = typed.select("org_id", "request_id", f"{RECORD}.*")
    values = values.drop("who_id", "engagement_id")
    places = place_records_by_org(with_record_ids(applied, lake))
    records = places.join(values, ["org_id", "request_id"])
    dated = records.withColumn("engagement_date", F.to_date("engaged_at"))
    return checkpoint_rows(dated.select(*ROW_COLUMNS))


def replaced_rows(tables: LakeTables, spark: SparkSession, batch: Batch, records: DataFrame) -> DataFrame:
    """Return the rows that records replace, as the batch found them: `LATE_ROWS` without an alias, to be deleted."""
    from pyspark.sql import functions as F

    rows = with_sent_id(tables.read_for(spark, batch, ENGAGEMENT))
    replaced = rows.join(F.broadcast(records), ["org_id", "engagement_id"], "left_semi")
    ids = replaced.select(*ROW_ID).distinct()
    return ids.withColumn("alias", F.lit(None).cast("string"))


def inserted_rows(records: DataFrame) -> DataFrame:
    """Return the rows that records become: of_org string, row struct of `ROW_COLUMNS`."""
    from pyspark.sql import functions as F

    left = records.where("who_id is not null")
    return left.select(
        F.col("org_id").alias("of_org"),
        F.struct(*ROW_COLUMNS).alias("row"),
    )


def reject_replaced(messages: DataFrame, tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    """Give messages of ingestion the reason `REPLACED` if a record has put their engagement in place.

    Args:
        messages: As `validate_messages` returns them.
    """
    from pyspark.sql import functions as F

    carrying = placed_records(tables, spark, batch)
    if carrying is None:
        return messages
    placed = carrying.select(
        F.col("org_id").alias("of_org"),
        F.col(RECORD_IDS[0]).alias("placed"),
    )
    same_engagement = F.expr("org_id = of_org AND engagement_id = placed")
    joined = messages.join(F.broadcast(placed.distinct()), same_engagement, "left")
    replaced = F.when(F.col("placed").isNotNull(), REPLACED)
    marked = joined.withColumn("reason", F.coalesce("reason", replaced))
    return marked.select(*messages.columns)
