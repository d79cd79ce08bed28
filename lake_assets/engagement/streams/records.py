"""Records that mutation requests carry (`insert_record`): put in place as rows, and protected from ingestion.

A record replaces the rows of its engagement. If ingestion brings the engagement later, that message becomes a dead
letter: a batch of ingestion is either before the one that put the record in place, or reads its request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.model.messages import RECORD, record_format
from lake_assets.engagement.model.table_schemas import REPLACED, row_columns
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.requests.grouped import RECORD_IDS, RECORD_PLACE, place_records_by_org
from lake_assets.engagement.requests.identity import PERSON
from lake_assets.engagement.streams.message_validation import with_typed_record
from lake_assets.engagement.streams.settled.settled_requests import placed_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORD_TIME = "record_engaged_at"
"""Column with the time of the record of a request; null if it carries none."""


def with_record_ids(requests: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the requests with `RECORD_PLACE` and `RECORD_TIME`, null where they carry no record."""
    from pyspark.sql import functions as F

    record_engagement_id, record_who_id, record_date, record_ids = RECORD_PLACE
    further = [column for column in lake.ids if column != PERSON]
    names = F.array(*map(F.lit, further)).cast("array<string>")
    values = F.array(*[F.col(f"{RECORD}.{column}") for column in further]).cast("array<string>")
    typed = with_typed_record(requests, "insert_record", record_format(lake))
    ids = {
        record_engagement_id: F.col(f"{RECORD}.engagement_id"),
        record_who_id: F.col(f"{RECORD}.who_id"),
        RECORD_TIME: F.col(f"{RECORD}.engaged_at"),
        record_date: F.to_date(f"{RECORD}.engaged_at"),
        record_ids: F.map_from_arrays(names, values),
    }
    return typed.withColumns(ids).drop(RECORD)


def final_records(applied: DataFrame, lake: EngagementLake) -> DataFrame | None:
    """Return the records of requests that are applied together, the current one of each engagement.

    Returns:
        `row_columns`. The ids are those that the record ends under; who_id is null if no row is left. None if there
        are no records.
    """
    from pyspark.sql import functions as F

    from lake_assets.connections.row_checkpoint import checkpoint_rows

    carrying = applied.where("insert_record is not null")
    if carrying.isEmpty():
        return None
    typed = with_typed_record(carrying, "insert_record", record_format(lake))
    values = typed.select("org_id", "request_id", f"{RECORD}.*")
    values = values.drop(*lake.ids, "engagement_id")
    places = place_records_by_org(with_record_ids(applied, lake))
    records = places.join(values, ["org_id", "request_id"])
    ends = {column: F.col("ids")[column] for column in lake.ids if column != PERSON}
    dated = records.withColumns({"engagement_date": F.to_date("engaged_at"), **ends})
    return checkpoint_rows(dated.select(*row_columns(lake)))


def inserted_rows(records: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the rows that records become: org_id string, engagement_date date, row struct of `row_columns`."""
    from pyspark.sql import functions as F

    left = records.where("who_id is not null")
    return left.select("org_id", "engagement_date", F.struct(*row_columns(lake)).alias("row"))


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
