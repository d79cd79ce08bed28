"""The retention stream: one MERGE deletes engagements past their retention and those of erased persons.

It also redacts these persons in the other tables (see `redaction`), and registers them, so that late records about
them make no row (see `erasure.registry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.idempotent import batch_statement
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.messages import retention_format
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, ORG
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.notifications.notify import DATA_COMMIT, NotificationCommit
from lake_assets.engagement.streams.batch import Stream
from lake_assets.engagement.streams.batch_messages import BatchMessages, DeadLetterCommit
from lake_assets.engagement.streams.pruning import DateSpan, merge_scope
from lake_assets.engagement.streams.redaction import (
    DeadLetterRedaction,
    ErasureCommit,
    RequestRedaction,
    SettledRedaction,
    redact_letters,
)
from lake_assets.engagement.streams.retention_limits import RetentionLimits
from lake_assets.engagement.streams.settled.settling import upgrade

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def retention(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """Return the stream.

    Args:
        servers: Kafka's `host:port`, comma-separated.
    """
    topic = KafkaTopic(servers, tables.lake.topic("retention"))
    messages = BatchMessages(tables, spark, topic, retention_format(tables.lake))
    limits = RetentionLimits(messages)
    commits = (
        ErasureCommit(limits),
        DeletionCommit(limits),
        RequestRedaction(limits),
        SettledRedaction(limits),
        DeadLetterRedaction(limits),
        DeadLetterCommit(messages, partial(redact_letters, limits=limits)),
        NotificationCommit(tables, spark, tables.lake.app_name("retention")),
    )
    return Stream("retention", tables, topic.state, commits, reads=(ORG,), upgrade=partial(upgrade, tables, spark))


@dataclass(frozen=True)
class DeletionCommit:
    """Deletes the engagements that the batch's requests remove, of all orgs in one commit."""

    limits: RetentionLimits
    name: str = DATA_COMMIT
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        limits = _by_org(self.limits.of(batch))
        last_days = limits.select("of_org", F.to_date("until").alias("last_day")).orderBy("of_org").collect()
        if not last_days:
            return
        scope = merge_scope(DateSpan((row["of_org"],), last=row["last_day"]) for row in last_days)
        same_org = F.expr("org_id = of_org")
        is_too_old = F.expr("engaged_at < cut_off")
        is_erased = F.expr("engaged_at <= try_element_at(erased, who_id)")
        condition = scope.condition & same_org & (is_too_old | is_erased)
        merge = limits.mergeInto(tables.identifier(ENGAGEMENT), condition)
        with batch_statement(spark, app_id, batch.batch_id):
            merge.whenMatched().delete().merge()


def _by_org(limits: DataFrame) -> DataFrame:
    """Return one row for each org with a request.

    Args:
        limits: `RETENTION_LIMITS`.

    Returns:
        of_org string; cut_off timestamp, exclusive, null if the org has none; erased map of id → time until which its
        engagements are erased, inclusive; until timestamp, the latest of all these times.
    """
    from pyspark.sql import functions as F

    is_erasure = F.col("who_id").isNotNull()
    erased_entry = F.when(is_erasure, F.struct("who_id", "until"))
    return limits.groupBy(F.col("org_id").alias("of_org")).agg(
        F.max(F.when(~is_erasure, F.col("until"))).alias("cut_off"),
        F.map_from_entries(F.collect_list(erased_entry)).alias("erased"),
        F.max("until").alias("until"),
    )
