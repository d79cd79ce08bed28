"""The retention stream: what an org keeps no longer, and people who are to be erased, go in one MERGE.

What goes follows from the messages and from the requests of mutation that were applied when the batch began: they tell
under which ids a person is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.engagement.batch import Stream
from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.collapsing import limited
from lake_assets.engagement.idempotent import statement
from lake_assets.engagement.judging import DeadLetters, Messages
from lake_assets.engagement.kafka import KafkaTopic
from lake_assets.engagement.messages import RETENTION_FORMAT
from lake_assets.engagement.notifying import Notification
from lake_assets.engagement.tables import ENGAGEMENT, MUTATION_REQUEST, ORG, LakeTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def retention(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """The stream, on a Kafka cluster: servers is `host:port`, comma-separated."""
    topic = KafkaTopic(servers, tables.lake.topic("retention"))
    messages = Messages(tables, spark, topic, RETENTION_FORMAT)
    notification = Notification(tables, spark, tables.lake.app_name("retention"))
    processes = (Removals(messages), DeadLetters(messages), notification)
    return Stream("retention", tables, topic.state, processes, reads=(ORG, MUTATION_REQUEST))


@dataclass(frozen=True)
class Removals:
    """The process that deletes what the requests of the batch name, of all orgs in one commit."""

    messages: Messages
    name: str = "data"
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        tables, spark = self.messages.tables, self.messages.spark
        requests = self.messages.of(batch).where("reason is null")
        log = tables.read(spark, MUTATION_REQUEST, version=batch.reads[MUTATION_REQUEST])
        limits = _limits(requests, log.where("status = 'applied'")).localCheckpoint()
        orgs = [row["of_org"] for row in limits.select("of_org").orderBy("of_org").collect()]
        if not orgs:
            return
        too_old = F.col("engaged_at") < F.col("cut_off")
        erased = F.col("engaged_at") <= F.try_element_at("erased", F.col("who_id"))
        of_org = (F.col("org_id") == F.col("of_org")) & F.col("org_id").isin(orgs)
        merge = limits.mergeInto(tables.identifier(ENGAGEMENT), of_org & (too_old | erased))
        with statement(spark, app_id, batch.batch_id):
            merge.whenMatched().delete().merge()


def _limits(requests: DataFrame, applied: DataFrame) -> DataFrame:
    """One row for each org with a request: of_org string; cut_off timestamp, what engaged before goes; and erased, a
    map of an id to until when, inclusive, its engagements are erased. cut_off is null if no request keeps less.

    requests: as `RETENTION_FORMAT` has them. applied: as for `collapsing.collapsed`.
    """
    from pyspark.sql import functions as F

    by_org = limited(requests, applied).groupBy(F.col("org_id").alias("of_org"))
    entry = F.when(F.col("who_id").isNotNull(), F.struct("who_id", "until"))
    return by_org.agg(
        F.max(F.when(F.col("who_id").isNull(), F.col("until"))).alias("cut_off"),
        F.map_from_entries(F.collect_list(entry)).alias("erased"),
    )
