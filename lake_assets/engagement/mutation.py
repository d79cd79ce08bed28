"""The mutation stream: requests to convert, merge and delete ids, collapsed to one map and applied in one MERGE.

What is to be done is decided once, and durable before the first row changes: the rows of `mutation_request` that a
batch appends are its requests, new ones and those parked before, each with its outcome. The map follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.engagement.batch import Stream
from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.collapsing import collapsed, tried
from lake_assets.engagement.idempotent import statement
from lake_assets.engagement.judging import DeadLetters, Messages
from lake_assets.engagement.kafka import KafkaTopic
from lake_assets.engagement.messages import MUTATION_FORMAT
from lake_assets.engagement.notifying import Notification
from lake_assets.engagement.tables import ENGAGEMENT, MUTATION_REQUEST, MUTATION_REQUEST_COLUMNS, ORG, LakeTables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ID = ["org_id", "request_id"]


def mutation(tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """The stream, on a Kafka cluster: servers is `host:port`, comma-separated."""
    topic = KafkaTopic(servers, tables.lake.topic("mutation"))
    messages = Messages(tables, spark, topic, MUTATION_FORMAT)
    notification = Notification(tables, spark, tables.lake.app_name("mutation"))
    processes = (Requests(messages), Mutations(tables, spark), DeadLetters(messages), notification)
    waiting = partial(_any_parked, tables, spark)
    return Stream("mutation", tables, topic.state, processes, reads=(ORG,), waiting=waiting)


@dataclass(frozen=True)
class Requests:
    """The process that decides which requests are carried out, parked or dead: on the table as it was before."""

    messages: Messages
    name: str = "request"
    table: str = MUTATION_REQUEST

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        tables, spark = self.messages.tables, self.messages.spark
        log = tables.read(spark, MUTATION_REQUEST, version=batch.reads[MUTATION_REQUEST])
        requests = self._new(batch, log).unionByName(_parked(log)).withColumn("batch_id", _number(batch))
        rows = tables.read(spark, ENGAGEMENT, version=batch.reads[ENGAGEMENT]).select("org_id", "who_id").distinct()
        concerned = requests.select("org_id", F.col("old_id").alias("who_id"))
        present = rows.join(concerned, ["org_id", "who_id"], "left_semi")
        outcomes = tried(requests, present, max_attempts=tables.lake.max_attempts)
        tables.append(MUTATION_REQUEST, outcomes, app_id=app_id, batch_id=batch.batch_id)

    def _new(self, batch: Batch, log: DataFrame) -> DataFrame:
        """The sound requests of the batch, each id once, in the first place where replay meets it."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        first = F.row_number().over(Window.partitionBy(_ID).orderBy("executed_at", "partition", "offset"))
        sound = self.messages.of(batch).where("reason is null").withColumn("nth", first).where("nth = 1")
        unseen = sound.join(log.select(_ID).distinct(), _ID, "left_anti")
        fresh = unseen.withColumns({"attempts": F.lit(0), "status": F.lit("pending"), "batch_id": _number(batch)})
        return fresh.select(*MUTATION_REQUEST_COLUMNS)


@dataclass(frozen=True)
class Mutations:
    """The process that applies what the requests of the batch collapse to. Rows of an id go to its last one at once."""

    tables: LakeTables
    spark: SparkSession
    name: str = "data"
    table: str = ENGAGEMENT

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        log = self.tables.read(self.spark, MUTATION_REQUEST, version=done["request"])
        applied = log.where(F.col("batch_id") == batch.batch_id).where("status = 'applied'")
        orgs = [row["org_id"] for row in applied.select("org_id").distinct().orderBy("org_id").collect()]
        if not orgs:
            return
        changes = collapsed(applied).withColumnRenamed("org_id", "of_org")
        same = (F.col("org_id") == F.col("of_org")) & (F.col("who_id") == F.col("old_id")) & F.col("org_id").isin(orgs)
        merge = changes.mergeInto(self.tables.identifier(ENGAGEMENT), same)
        merge = merge.whenMatched(F.col("new_id").isNull()).delete()
        with statement(self.spark, app_id, batch.batch_id):
            merge.whenMatched().update({"who_id": F.col("new_id")}).merge()


def _parked(log: DataFrame) -> DataFrame:
    """The requests that wait, by the newest row of each."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    newest = F.row_number().over(Window.partitionBy(_ID).orderBy(F.desc("batch_id")))
    return log.withColumn("nth", newest).where("nth = 1 and status = 'parked'").drop("nth")


def _any_parked(tables: LakeTables, spark: SparkSession) -> bool:
    return not _parked(tables.read(spark, MUTATION_REQUEST)).isEmpty()


def _number(batch: Batch) -> Column:
    from pyspark.sql import functions as F

    return F.lit(batch.batch_id).cast("bigint")
