"""The mutation stream: requests to convert, merge and delete ids, collapsed to one map and applied in one MERGE.

A request acts on rows that engaged until it was executed, so the map has an id for each span of engaged_at, also for
the day that a request names. Late arrivals follow the requests of their id in the same MERGE (see `settled`).
Its source is each row that changes, with its final ids: columns of ids are independent, but any of them deletes the
row.

The outcome of a batch is decided once, and durable before the first row changes: the rows of `mutation_request` that a
batch appends are its new and its pending requests, each with its status. The map follows from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.engagement.batch import BatchMessages, DeadLetterCommit, Stream, batch_id_column
from lake_assets.engagement.checkpoint import DATES_BIND, Batch
from lake_assets.engagement.delta_log import batch_statement
from lake_assets.engagement.grouped import aliases_by_org, attempt_by_org, changed_aliases_by_org, with_part
from lake_assets.engagement.messages import mutation_format
from lake_assets.engagement.notifications import DATA_COMMIT, NotificationCommit
from lake_assets.engagement.pruning import DateSpan, MergeScope, day_ranges, merge_scope, spans_of_dates, spans_of_days
from lake_assets.engagement.requests import PERSON
from lake_assets.engagement.settled import (
    IS_AS_SENT,
    ROW_ID,
    Former,
    Outcome,
    Outcomes,
    SettledCommit,
    by_id,
    engaged_within,
    final_records,
    former,
    ingested_versions,
    inserted_rows,
    orgs_of,
    pending_batch,
    pending_requests,
    settled_requests,
    upgrade,
    was_applied,
    with_ids,
    with_record_ids,
)
from lake_assets.engagement.tables import (
    ENGAGEMENT,
    ERASURE,
    MUTATION_REQUEST,
    MUTATION_REQUEST_COLUMNS,
    ORG,
    LakeTables,
    applied_requests,
    row_columns,
    sent,
)
from lake_assets.engagement.topics import KafkaTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, MergeIntoWriter, SparkSession

    from lake_assets.engagement.lake import EngagementLake

_REQUEST_KEY = ["org_id", "request_id"]
_NAMED = ["org_id", "column", "part", "old_id", "executed_at", "engagement_date"]
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
        asked = with_part(requests, found.parts, "old_id")
        named = asked.select(_NAMED).unionByName(applied.select(_NAMED))
        asked_for, names_days = _spans_of(requests)
        scope = merge_scope(asked_for)
        dated = names_days or found.names_days
        present = checkpoint_rows(self._present(batch, named, scope, found.arrivals, dated=dated))
        outcomes = attempt_by_org(
            with_record_ids(asked, tables.lake),
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
        self.outcomes.keep(batch, Outcome(tried, found, scope))

    def _present(
        self, batch: Batch, names: DataFrame, scope: MergeScope, arrivals: DataFrame | None, *, dated: bool
    ) -> DataFrame:
        """Return the rows that a request may find, grouped by the first one that names their id since they engaged.

        Args:
            names: `_NAMED` of the requests to try, and of applied ones that concern the same rows.
            scope: Orgs and dates of these rows.
            arrivals: As `new_rows` returns them.
            dated: Whether one of the requests names a day.

        Returns:
            org_id string, column string, part int, id string, engaged_at timestamp, day date, is_as_sent boolean,
            first_date date, last_date date. engaged_at is when that request was executed, which for all requests is as
            good as the row's own time; day is null unless one of them names a day. is_as_sent is also true for new rows
            without a sent id.
        """
        from pyspark.sql import functions as F

        ids = ["org_id", "column", "id"]
        named = names.groupBy("org_id", "column", "part", F.col("old_id").alias("id")).agg(
            F.sort_array(F.collect_set("executed_at")).alias("executed")
        )
        rows_before = self.messages.tables.read_for(self.messages.spark, batch, ENGAGEMENT)
        engagements = by_id(rows_before.where(scope.condition), self.messages.tables.lake)
        since = F.filter("executed", lambda executed: executed >= F.col("engaged_at"))
        rows = engagements.join(named, ids).withColumn("found_at", F.get(since, F.lit(0)))
        rows = rows.where("found_at is not null").select(*ROW_ID, "part", IS_AS_SENT, "engagement_date", "found_at")
        if arrivals is not None:
            new = arrivals.select(*ROW_ID, F.lit(True).alias("is_new"))
            rows = rows.join(new, ROW_ID, "left").withColumn(IS_AS_SENT, F.col(IS_AS_SENT) | F.expr("is_new is true"))
        day = F.col("engagement_date") if dated else F.lit(None).cast("date")
        return rows.groupBy(*ids, "part", F.col("found_at").alias("engaged_at"), day.alias("day"), IS_AS_SENT).agg(
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
                "column": F.coalesce("column", F.lit(self.messages.tables.lake.ids[0])),
            }
        )
        if batch.rules < DATES_BIND:
            rows = rows.withColumns({"column": F.lit(PERSON), "engagement_date": F.lit(None).cast("date")})
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

        lake = self.tables.lake
        requests = applied_requests(outcome.tried)
        found = outcome.found or former(self.tables, self.spark, batch, requests)
        records = final_records(requests, lake)
        arrived = with_part(_arrived_ids(self.spark, found.arrivals), found.parts, "id")
        asked = with_part(requests, found.parts, "old_id")
        spans = checkpoint_rows(changed_aliases_by_org(found.applied, asked, arrived))
        rows = self._rows(batch, outcome, spans, found)
        changes = _changes(rows, spans, aliases_by_org(asked), lake)
        if records is not None:
            replaced = self._replaced(batch, records)
            changes = changes.join(replaced, ["org_id", "engagement_id"], "left_anti")
            changes = changes.unionByName(replaced, allowMissingColumns=True)
            changes = changes.unionByName(inserted_rows(records, lake), allowMissingColumns=True)
        changes, counted = checkpoint_and_aggregate(changes, [F.count(F.lit(1)).alias("changes")])
        if counted["changes"] == 0:
            return
        scope = merge_scope(spans_of_days(changes))
        merge = _merge(changes, self.tables.identifier(ENGAGEMENT), scope, lake)
        with batch_statement(self.spark, app_id, batch.batch_id):
            merge.merge()

    def _rows(self, batch: Batch, outcome: Outcome, spans: DataFrame, found: Former) -> DataFrame:
        """Return the rows that may change, as the batch found them, with `_IS_NEW` and all ids.

        Args:
            spans: As `changed_aliases_by_org` returns them.
        """
        from pyspark.sql import functions as F

        read = [*outcome.scope.spans] if outcome.scope else spans_of_dates(applied_requests(outcome.tried))
        if found.arrivals is not None:
            led = spans.select("org_id", "column", F.col("old_id").alias("id")).distinct()
            moved = found.arrivals.join(led, led.columns, "left_semi")
            read += spans_of_days(moved.withColumn("engagement_date", F.to_date("engaged_at")))
        scope = merge_scope(read)
        rows = self.tables.read_for(self.spark, batch, ENGAGEMENT).where(scope.condition)
        rows = with_ids(rows, self.tables.lake).withColumn(_IS_NEW, F.lit(False))
        if found.arrivals is None or not found.may_be_late:
            return rows
        key = ["org_id", "engagement_id", "engaged_at"]
        new = found.arrivals.select(*key, F.lit(True).alias("came")).distinct()
        return rows.join(new, key, "left").withColumn(_IS_NEW, F.col("came").isNotNull()).drop("came")

    def _replaced(self, batch: Batch, records: DataFrame) -> DataFrame:
        """Return the rows that records replace, as changes that delete them."""
        from pyspark.sql import functions as F

        lake = self.tables.lake
        rows = self.tables.read_for(self.spark, batch, ENGAGEMENT).where(F.col("org_id").isin(orgs_of(records)))
        replaced = with_ids(rows, lake).join(F.broadcast(records), ["org_id", "engagement_id"], "left_semi")
        return replaced.select(*_key(lake), "engagement_date", F.lit(True).alias("gone")).dropDuplicates(_key(lake))


_IS_NEW = "is_new"
"""Whether a row came since the last batch of mutation; only told if some of these may have no sent id."""


def _key(lake: EngagementLake) -> list[str]:
    """Return the columns that tell rows apart whose ids change."""
    return ["org_id", "engagement_id", "engaged_at", *lake.ids, *(sent(column) for column in lake.ids)]


def _changes(rows: DataFrame, spans: DataFrame, present_spans: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the rows that change.

    Args:
        rows: Of `engagement`, with `_IS_NEW`.
        spans: As `changed_aliases_by_org` returns them.
        present_spans: As `aliases_by_org` returns them. Rows without a sent id follow them.

    Returns:
        `_key`, engagement_date date, gone boolean, and for each id column `new_<column>`; each row once.
    """
    from pyspark.sql import functions as F

    key = ["of_org", "of_id"]
    collected = F.sort_array(F.collect_list(F.struct("after", "until", "new_id")))
    named, gone, moved, new_ids = F.lit(False), F.lit(False), F.lit(False), {}
    for column in lake.ids:
        of_column = [
            found.where(F.col("column") == column)
            .groupBy(F.col("org_id").alias("of_org"), F.col("old_id").alias("of_id"))
            .agg(collected.alias(f"{name}_{column}"))
            for name, found in (("spans", spans), ("present", present_spans))
        ]
        both = of_column[0].join(of_column[1], key, "full_outer")
        same_id = F.col("org_id").eqNullSafe(F.col("of_org")) & (F.coalesce(sent(column), column) == F.col("of_id"))
        rows = rows.join(both, same_id, "left").drop(*key)
        is_as_sent = F.col(sent(column)).isNotNull() | F.col(_IS_NEW)
        of_row = F.when(is_as_sent, F.col(f"spans_{column}")).otherwise(F.col(f"present_{column}"))
        span = F.get(F.filter(of_row, lambda span: engaged_within(span["after"], span["until"])), F.lit(0))
        new_id = F.when(span.isNotNull(), span["new_id"]).otherwise(F.col(column))
        named |= F.col(f"spans_{column}").isNotNull() | F.col(f"present_{column}").isNotNull()
        gone |= span.isNotNull() & new_id.isNull()
        moved |= ~new_id.eqNullSafe(F.col(column))
        new_ids[f"new_{column}"] = new_id
    changed = rows.where(named).withColumns({"gone": gone, "moved": moved, **new_ids}).where("gone or moved")
    return changed.select(*_key(lake), "engagement_date", "gone", *new_ids).dropDuplicates(_key(lake))


def _merge(changes: DataFrame, table: str, scope: MergeScope, lake: EngagementLake) -> MergeIntoWriter:
    """Return the MERGE that moves and deletes rows, and puts records in place.

    Args:
        changes: As `_changes` returns them, and `row` of the records.
        table: Name of the engagement table in SQL.
    """
    from pyspark.sql import functions as F

    key = _key(lake)
    source = changes.drop("engagement_date").withColumnsRenamed({name: f"of_{name}" for name in key})
    same_row = scope.condition
    for name in ("org_id", "engagement_id", "engaged_at"):
        same_row &= F.col(name) == F.col(f"of_{name}")
    for name in key[3:]:
        same_row &= F.col(name).eqNullSafe(F.col(f"of_{name}"))
    merge = source.mergeInto(table, same_row)
    merge = merge.whenMatched(F.col("gone")).delete()
    merge = merge.whenMatched().update({column: F.col(f"new_{column}") for column in lake.ids})
    if "row" in source.columns:
        values = {name: F.col(f"row.{name}") for name in row_columns(lake)}
        merge = merge.whenNotMatched(F.col("row").isNotNull()).insert(values)
    return merge


def _spans_of(requests: DataFrame) -> tuple[list[DateSpan], bool]:
    """Return the spans of rows on which requests may act: until they were executed, or on the days that they name.

    Returns:
        The spans, and whether a request names a day.
    """
    from pyspark.sql import functions as F

    is_dated = F.col("engagement_date").isNotNull()
    by_org = requests.groupBy("org_id").agg(
        F.max(F.when(~is_dated, F.to_date("executed_at"))).alias("last"),
        F.collect_set("engagement_date").alias("days"),
    )
    found, names_days = list[DateSpan](), False
    for row in by_org.collect():
        org, last = row["org_id"], row["last"]
        if last is not None:
            found.append(DateSpan((org,), last=last))
        names_days |= bool(row["days"])
        found += [DateSpan((org,), *days) for days in day_ranges([d for d in row["days"] if not last or d > last], 0)]
    return found, names_days


def _arrived_ids(spark: SparkSession, arrivals: DataFrame | None) -> DataFrame:
    """Return the ids with new rows: org_id string, column string, id string."""
    if arrivals is None:
        return spark.createDataFrame([], "org_id string, column string, id string")
    return arrivals.select("org_id", "column", "id").distinct()


def _with_pending(rows: DataFrame, pending: DataFrame | None) -> DataFrame:
    """Return rows, and the same columns of pending requests if there are any."""
    return rows if pending is None else rows.unionByName(pending.select(rows.columns))


def _has_work(tables: LakeTables, since: Mapping[str, int]) -> bool:
    """Return whether a request is pending, or new rows may be late."""
    if ingested_versions(tables, since.get(ENGAGEMENT)) and was_applied(tables):
        return True
    return pending_batch(tables) is not None
