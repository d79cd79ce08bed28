"""Engagements that are sent again: of the copies of an engagement, the first one that is stored stays.

A later copy becomes a dead letter without its text, so every message of Kafka is accounted for, and no notification or
metric counts an engagement twice. The copies share org and `engagement_id`; who_id is not compared, because mutation
moves rows. A stored copy is looked for on the days of the batch's rows and on the days next to them, which bounds what
a batch reads. What it reads follows from the intent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.base.columns import any_of
from lake_assets.engagement.deduplication.days import day_ranges
from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, REPEATED
from lake_assets.engagement.model.tables import LakeTables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_KEY = ("org_id", "engagement_id")
_PLACE = ("partition", "offset")


def reject_repeated(messages: DataFrame, tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    """Give the later copies of engagements the reason `REPEATED`, and remove their text.

    Args:
        messages: As `validate_messages` returns them. Invalid messages stay as they are, and are no copies.

    Returns:
        `messages` itself if there are no copies.
    """
    from pyspark.sql import functions as F

    from lake_assets.connections.row_checkpoint import checkpoint_and_aggregate

    valid = messages.where("reason is null")
    later_copies = _later_copies(valid, _stored(valid, tables, spark, batch))
    copies, counted = checkpoint_and_aggregate(later_copies, [F.count("is_copy").alias("copies")])
    if counted["copies"] == 0:
        return messages
    marked = messages.join(F.broadcast(copies), list(_PLACE), "left")
    is_copy = F.coalesce("is_copy", F.lit(False))
    rejected = marked.withColumns(
        {
            "reason": F.when(is_copy, REPEATED).otherwise(F.col("reason")),
            "message": F.when(~is_copy, F.col("message")),
        }
    )
    return rejected.select(*messages.columns)


def may_be_copies(rows: DataFrame, margin: int = 1) -> Column:
    """Return whether a row of `engagement` is in the orgs and on the days of some rows, or on days around them.

    The result contains constants only, so Spark reads no file of other orgs or days.

    Args:
        rows: org_id string, engaged_at timestamp. They are read.
        margin: As for `day_ranges`.
    """
    from pyspark.sql import functions as F

    days_of_orgs = rows.groupBy("org_id").agg(F.collect_set(F.to_date("engaged_at")).alias("days")).collect()
    orgs = sorted(row["org_id"] for row in days_of_orgs)
    ranges = day_ranges((day for row in days_of_orgs for day in row["days"]), margin)
    in_any_range = any_of(F.col("engagement_date").between(F.lit(first), F.lit(last)) for first, last in ranges)
    # Delta prunes partitions only by a condition on the partition column alone.
    return F.col("org_id").isin(orgs) & in_any_range


def _stored(valid: DataFrame, tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    """Return the keys of the rows that the batch found and that may be copies of its messages: `_KEY`."""
    return tables.read_for(spark, batch, ENGAGEMENT).where(may_be_copies(valid)).select(*_KEY)


def _later_copies(valid: DataFrame, stored: DataFrame) -> DataFrame:
    """Return the messages whose engagement is stored, or comes before in the batch: partition, offset, is_copy."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    # One sort finds both: a row of the table has no place in Kafka, and so comes before all messages.
    sent = valid.select(*_KEY, *_PLACE)
    copies = sent.unionByName(stored, allowMissingColumns=True)
    in_order = Window.partitionBy(*_KEY).orderBy(*[F.asc_nulls_first(name) for name in _PLACE])
    numbered = copies.withColumn("nth", F.row_number().over(in_order))
    later = numbered.where("nth > 1 and partition is not null")
    return later.select(*_PLACE, F.lit(True).alias("is_copy"))
