"""The ingestion stream: messages become rows of `engagement`, and those that cannot, dead letters with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.messages import ingestion_format
from lake_assets.engagement.model.tables import (
    ENGAGEMENT,
    ENGAGEMENT_COLUMNS,
    ERASURE,
    MUTATION_REQUEST,
    ORG,
    LakeTables,
)
from lake_assets.engagement.notifications.notify import Notification
from lake_assets.engagement.streams.batch import Stream
from lake_assets.engagement.streams.message_validation import DeadLetters, Messages
from lake_assets.engagement.streams.records import set_aside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def ingestion(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """The stream, on a Kafka cluster: servers is `host:port`, comma-separated."""
    topic = KafkaTopic(servers, tables.lake.topic("ingestion"))
    messages = Arrivals(tables, spark, topic, ingestion_format(tables.lake))
    app_name = tables.lake.app_name("ingestion")
    processes = (Engagements(messages), DeadLetters(messages), Notification(tables, spark, app_name))
    return Stream("ingestion", tables, topic.state, processes, reads=(ORG, ERASURE, MUTATION_REQUEST))


@dataclass(frozen=True)
class Arrivals(Messages):
    """The judged messages of a batch of ingestion."""

    def of(self, batch: Batch) -> DataFrame:
        """As `messages.judged` gives them; what a request of mutation has put in place before is not sound."""
        return set_aside(super().of(batch), self.tables, self.spark, batch)


@dataclass(frozen=True)
class Engagements:
    """The process that appends a row for each sound message."""

    messages: Messages
    name: str = "data"
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        sound = self.messages.checkpointed(batch).where("reason is null")
        rows = sound.withColumn("engagement_date", F.to_date("engaged_at")).select(*ENGAGEMENT_COLUMNS, "engagement")
        self.messages.tables.append(ENGAGEMENT, rows, app_id=app_id, batch_id=batch.batch_id)
