"""The mutation stream: requests to convert, merge and delete ids, collapsed to one map and applied in one MERGE.

Late arrivals follow the requests of their id in the same MERGE (see `late_arrivals`).

The outcome of a batch is decided once, and durable before the first row changes: the rows of `mutation_request` that a
batch appends are its new and its pending requests, each with its status. The map follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.idempotent import batch_statement
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.messages import mutation_format
from lake_assets.engagement.model.table_schemas import (
    ENGAGEMENT,
    ERASURE,
    MUTATION_REQUEST,
    MUTATION_REQUEST_COLUMNS,
    ORG,
)
from lake_assets.engagement.model.tables import LakeTables, applied_requests
from lake_assets.engagement.notifications.notify import DATA_COMMIT, NotificationCommit
from lake_assets.engagement.requests.grouped import attempt_by_org, collapse_by_org
from lake_assets.engagement.streams.batch import Stream
from lake_assets.engagement.streams.batch_messages import BatchMessages, DeadLetterCommit, batch_id_column
from lake_assets.engagement.streams.late_arrivals import ROW_ID, ingested_versions, late_rows, new_rows
from lake_assets.engagement.streams.pruning import MergeScope, scope_of_dates
from lake_assets.engagement.streams.records import (
    ROW_COLUMNS,
    final_records,
    inserted_rows,
    replaced_rows,
    with_record_ids,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, MergeIntoWriter, SparkSession

_REQUEST_KEY = ["org_id", "request_id"]
_DATE_RANGE = ("first_date", "last_date")


def mutation(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """Return the stream.

    Args:
        servers: Kafka's `host:port`, comma-separated.
    """
    topic = KafkaTopic(servers, tables.lake.topic("mutation"))
    messages = BatchMessages(tables, spark, topic, mutation_format(tables.lake))
    commits = (
        RequestCommit(messages),
        MutationCommit(tables, spark),
        DeadLetterCommit(messages),
        NotificationCommit(tables, spark, tables.lake.app_name("mutation")),
    )
    has_work = partial(_has_work, tables, spark)
    return Stream("mutation", tables, topic.state, commits, reads=(ORG, ERASURE), has_work=has_work)


@dataclass(frozen=True)
class RequestCommit:
    """Decides which requests are applied, pending or dead, on the engagement table as it was before the batch."""

    messages: BatchMessages
    name: str = "request"
    table: str = MUTATION_REQUEST

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        tables = self.messages.tables
        log = tables.read_for(self.messages.spark, batch, MUTATION_REQUEST)
        to_try = self._new(batch, log).unionByName(_pending(log))
        requests = checkpoint_rows(to_try.withColumn("batch_id", batch_id_column(batch)))
        orgs = requests.select("org_id").distinct()
        applied = applied_requests(log).join(orgs, "org_id", "left_semi")
        present = checkpoint_rows(self._present(batch, requests.unionByName(applied)))
        outcomes = attempt_by_org(
            with_record_ids(requests, tables.lake),
            applied,
            present,
            max_attempts=tables.lake.max_attempts,
        )
        ranges = present.groupBy("org_id", F.col("who_id").alias("old_id")).agg(
            F.min("first_date").alias("first_date"),
            F.max("last_date").alias("last_date"),
        )
        rows = outcomes.drop(*_DATE_RANGE).join(ranges, ["org_id", "old_id"], "left")
        tables.append(
            MUTATION_REQUEST,
            rows.select(*MUTATION_REQUEST_COLUMNS),
            app_id=app_id,
            batch_id=batch.batch_id,
        )

    def _present(self, batch: Batch, requests: DataFrame) -> DataFrame:
        """Return the ids that requests name and that have rows.

        Args:
            requests: `MUTATION_REQUEST_COLUMNS`.

        Returns:
            org_id string, who_id string, arrived timestamp, first_date date, last_date date. arrived is engaged_at of a
            new row, null for former rows, and null for all rows while no request was applied.
        """
        from pyspark.sql import functions as F

        tables, spark = self.messages.tables, self.messages.spark
        named = requests.select("org_id", F.col("old_id").alias("who_id")).distinct()
        org_rows = named.select("org_id").distinct().orderBy("org_id").collect()
        orgs = [row["org_id"] for row in org_rows]
        engagements = tables.read_for(spark, batch, ENGAGEMENT).where(F.col("org_id").isin(orgs))
        rows = engagements.join(named, ["org_id", "who_id"], "left_semi")
        rows = rows.select(*ROW_ID, "engagement_date")
        arrived = F.lit(None).cast("timestamp")
        arrivals = new_rows(tables, spark, batch)
        if arrivals is not None:
            rows = rows.join(arrivals.withColumn("is_new", F.lit(True)), ROW_ID, "left")
            arrived = F.when(F.col("is_new"), F.col("engaged_at"))
        return rows.groupBy("org_id", "who_id", arrived.alias("arrived")).agg(
            F.min("engagement_date").alias("first_date"),
            F.max("engagement_date").alias("last_date"),
        )

    def _new(self, batch: Batch, log: DataFrame) -> DataFrame:
        """Return the valid requests of the batch that are not in the log, each id once, the first one in replay."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        in_replay = Window.partitionBy(_REQUEST_KEY).orderBy("executed_at", "partition", "offset")
        numbered = self.messages.valid(batch).withColumn("nth", F.row_number().over(in_replay))
        in_log = log.select(_REQUEST_KEY).distinct()
        unseen = numbered.where("nth = 1").join(in_log, _REQUEST_KEY, "left_anti")
        rows = unseen.withColumns(
            {
                "attempts": F.lit(0),
                "status": F.lit("pending"),
                "batch_id": batch_id_column(batch),
                "first_date": F.lit(None).cast("date"),
                "last_date": F.lit(None).cast("date"),
            }
        )
        return rows.select(*MUTATION_REQUEST_COLUMNS)


@dataclass(frozen=True)
class MutationCommit:
    """Applies the collapsed map of the batch's requests: the rows of an id go to its final id at once.

    Late rows go where they would be if they had been there before.
    """

    tables: LakeTables
    spark: SparkSession
    name: str = DATA_COMMIT
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        log = self.tables.read(self.spark, MUTATION_REQUEST, version=done["request"])
        requests = applied_requests(log.where(F.col("batch_id") == batch.batch_id))
        records = final_records(requests, self.tables.lake)
        single_rows = checkpoint_rows(self._single_rows(batch, requests, records))
        changes = _changes(collapse_by_org(requests), single_rows)
        if records is not None:
            changes = changes.unionByName(inserted_rows(records), allowMissingColumns=True)
        changes = checkpoint_rows(changes)
        if changes.isEmpty():
            return
        dates = requests.select("org_id", *_DATE_RANGE).unionByName(_dates(single_rows))
        merge = _merge(changes, self.tables.identifier(ENGAGEMENT), scope_of_dates(dates))
        if records is not None:
            values = {name: F.col(f"row.{name}") for name in ROW_COLUMNS}
            merge = merge.whenNotMatched(F.col("row").isNotNull()).insert(values)
        with batch_statement(self.spark, app_id, batch.batch_id):
            merge.merge()

    def _single_rows(self, batch: Batch, requests: DataFrame, records: DataFrame | None) -> DataFrame:
        """Return the rows that do not follow the map: late ones, and those that records replace, which are deleted."""
        late = late_rows(self.tables, self.spark, batch, requests)
        if records is None:
            return late
        replaced = replaced_rows(self.tables, self.spark, batch, records)
        return late.join(replaced, ROW_ID, "left_anti").unionByName(replaced)


def _merge(changes: DataFrame, table: str, scope: MergeScope) -> MergeIntoWriter:
    """Return the MERGE that moves and deletes rows.

    Args:
        changes: As `_changes` returns them.
        table: Name of the engagement table in SQL.
    """
    from pyspark.sql import functions as F

    same_id = F.expr("org_id = of_org AND who_id = old_id")
    row_key = F.struct("engagement_id", "engaged_at")
    has_alias = F.map_contains_key("single_rows", row_key)
    final_id = F.when(has_alias, F.element_at("single_rows", row_key)).otherwise(F.col("new_id"))
    merge = changes.mergeInto(table, same_id & scope.condition)
    merge = merge.whenMatched(final_id.isNull()).delete()
    return merge.whenMatched(final_id != F.col("who_id")).update({"who_id": final_id})


def _dates(single_rows: DataFrame) -> DataFrame:
    """Return the dates of single rows as for requests: org_id string, first_date date, last_date date."""
    from pyspark.sql import functions as F

    day = F.to_date("engaged_at")
    return single_rows.select("org_id", *[day.alias(name) for name in _DATE_RANGE])


def _changes(final_ids: DataFrame, single_rows: DataFrame) -> DataFrame:
    """Return one row for each id whose rows change.

    Args:
        final_ids: As `collapse_by_org` returns them.
        single_rows: `LATE_ROWS`.

    Returns:
        of_org string, old_id string, new_id string (null if rows are deleted), single_rows: map of (engagement_id,
        engaged_at) → id of a row that does not go to new_id; null if there are none.
    """
    from pyspark.sql import functions as F

    collapsed = final_ids.withColumnRenamed("org_id", "of_org")
    collapsed = collapsed.withColumn("is_collapsed", F.lit(True))
    by_id = single_rows.groupBy(F.col("org_id").alias("of_org"), F.col("who_id").alias("old_id"))
    entry = F.struct(F.struct("engagement_id", "engaged_at"), "alias")
    aliases = by_id.agg(F.map_from_entries(F.collect_list(entry)).alias("single_rows"))
    new_id = F.expr("if(is_collapsed, new_id, old_id)")
    joined = collapsed.join(aliases, ["of_org", "old_id"], "full_outer")
    return joined.select("of_org", "old_id", new_id.alias("new_id"), "single_rows")


def _pending(log: DataFrame) -> DataFrame:
    """Return the pending requests of the log: those whose newest row has the stored status `parked`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    newest_first = Window.partitionBy(_REQUEST_KEY).orderBy(F.desc("batch_id"))
    numbered = log.withColumn("nth", F.row_number().over(newest_first))
    return numbered.where("nth = 1 and status = 'parked'").drop("nth")


def _has_work(tables: LakeTables, spark: SparkSession, since: Mapping[str, int]) -> bool:
    """Return whether a request is pending, or new rows may be late."""
    log = tables.read(spark, MUTATION_REQUEST)
    has_new_rows = bool(ingested_versions(tables, since.get(ENGAGEMENT)))
    if has_new_rows and not applied_requests(log).isEmpty():
        return True
    return not _pending(log).isEmpty()
