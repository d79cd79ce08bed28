"""The mutation stream: requests to convert, merge and delete ids, collapsed to one map and applied in one MERGE.

Rows that arrived after requests of their id were applied follow them in the same MERGE (`late.py`).

What is to be done is decided once, and durable before the first row changes: the rows of `mutation_request` that a
batch appends are its requests, new ones and those parked before, each with its outcome. The map follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.idempotent import statement
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.messages import mutation_format
from lake_assets.engagement.model.tables import (
    ENGAGEMENT,
    ERASURE,
    MUTATION_REQUEST,
    MUTATION_REQUEST_COLUMNS,
    ORG,
    LakeTables,
    applied,
)
from lake_assets.engagement.notifications.notify import Notification
from lake_assets.engagement.requests.grouped import collapsed, tried
from lake_assets.engagement.streams.batch import Stream
from lake_assets.engagement.streams.late_arrivals import ROW_ID, arrivals, came, late_rows
from lake_assets.engagement.streams.message_validation import DeadLetters, Messages, number
from lake_assets.engagement.streams.pruning import Reach, dated
from lake_assets.engagement.streams.records import COLUMNS, arriving, insertions, replaced_rows, with_record_ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, MergeIntoWriter, SparkSession

_ID = ["org_id", "request_id"]
_DATES = ("first_date", "last_date")


def mutation(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """The stream, on a Kafka cluster: servers is `host:port`, comma-separated."""
    topic = KafkaTopic(servers, tables.lake.topic("mutation"))
    messages = Messages(tables, spark, topic, mutation_format(tables.lake))
    notification = Notification(tables, spark, tables.lake.app_name("mutation"))
    processes = (Requests(messages), Mutations(tables, spark), DeadLetters(messages), notification)
    waiting = partial(_any_waiting, tables, spark)
    return Stream("mutation", tables, topic.state, processes, reads=(ORG, ERASURE), waiting=waiting)


@dataclass(frozen=True)
class Requests:
    """The process that decides which requests are carried out, parked or dead: on the table as it was before."""

    messages: Messages
    name: str = "request"
    table: str = MUTATION_REQUEST

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        tables, spark = self.messages.tables, self.messages.spark
        log = tables.read(spark, MUTATION_REQUEST, version=batch.reads[MUTATION_REQUEST])
        requests = checkpoint_rows(
            self._new(batch, log).unionByName(_parked(log)).withColumn("batch_id", number(batch))
        )
        former = applied(log).join(requests.select("org_id").distinct(), "org_id", "left_semi")
        present = checkpoint_rows(self._present(batch, requests.unionByName(former)))
        carried = with_record_ids(requests, tables.lake)
        outcomes = tried(carried, former, present, max_attempts=tables.lake.max_attempts)
        first, last = (least(name).alias(name) for least, name in zip((F.min, F.max), _DATES, strict=True))
        dates = present.groupBy("org_id", F.col("who_id").alias("old_id")).agg(first, last)
        rows = outcomes.drop(*_DATES).join(dates, ["org_id", "old_id"], "left").select(*MUTATION_REQUEST_COLUMNS)
        tables.append(MUTATION_REQUEST, rows, app_id=app_id, batch_id=batch.batch_id)

    def _present(self, batch: Batch, requests: DataFrame) -> DataFrame:
        """The ids that requests name and rows have: org_id string, who_id string; arrived timestamp: when rows engaged
        that just came, null for those that were there, and for all as long as no request was applied; and the dates of
        these rows, first_date and last_date.

        requests: as `mutation_request` has them.
        """
        from pyspark.sql import functions as F

        tables, spark = self.messages.tables, self.messages.spark
        named = requests.select("org_id", F.col("old_id").alias("who_id")).distinct()
        orgs = [row["org_id"] for row in named.select("org_id").distinct().orderBy("org_id").collect()]
        rows = tables.read(spark, ENGAGEMENT, version=batch.reads[ENGAGEMENT]).where(F.col("org_id").isin(orgs))
        found = rows.join(named, ["org_id", "who_id"], "left_semi").select(*ROW_ID, "engagement_date")
        came = arrivals(tables, spark, batch)
        arrived = F.lit(None).cast("timestamp")
        if came is not None:
            found = found.join(came.withColumn("new", F.lit(True)), ROW_ID, "left")
            arrived = F.when(F.col("new"), F.col("engaged_at"))
        first, last = (least("engagement_date").alias(name) for least, name in zip((F.min, F.max), _DATES, strict=True))
        return found.groupBy("org_id", "who_id", arrived.alias("arrived")).agg(first, last)

    def _new(self, batch: Batch, log: DataFrame) -> DataFrame:
        """The sound requests of the batch, each id once, in the first place where replay meets it."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        first = F.row_number().over(Window.partitionBy(_ID).orderBy("executed_at", "partition", "offset"))
        sound = self.messages.checkpointed(batch).where("reason is null").withColumn("nth", first).where("nth = 1")
        unseen = sound.join(log.select(_ID).distinct(), _ID, "left_anti")
        fresh = unseen.withColumns({"attempts": F.lit(0), "status": F.lit("pending"), "batch_id": number(batch)})
        fresh = fresh.withColumns({name: F.lit(None).cast("date") for name in _DATES})
        return fresh.select(*MUTATION_REQUEST_COLUMNS)


@dataclass(frozen=True)
class Mutations:
    """The process that applies what the requests of the batch collapse to. Rows of an id go to its last one at once.

    Late rows go where they would be, had they been there before.
    """

    tables: LakeTables
    spark: SparkSession
    name: str = "data"
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        log = self.tables.read(self.spark, MUTATION_REQUEST, version=done["request"])
        requests = applied(log.where(F.col("batch_id") == batch.batch_id))
        records = arriving(requests, self.tables.lake)
        late = checkpoint_rows(self._late(batch, requests, records))
        changes = _changes(collapsed(requests), late)
        if records is not None:
            changes = changes.unionByName(insertions(records), allowMissingColumns=True)
        changes = checkpoint_rows(changes)
        if changes.isEmpty():
            return
        reach = dated(requests.select("org_id", *_DATES).unionByName(_dates(late)))
        merge = _merge(changes, self.tables.identifier(ENGAGEMENT), reach)
        if records is not None:
            merge = merge.whenNotMatched(F.col("row").isNotNull()).insert({n: F.col(f"row.{n}") for n in COLUMNS})
        with statement(self.spark, app_id, batch.batch_id):
            merge.merge()

    def _late(self, batch: Batch, requests: DataFrame, records: DataFrame | None) -> DataFrame:
        """The rows that have a way of their own: late ones, and those that records replace, which go."""
        late = late_rows(self.tables, self.spark, batch, requests)
        if records is not None:
            replaced = replaced_rows(self.tables, self.spark, batch, records)
            late = late.join(replaced, ROW_ID, "left_anti").unionByName(replaced)
        return late


def _merge(changes: DataFrame, table: str, reach: Reach) -> MergeIntoWriter:
    """What moves and deletes rows. changes: as `_changes` gives them. table: its identifier."""
    from pyspark.sql import functions as F

    same = (F.col("org_id") == F.col("of_org")) & (F.col("who_id") == F.col("old_id")) & reach.condition
    row = F.struct("engagement_id", "engaged_at")
    moves = F.map_contains_key("late", row)
    final = F.when(moves, F.element_at("late", row)).otherwise(F.col("new_id"))
    merge = changes.mergeInto(table, same).whenMatched(final.isNull()).delete()
    return merge.whenMatched(final != F.col("who_id")).update({"who_id": final})


def _dates(late: DataFrame) -> DataFrame:
    """The dates of late rows, as requests have those of theirs: org_id string, first_date date, last_date date."""
    from pyspark.sql import functions as F

    return late.select("org_id", *[F.to_date("engaged_at").alias(name) for name in _DATES])


def _changes(ids: DataFrame, late: DataFrame) -> DataFrame:
    """One row for each id that rows leave: of_org string, old_id string, new_id string (null: they go), and late: a map
    of (engagement_id, engaged_at) to the id of such a row, which counts before new_id; null if none of them is late.

    ids: as `collapsed` gives them. late: as `late_rows` does.
    """
    from pyspark.sql import functions as F

    on = ids.withColumnRenamed("org_id", "of_org").withColumn("collapsed", F.lit(True))
    entry = F.struct(F.struct("engagement_id", "engaged_at"), "alias")
    by_id = late.groupBy(F.col("org_id").alias("of_org"), F.col("who_id").alias("old_id"))
    moved = by_id.agg(F.map_from_entries(F.collect_list(entry)).alias("late"))
    new_id = F.when(F.col("collapsed"), F.col("new_id")).otherwise(F.col("old_id"))
    return on.join(moved, ["of_org", "old_id"], "full_outer").select("of_org", "old_id", new_id.alias("new_id"), "late")


def _parked(log: DataFrame) -> DataFrame:
    """The requests that wait, by the newest row of each."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    newest = F.row_number().over(Window.partitionBy(_ID).orderBy(F.desc("batch_id")))
    return log.withColumn("nth", newest).where("nth = 1 and status = 'parked'").drop("nth")


def _any_waiting(tables: LakeTables, spark: SparkSession, since: Mapping[str, int]) -> bool:
    """Whether a request is parked, or rows came that may be late."""
    log = tables.read(spark, MUTATION_REQUEST)
    if came(tables, since.get(ENGAGEMENT)) and not applied(log).isEmpty():
        return True
    return not _parked(log).isEmpty()
