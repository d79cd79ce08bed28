"""The ingestion stream: valid messages become rows of `engagement`, invalid ones dead letters with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.engagement.deduplication.repeated import reject_repeated
from lake_assets.engagement.model.checkpoint import COPIES_ARE_REPEATED, Batch
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.messages import ingestion_format
from lake_assets.engagement.model.table_schemas import (
    ENGAGEMENT,
    ERASURE,
    ORG,
    SETTLED_REQUEST,
    engagement_columns,
    sent,
)
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.notifications.notify import DATA_COMMIT, NotificationCommit
from lake_assets.engagement.streams.batch import Stream
from lake_assets.engagement.streams.batch_messages import BatchMessages, DeadLetterCommit
from lake_assets.engagement.streams.records import reject_replaced
from lake_assets.engagement.streams.settled.settling import upgrade

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    reads = (ORG, ERASURE, SETTLED_REQUEST)
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
