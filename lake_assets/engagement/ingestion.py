"""The ingestion stream: valid messages become rows of `engagement`, invalid ones and copies dead letters with a reason.

Of the messages about an engagement, that is of org and `engagement_id`, the one sent last counts, so a producer can
correct. The others become dead letters without their text, so every message of Kafka is accounted for, and no
notification or metric counts an engagement twice. The row of a message that does not say when it was sent is looked for
on the days of the batch's rows and on the days next to them, which bounds what a batch reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.base.columns import any_of
from lake_assets.engagement.batch import IS_VALID, BatchMessages, DeadLetterCommit, Stream
from lake_assets.engagement.checkpoint import COPIES_ARE_REPEATED, REMOVED_COUNT, Batch
from lake_assets.engagement.delta_log import batch_statement
from lake_assets.engagement.erasure import ErasureRegistry
from lake_assets.engagement.known_requests import orgs_of, reject_replaced, upgrade, with_ids
from lake_assets.engagement.messages import ingestion_format
from lake_assets.engagement.notifications import DATA_COMMIT, NotificationCommit
from lake_assets.engagement.pruning import day_ranges, merge_scope, spans_of_days
from lake_assets.engagement.removed import IS_BACK, WAS_REMOVED, RemovedCommit, removed_rows
from lake_assets.engagement.requests import SENT_AT
from lake_assets.engagement.tables import (
    ENGAGEMENT,
    ERASURE,
    EXPIRED,
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


_COUNTS = "counts"
"""Whether a message counts among those about its engagement, also one that makes no row because it was erased."""


def reject_repeated(messages: DataFrame, tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    """Give messages about engagements of which another one counts the reason `REPEATED`, and remove their text.

    Args:
        messages: As `validate_messages` returns them. Those that are not valid by themselves count for nothing. Those
            that are erased or expired count, and then the engagement has no row.

    Returns:
        `messages` itself if each counts and makes a row, and none concerns a known engagement; else with `_COUNTS`,
        with `WAS_REMOVED`, and, if one replaces a row, with `replaces`, the day of the row that a message replaces,
        null if none.
    """
    from pyspark.sql import functions as F

    from lake_assets.connections.row_checkpoint import checkpoint_and_aggregate

    valid = messages.where("reason is null" if batch.rules < REMOVED_COUNT else IS_VALID)
    counts = [
        F.count_if("is_copy").alias("copies"),
        F.count("replaces").alias("replaced"),
        F.count_if(WAS_REMOVED).alias("removed"),
        F.count("reason").alias("gone"),
    ]
    ranked, counted = checkpoint_and_aggregate(_ranked(valid, _stored(valid, tables, spark, batch)), counts)
    if not any(counted.values()):
        return messages
    marked = messages.join(F.broadcast(ranked.drop("reason")), list(_PLACE), "left")
    is_copy = F.coalesce("is_copy", F.lit(False))
    rejected = marked.withColumns(
        {
            "reason": F.coalesce("reason", F.when(is_copy, REPEATED)),
            "message": F.when(~is_copy, F.col("message")),
            _COUNTS: ~is_copy,
            WAS_REMOVED: F.coalesce(WAS_REMOVED, F.lit(False)),
        }
    )
    return rejected.select(*messages.columns, _COUNTS, WAS_REMOVED, *(["replaces"] if counted["replaced"] else []))


def may_be_copies(rows: DataFrame, margin: int = 1) -> Column:
    """Return whether a row of `engagement` is in the orgs and on the days of some rows, or on days around them.

    Of an org with a row that says when it was sent, on any day: it may correct its time. The result contains constants
    only, so Spark reads no file of other orgs or days.

    Args:
        rows: org_id string, engaged_at timestamp, sent_at timestamp. They are read.
        margin: As for `day_ranges`.
    """
    from pyspark.sql import functions as F

    days = F.collect_set(F.to_date("engaged_at")).alias("days")
    days_of_orgs = rows.groupBy("org_id").agg(days, F.count(SENT_AT).alias("sent")).collect()
    orgs = sorted(row["org_id"] for row in days_of_orgs)
    ranges = day_ranges((day for row in days_of_orgs for day in row["days"]), margin)
    conditions = [F.col("engagement_date").between(F.lit(first), F.lit(last)) for first, last in ranges]
    if correcting := [row["org_id"] for row in days_of_orgs if row["sent"]]:
        conditions.append(F.col("org_id").isin(correcting))
    # Delta prunes partitions only by a condition on the partition column alone.
    return F.col("org_id").isin(orgs) & any_of(conditions)


def _stored(valid: DataFrame, tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    """Return what the batch found of the engagements of its messages: `_KEY`, `SENT_AT`, `WAS_REMOVED`, and
    engagement_date, null for a removed one."""
    from pyspark.sql import functions as F

    may_be_copy = may_be_copies(valid)
    rows = with_ids(tables.read_for(spark, batch, ENGAGEMENT).where(may_be_copy), tables.lake)
    stored = rows.select(*_KEY, SENT_AT, F.lit(False).alias(WAS_REMOVED), "engagement_date")
    removed = removed_rows(tables, spark, batch)
    if removed is not None:
        removed = removed.where(F.col("org_id").isin(orgs_of(valid)))
        stored = stored.union(removed.select(*_KEY, SENT_AT, F.lit(True), F.lit(None)))
    return stored.join(valid.select(*_KEY).hint("broadcast"), list(_KEY), "left_semi")


def _ranked(valid: DataFrame, stored: DataFrame) -> DataFrame:
    """Return the messages that do not count, that make no row, and those about a known engagement: partition, offset,
    is_copy, replaces date, `WAS_REMOVED`, reason.

    The last one sent counts; of those, a row of the table, and then the message that comes first.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    # One sort finds all: a row of the table has no place in Kafka, and so comes before all messages.
    both = valid.select(*_KEY, *_PLACE, SENT_AT, "reason").unionByName(stored, allowMissingColumns=True)
    of_engagement = Window.partitionBy(*_KEY)
    in_order = of_engagement.orderBy(F.desc_nulls_last(SENT_AT), *[F.asc_nulls_first(name) for name in _PLACE])
    is_copy = F.row_number().over(in_order) > 1
    known = {name: F.max(name).over(of_engagement) for name in ("engagement_date", WAS_REMOVED)}
    found = both.withColumns({"is_copy": is_copy, **known})
    is_known = f"engagement_date is not null or {WAS_REMOVED}"
    found = found.where(f"partition is not null and (is_copy or reason is not null or {is_known})")
    replaces = F.when(~F.col("is_copy"), F.col("engagement_date")).alias("replaces")
    return found.select(*_PLACE, "is_copy", replaces, WAS_REMOVED, "reason")


def ingestion(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """Return the stream.

    Args:
        servers: Kafka's `host:port`, comma-separated.
    """
    topic = KafkaTopic(servers, tables.lake.topic("ingestion"))
    messages = IngestionMessages(tables, spark, topic, ingestion_format(tables.lake))
    commits = (
        EngagementCommit(messages),
        RemovedCommit(tables, spark, messages.removed),
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
        from pyspark.sql import functions as F

        found = super().accepted(messages, batch)
        cut_offs = ErasureRegistry(self.tables, self.spark).cut_offs(batch.reads[ERASURE])
        if cut_offs is not None:
            joined = found.join(F.broadcast(cut_offs), F.expr("org_id = of_org"), "left")
            gone = F.expr("reason IS NULL AND coalesce(engaged_at <= expired_until, false)")
            reason, text = F.when(gone, EXPIRED).otherwise(F.col("reason")), F.when(~gone, F.col("message"))
            found = joined.withColumns({"reason": reason, "message": text}).select(*found.columns)
        if batch.rules < COPIES_ARE_REPEATED or batch.rejected is not None:
            return found
        return reject_repeated(found, self.tables, self.spark, batch)

    def removed(self, batch: Batch) -> DataFrame | None:
        """Return the engagements of which a message counts that makes no row, and those that have a row again, as
        `RemovedCommit` takes them.

        Other messages about one that does not say when it was sent are copies of it, so it need not be known.
        """
        from pyspark.sql import functions as F

        messages = self.checkpointed(batch)
        if _COUNTS not in messages.columns:
            return None
        is_told = f"({WAS_REMOVED} or {SENT_AT} is not null and reason is not null)"
        found = messages.where(f"{IS_VALID} and {_COUNTS} and {is_told}")
        return found.select(*_KEY, SENT_AT, F.col("reason").isNull().alias(IS_BACK))


@dataclass(frozen=True)
class EngagementCommit:
    """Writes a row for each valid message; it replaces the row of its engagement. An erased one removes it."""

    messages: BatchMessages
    name: str = DATA_COMMIT
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        tables, messages = self.messages.tables, self.messages.checkpointed(batch)
        names = list(engagement_columns(tables.lake))
        as_sent = {sent(column): F.col(column) for column in tables.lake.ids}
        rows = messages.withColumns({"engagement_date": F.to_date("engaged_at"), **as_sent})
        if "replaces" not in messages.columns:
            valid = rows.where("reason is null").select(*names)
            tables.append(ENGAGEMENT, valid, app_id=app_id, batch_id=batch.batch_id)
            return
        rows = rows.where("reason is null or replaces is not null").withColumn("gone", F.col("reason").isNotNull())
        replaced = rows.where("replaces is not null").select("org_id", F.col("replaces").alias("engagement_date"))
        is_replaced = "org_id = of_org_id AND engagement_id = of_engagement_id AND of_replaces IS NOT NULL"
        condition = merge_scope(spans_of_days(replaced)).condition & F.expr(is_replaced)
        source = rows.select(*(F.col(name).alias(f"of_{name}") for name in [*names, "replaces", "gone"]))
        values = {name: F.col(f"of_{name}") for name in names}
        merge = source.mergeInto(tables.identifier(ENGAGEMENT), condition)
        with batch_statement(self.messages.spark, app_id, batch.batch_id):
            merge = merge.whenMatched(F.col("of_gone")).delete().whenMatched().update(values)
            merge.whenNotMatched(~F.col("of_gone")).insert(values).merge()
