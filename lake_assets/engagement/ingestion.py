"""The ingestion stream: messages become rows of `engagement`, and those that cannot, dead letters with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.engagement.batch import Stream
from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.kafka import KafkaTopic
from lake_assets.engagement.messages import ingestion_format, judged
from lake_assets.engagement.notifying import Notification
from lake_assets.engagement.tables import (
    DEAD_LETTER,
    DEAD_LETTER_COLUMNS,
    ENGAGEMENT,
    ENGAGEMENT_COLUMNS,
    ORG,
    LakeTables,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def ingestion(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """The stream, on a Kafka cluster: servers is `host:port`, comma-separated."""
    messages = Messages(tables, spark, KafkaTopic(servers, tables.lake.topic("ingestion")))
    app_name = tables.lake.app_name("ingestion")
    processes = (Engagements(messages), DeadLetters(messages), Notification(tables, spark, app_name))
    return Stream("ingestion", tables, messages.topic.state, processes, reads=(ORG,))


@dataclass(frozen=True)
class Messages:
    """The judged messages of a batch."""

    tables: LakeTables
    spark: SparkSession
    topic: KafkaTopic

    def of(self, batch: Batch) -> DataFrame:
        """As `messages.judged` gives them, with the orgs that were known when the batch began."""
        orgs = self.tables.read(self.spark, ORG, version=batch.reads[ORG])
        return judged(self.topic.read(self.spark, batch.messages), ingestion_format(self.tables.lake), orgs)


@dataclass(frozen=True)
class Engagements:
    """The process that appends a row for each sound message."""

    messages: Messages
    name: str = "data"
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        sound = self.messages.of(batch).where("reason is null")
        rows = sound.withColumn("engagement_date", F.to_date("engaged_at")).select(*ENGAGEMENT_COLUMNS, "engagement")
        self.messages.tables.append(ENGAGEMENT, rows, app_id=app_id, batch_id=batch.batch_id)


@dataclass(frozen=True)
class DeadLetters:
    """The process that sets the other messages aside, each once."""

    messages: Messages
    name: str = "dead_letter"
    table: str = DEAD_LETTER

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        dead = self.messages.of(batch).where("reason is not null").withColumn("batch_id", F.lit(batch.batch_id))
        rows = dead.select(*DEAD_LETTER_COLUMNS)
        self.messages.tables.append(DEAD_LETTER, rows, app_id=app_id, batch_id=batch.batch_id)
