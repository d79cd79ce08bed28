"""The retention stream: what an org keeps no longer, and people who are to be erased, go in one MERGE.

Of a person nothing stays elsewhere in the lake, either (`forgetting.py`), and nothing comes in late (`memory.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.idempotent import statement
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.messages import RETENTION_FORMAT
from lake_assets.engagement.model.tables import ENGAGEMENT, ORG, LakeTables
from lake_assets.engagement.notifications.notify import Notification
from lake_assets.engagement.streams.batch import Stream
from lake_assets.engagement.streams.message_validation import DeadLetters, Messages
from lake_assets.engagement.streams.pruning import Span, reach
from lake_assets.engagement.streams.redaction import Erasures, ForgottenRequests, RedactedLetters, redacted
from lake_assets.engagement.streams.retention_limits import Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def retention(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """The stream, on a Kafka cluster: servers is `host:port`, comma-separated."""
    topic = KafkaTopic(servers, tables.lake.topic("retention"))
    messages = Messages(tables, spark, topic, RETENTION_FORMAT)
    notification = Notification(tables, spark, tables.lake.app_name("retention"))
    limits = Limits(messages)
    forgotten = (ForgottenRequests(limits), RedactedLetters(limits))
    letters = DeadLetters(messages, partial(redacted, limits=limits))
    processes = (Erasures(limits), Removals(limits), *forgotten, letters, notification)
    return Stream("retention", tables, topic.state, processes, reads=(ORG,))


@dataclass(frozen=True)
class Removals:
    """The process that deletes what the requests of the batch name, of all orgs in one commit."""

    limits: Limits
    name: str = "data"
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        limits = _by_org(self.limits.of(batch))
        found = limits.select("of_org", F.to_date("until").alias("until")).orderBy("of_org").collect()
        if not found:
            return
        concerned = reach(Span((row["of_org"],), last=row["until"]) for row in found)
        too_old = F.col("engaged_at") < F.col("cut_off")
        erased = F.col("engaged_at") <= F.try_element_at("erased", F.col("who_id"))
        of_org = (F.col("org_id") == F.col("of_org")) & concerned.condition
        merge = limits.mergeInto(tables.identifier(ENGAGEMENT), of_org & (too_old | erased))
        with statement(spark, app_id, batch.batch_id):
            merge.whenMatched().delete().merge()


def _by_org(limits: DataFrame) -> DataFrame:
    """One row for each org with a request: of_org string; cut_off timestamp, what engaged before goes; and erased, a
    map of an id to until when, inclusive, its engagements are erased. cut_off is null if no request keeps less. until
    timestamp: of all of these the last.
    """
    from pyspark.sql import functions as F

    by_org = limits.groupBy(F.col("org_id").alias("of_org"))
    entry = F.when(F.col("who_id").isNotNull(), F.struct("who_id", "until"))
    return by_org.agg(
        F.max(F.when(F.col("who_id").isNull(), F.col("until"))).alias("cut_off"),
        F.map_from_entries(F.collect_list(entry)).alias("erased"),
        F.max("until").alias("until"),
    )
