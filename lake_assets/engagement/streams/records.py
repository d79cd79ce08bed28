"""The records that requests of mutation carry (`insert_record`), as rows: put in place, and kept in place.

A record replaces the rows of its engagement that are there. One that comes later, from ingestion, is set aside: each
batch of ingestion is either before the one that put the record in place, or knows of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.model.messages import RECORD, record_format, typed
from lake_assets.engagement.model.tables import ENGAGEMENT, ENGAGEMENT_COLUMNS, MUTATION_REQUEST, LakeTables
from lake_assets.engagement.requests.grouped import RECORD_IDS, placed_records
from lake_assets.engagement.streams.late_arrivals import ROW_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPLACED = "replaced"
"""The reason of a dead letter whose engagement a request of mutation has put in place already."""

COLUMNS = (*ENGAGEMENT_COLUMNS, "engagement")
"""Of a row of `engagement`."""


def with_record_ids(requests: DataFrame, lake: EngagementLake) -> DataFrame:
    """The same requests with `RECORD_IDS`, null where they carry no record."""
    from pyspark.sql import functions as F

    carried = typed(requests, "insert_record", record_format(lake))
    named = zip(RECORD_IDS, ("engagement_id", "who_id"), strict=True)
    return carried.withColumns({column: F.col(f"{RECORD}.{name}") for column, name in named}).drop(RECORD)


def arriving(applied: DataFrame, lake: EngagementLake) -> DataFrame | None:
    """The records of requests that are applied together, each engagement once: `COLUMNS`. None if there are none.

    who_id is the id that the record ends under; null where no row is left of it.
    """
    from pyspark.sql import functions as F

    from lake_assets.connections.row_checkpoint import checkpoint_rows

    carried = applied.where("insert_record is not null")
    if carried.isEmpty():
        return None
    values = typed(carried, "insert_record", record_format(lake)).select("org_id", "request_id", f"{RECORD}.*")
    places = placed_records(with_record_ids(applied, lake))
    rows = places.join(values.drop("who_id", "engagement_id"), ["org_id", "request_id"])
    return checkpoint_rows(rows.withColumn("engagement_date", F.to_date("engaged_at")).select(*COLUMNS))


def replaced_rows(tables: LakeTables, spark: SparkSession, batch: Batch, records: DataFrame) -> DataFrame:
    """The rows of these engagements as the batch found them: `late.LATE`, with no alias: they go."""
    from pyspark.sql import functions as F

    rows = tables.read(spark, ENGAGEMENT, version=batch.reads[ENGAGEMENT])
    found = rows.join(F.broadcast(records), ["org_id", "engagement_id"], "left_semi").select(*ROW_ID).distinct()
    return found.withColumn("alias", F.lit(None).cast("string"))


def insertions(records: DataFrame) -> DataFrame:
    """The rows that records become: of_org string, row struct of `COLUMNS`."""
    from pyspark.sql import functions as F

    return records.where("who_id is not null").select(F.col("org_id").alias("of_org"), F.struct(*COLUMNS).alias("row"))


def set_aside(judged: DataFrame, tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    """The same messages of ingestion; of those whose engagement a record has put in place, `REPLACED` is the reason.

    The records of requests that are forgotten since count, too.
    """
    from pyspark.sql import functions as F

    log = tables.read(spark, MUTATION_REQUEST, version=batch.reads[MUTATION_REQUEST])
    carried = with_record_ids(log.where("status = 'applied' and insert_record is not null"), tables.lake)
    there = carried.select(F.col("org_id").alias("of_org"), F.col(RECORD_IDS[0]).alias("there")).distinct()
    same = (F.col("org_id") == F.col("of_org")) & (F.col("engagement_id") == F.col("there"))
    reason = F.coalesce("reason", F.when(F.col("there").isNotNull(), REPLACED))
    return judged.join(F.broadcast(there), same, "left").withColumn("reason", reason).select(*judged.columns)
