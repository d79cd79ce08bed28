"""The mutation stream: requests to convert, merge and delete ids, collapsed to one map and applied in one MERGE.

A request acts on rows that engaged until it was executed, so the map has an id for each span of engaged_at. Late
arrivals follow the requests of their id in the same MERGE (see `late_arrivals`).

The outcome of a batch is decided once, and durable before the first row changes: the rows of `mutation_request` that a
batch appends are its new and its pending requests, each with its status. The map follows from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    SENT_WHO_ID,
)
from lake_assets.engagement.model.tables import LakeTables, applied_requests
from lake_assets.engagement.notifications.notify import DATA_COMMIT, NotificationCommit
from lake_assets.engagement.requests.grouped import aliases_by_org, attempt_by_org, changed_aliases_by_org
from lake_assets.engagement.streams.batch import Stream
from lake_assets.engagement.streams.batch_messages import BatchMessages, DeadLetterCommit, batch_id_column
from lake_assets.engagement.streams.late_arrivals import (
    IS_AS_SENT,
    LATE_ROWS,
    ROW_ID,
    engaged_within,
    former,
    ingested_versions,
    late_rows,
    sent_id,
    with_sent_id,
)
from lake_assets.engagement.streams.pruning import MergeScope, scope_of_dates
from lake_assets.engagement.streams.records import (
    ROW_COLUMNS,
    final_records,
    inserted_rows,
    replaced_rows,
    with_record_ids,
)
from lake_assets.engagement.streams.settled.outcomes import Outcome, Outcomes
from lake_assets.engagement.streams.settled.settled_requests import (
    orgs_of,
    pending_batch,
    pending_requests,
    settled_requests,
    was_applied,
)
from lake_assets.engagement.streams.settled.settling import SettledCommit, upgrade

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, MergeIntoWriter, SparkSession

_REQUEST_KEY = ["org_id", "request_id"]
_NAMED = ["org_id", "old_id", "executed_at"]
_DATE_RANGE = ("first_date", "last_date")


def mutation(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """Return the stream.

    Args:
        servers: Kafka's `host:port`, comma-separated.
    """
    topic = KafkaTopic(servers, tables.lake.topic("mutation"))
    messages = BatchMessages(tables, spark, topic, mutation_format(tables.lake))
    outcomes = Outcomes(tables, spark)
    commits = (
        RequestCommit(messages, outcomes),
        MutationCommit(tables, spark, outcomes),
        SettledCommit(outcomes),
        DeadLetterCommit(messages),
        NotificationCommit(tables, spark, tables.lake.app_name("mutation")),
    )
    has_work = partial(_has_work, tables)
    return Stream("mutation", tables, topic.state, commits, (ORG, ERASURE), has_work, partial(upgrade, tables, spark))


@dataclass(frozen=True)
class RequestCommit:
    """Decides which requests are applied, pending or dead, on the engagement table as it was before the batch."""

    messages: BatchMessages
    outcomes: Outcomes
    name: str = "request"
    table: str = MUTATION_REQUEST

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        tables, spark = self.messages.tables, self.messages.spark
        pending = pending_requests(tables, spark, batch)
        orgs = orgs_of(_with_pending(self.messages.valid(batch).select("org_id"), pending))
        to_try = _with_pending(self._new(batch, pending, orgs), pending)
        requests = checkpoint_rows(to_try.withColumn("batch_id", batch_id_column(batch)))
        found = former(tables, spark, batch, requests, orgs)
        applied = found.applied.where(F.col("org_id").isin(orgs))
        named = requests.select(_NAMED).unionByName(applied.select(_NAMED))
        present = checkpoint_rows(self._present(batch, named, orgs, found.arrivals))
        outcomes = attempt_by_org(
            with_record_ids(requests, tables.lake),
            applied,
            present,
            max_attempts=tables.lake.max_attempts,
        )
        ranges = present.groupBy("org_id").agg(
            F.min("first_date").alias("first_date"),
            F.max("last_date").alias("last_date"),
        )
        rows = outcomes.drop(*_DATE_RANGE).join(ranges, "org_id", "left")
        tried = checkpoint_rows(rows.select(*MUTATION_REQUEST_COLUMNS))
        tables.append(MUTATION_REQUEST, tried, app_id=app_id, batch_id=batch.batch_id)
        self.outcomes.keep(batch, Outcome(tried, found))

    def _present(self, batch: Batch, names: DataFrame, orgs: list[str], arrivals: DataFrame | None) -> DataFrame:
        """Return the rows that a request may find, grouped by the first one that names their id since they engaged.

        Args:
            names: `_NAMED` of the requests to try, and of applied ones that concern the same rows.
            orgs: Orgs of the names.
            arrivals: As `new_rows` returns them.

        Returns:
            org_id string, who_id string, engaged_at timestamp, is_as_sent boolean, first_date date, last_date date.
            engaged_at is when that request was executed, which for all requests is as good as the row's own time.
            is_as_sent is also true for new rows without a sent id.
        """
        from pyspark.sql import functions as F

        by_id = names.groupBy("org_id", F.col("old_id").alias("who_id"))
        named = by_id.agg(F.sort_array(F.collect_set("executed_at")).alias("executed"))
        rows_before = self.messages.tables.read_for(self.messages.spark, batch, ENGAGEMENT)
        engagements = with_sent_id(rows_before).where(F.col("org_id").isin(orgs))
        since = F.filter("executed", lambda executed: executed >= F.col("engaged_at"))
        rows = engagements.join(named, ["org_id", "who_id"]).withColumn("found_at", F.get(since, F.lit(0)))
        rows = rows.where("found_at is not null").select(*ROW_ID, IS_AS_SENT, "engagement_date", "found_at")
        if arrivals is not None:
            new = arrivals.select(*ROW_ID, F.lit(True).alias("is_new"))
            rows = rows.join(new, ROW_ID, "left").withColumn(IS_AS_SENT, F.col(IS_AS_SENT) | F.expr("is_new is true"))
        return rows.groupBy("org_id", "who_id", F.col("found_at").alias("engaged_at"), IS_AS_SENT).agg(
            F.min("engagement_date").alias("first_date"),
            F.max("engagement_date").alias("last_date"),
        )

    def _new(self, batch: Batch, pending: DataFrame | None, orgs: Iterable[str]) -> DataFrame:
        """Return the valid requests of the batch that are not known, each id once, the first one in replay."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        in_replay = Window.partitionBy(_REQUEST_KEY).orderBy("executed_at", "partition", "offset")
        valid = self.messages.valid(batch)
        settled = settled_requests(self.messages.tables, self.messages.spark, batch, orgs)
        known = _with_pending(settled.select(_REQUEST_KEY), pending).distinct()
        numbered = valid.withColumn("nth", F.row_number().over(in_replay))
        unseen = numbered.where("nth = 1").join(known, _REQUEST_KEY, "left_anti")
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
    outcomes: Outcomes
    name: str = DATA_COMMIT
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        outcome = self.outcomes.take(batch, done)
        self._apply(batch, outcome, app_id)
        self.outcomes.keep(batch, outcome)

    def _apply(self, batch: Batch, outcome: Outcome, app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_and_aggregate, checkpoint_rows

        requests = applied_requests(outcome.tried)
        found = outcome.found or former(self.tables, self.spark, batch, requests)
        arrivals, applied = found.arrivals, found.applied
        records = final_records(requests, self.tables.lake)
        single_rows = self._single_rows(batch, late_rows(requests, found), records)
        spans = changed_aliases_by_org(applied, requests, _arrived_ids(self.spark, arrivals))
        if arrivals is not None:
            spans = checkpoint_rows(spans)
        changes = _changes(spans, aliases_by_org(requests), single_rows)
        if records is not None:
            changes = changes.unionByName(inserted_rows(records), allowMissingColumns=True)
        changes, counted = checkpoint_and_aggregate(changes, [F.count(F.lit(1)).alias("changes")])
        if counted["changes"] == 0:
            return
        dates = requests.select("org_id", *_DATE_RANGE).unionByName(_dates(single_rows))
        if arrivals is not None:
            moved = spans.select("org_id", F.col("old_id").alias("who_id")).distinct()
            dates = dates.unionByName(_dates(arrivals.join(moved, ["org_id", "who_id"], "left_semi")))
        merge = _merge(changes, self.tables.identifier(ENGAGEMENT), scope_of_dates(dates))
        if records is not None:
            values = {name: F.col(f"row.{name}") for name in ROW_COLUMNS}
            merge = merge.whenNotMatched(F.col("row").isNotNull()).insert(values)
        with batch_statement(self.spark, app_id, batch.batch_id):
            merge.merge()

    def _single_rows(self, batch: Batch, late: DataFrame | None, records: DataFrame | None) -> DataFrame:
        """Return the rows that do not follow the map: late ones, and those that records replace, which are deleted."""
        from lake_assets.connections.row_checkpoint import checkpoint_rows

        rows = late if late is not None else self.spark.createDataFrame([], LATE_ROWS)
        if records is not None:
            replaced = replaced_rows(self.tables, self.spark, batch, records)
            rows = rows.join(replaced, ROW_ID, "left_anti").unionByName(replaced)
        is_empty = late is None and records is None
        return rows if is_empty else checkpoint_rows(rows)


def _merge(changes: DataFrame, table: str, scope: MergeScope) -> MergeIntoWriter:
    """Return the MERGE that moves and deletes rows.

    Args:
        changes: As `_changes` returns them.
        table: Name of the engagement table in SQL.
    """
    from pyspark.sql import functions as F

    same_id = F.expr("org_id = of_org") & (sent_id() == F.col("old_id"))
    row_key = F.struct("engagement_id", "engaged_at")
    has_alias = F.map_contains_key("single_rows", row_key)
    spans = F.when(F.col(SENT_WHO_ID).isNull(), F.col("present_spans")).otherwise(F.col("spans"))
    span = F.get(F.filter(spans, lambda span: engaged_within(span["after"], span["until"])), F.lit(0))
    by_span = F.when(span.isNotNull(), span["new_id"]).otherwise(F.col("who_id"))
    final_id = F.when(has_alias, F.element_at("single_rows", row_key)).otherwise(by_span)
    merge = changes.mergeInto(table, same_id & scope.condition)
    merge = merge.whenMatched(final_id.isNull()).delete()
    return merge.whenMatched(final_id != F.col("who_id")).update({"who_id": final_id})


def _dates(single_rows: DataFrame) -> DataFrame:
    """Return the dates of single rows as for requests: org_id string, first_date date, last_date date."""
    from pyspark.sql import functions as F

    day = F.to_date("engaged_at")
    return single_rows.select("org_id", *[day.alias(name) for name in _DATE_RANGE])


def _changes(aliases: DataFrame, present_aliases: DataFrame, single_rows: DataFrame) -> DataFrame:
    """Return one row for each id whose rows change.

    Args:
        aliases: As `changed_aliases_by_org` returns them.
        present_aliases: As `aliases_by_org` returns them. Rows without a sent id follow them.
        single_rows: `LATE_ROWS`.

    Returns:
        of_org string, old_id string, spans and present_spans: arrays of (after, until, new_id), null if there are none;
        single_rows: map of (engagement_id, engaged_at) → id of a row that does not follow them, null if there are none.
    """
    from pyspark.sql import functions as F

    of_id = [F.col("org_id").alias("of_org"), F.col("old_id")]
    collected = F.sort_array(F.collect_list(F.struct("after", "until", "new_id")))
    spans = aliases.groupBy(*of_id).agg(collected.alias("spans"))
    present_spans = present_aliases.groupBy(*of_id).agg(collected.alias("present_spans"))
    by_id = single_rows.withColumnRenamed("who_id", "old_id").groupBy(*of_id)
    entry = F.struct(F.struct("engagement_id", "engaged_at"), "alias")
    singles = by_id.agg(F.map_from_entries(F.collect_list(entry)).alias("single_rows"))
    key = ["of_org", "old_id"]
    return spans.join(present_spans, key, "full_outer").join(singles, key, "full_outer")


def _arrived_ids(spark: SparkSession, arrivals: DataFrame | None) -> DataFrame:
    """Return the ids with new rows: org_id string, id string."""
    if arrivals is None:
        return spark.createDataFrame([], "org_id string, id string")
    return arrivals.selectExpr("org_id", "who_id AS id").distinct()


def _with_pending(rows: DataFrame, pending: DataFrame | None) -> DataFrame:
    """Return rows, and the same columns of pending requests if there are any."""
    return rows if pending is None else rows.unionByName(pending.select(rows.columns))


def _has_work(tables: LakeTables, since: Mapping[str, int]) -> bool:
    """Return whether a request is pending, or new rows may be late."""
    if ingested_versions(tables, since.get(ENGAGEMENT)) and was_applied(tables):
        return True
    return pending_batch(tables) is not None
