"""The ingestion stream: valid messages become rows of `engagement`, invalid ones and copies dead letters with a reason.

A later copy becomes a dead letter without its text, so every message of Kafka is accounted for, and no notification or
metric counts an engagement twice. The copies share org and `engagement_id`; who_id is not compared, because mutation
moves rows. A stored copy is looked for on the days of the batch's rows and on the days next to them, which bounds what
a batch reads. What it reads follows from the intent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.base.columns import any_of
from lake_assets.engagement.batch import BatchMessages, DeadLetterCommit, Stream
from lake_assets.engagement.checkpoint import COPIES_ARE_REPEATED, Batch
from lake_assets.engagement.known_requests import reject_replaced, upgrade
from lake_assets.engagement.messages import ingestion_format
from lake_assets.engagement.notifications import DATA_COMMIT, NotificationCommit
from lake_assets.engagement.pruning import day_ranges
from lake_assets.engagement.tables import (
    ENGAGEMENT,
    ERASURE,
    MUTATION_REQUEST,
    ORG,
    REPEATED,
    LakeTables,
    engagement_columns,
    sent,
)
from lake_assets.engagement.topics import KafkaTopic

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


def ingestion(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """Return the stream.

    Args:
        servers: Kafka's `host:port`, comma-separated.
    """
    topic = KafkaTopic(servers, tables.lake.topic("ingestion"))
    messages = IngestionMessages(tables, spark, topic, ingestion_format(tables.lake))
    commits = (
        EngagementCommit(messages),
        DeadLetterCommit(messages),
        NotificationCommit(tables, spark, tables.lake.app_name("ingestion")),
    )
    reads = (ORG, ERASURE, MUTATION_REQUEST)
    return Stream("ingestion", tables, topic.state, commits, reads, upgrade=partial(upgrade, tables, spark))


@dataclass(frozen=True)
class IngestionMessages(BatchMessages):
    """The messages of a batch of ingestion."""

    def validated(self, batch: Batch) -> DataFrame:
        """Return the validated messages. Engagements that a mutation request has put in place are invalid, too."""
        return reject_replaced(super().validated(batch), self.tables, self.spark, batch)

    def accepted(self, messages: DataFrame, batch: Batch) -> DataFrame:
        """Return the messages without later copies of an engagement among the valid ones."""
        found = super().accepted(messages, batch)
        if batch.rules < COPIES_ARE_REPEATED or batch.rejected is not None:
            return found
        return reject_repeated(found, self.tables, self.spark, batch)


@dataclass(frozen=True)
class EngagementCommit:
    """Appends a row for each valid message."""

    messages: BatchMessages
    name: str = DATA_COMMIT
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        lake = self.messages.tables.lake
        derived = {"engagement_date": F.to_date("engaged_at"), **{sent(column): F.col(column) for column in lake.ids}}
        rows = self.messages.valid(batch).withColumns(derived).select(*engagement_columns(lake))
        self.messages.tables.append(ENGAGEMENT, rows, app_id=app_id, batch_id=batch.batch_id)
