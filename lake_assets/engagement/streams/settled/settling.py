"""How requests become settled: a commit of each batch of mutation, and once the log of a lake of an earlier version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.delta_log import is_table, open_table, read_rows
from lake_assets.engagement.model.table_schemas import (
    ENGAGEMENT,
    MUTATION_REQUEST,
    SETTLED_REQUEST,
    SETTLED_REQUEST_COLUMNS,
    SETTLED_REQUEST_PROPERTIES,
    check_fields,
    spark_tables,
)
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.requests.grouped import RECORD_IDS
from lake_assets.engagement.streams.records import with_record_ids
from lake_assets.engagement.streams.settled.outcomes import Outcomes
from lake_assets.engagement.streams.settled.settled_requests import scoped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.engagement.model.lake import EngagementLake


@dataclass(frozen=True)
class SettledCommit:
    """Appends the requests that the batch has applied, and those that are dead now.

    It comes after the data commit, so a batch that is withdrawn has none.
    """

    outcomes: Outcomes
    name: str = "settled"
    table: str = SETTLED_REQUEST

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        tables = self.outcomes.tables
        settled = _settled(self.outcomes.take(batch, done).tried, tables.lake)
        tables.append(SETTLED_REQUEST, settled, app_id=app_id, batch_id=batch.batch_id)


def upgrade(tables: LakeTables, spark: SparkSession) -> None:
    """Add what a lake lacks that was made by an earlier version. It may be called again after any stop.

    Raises:
        ConfigurationError: The file of the lake declares fields that its table does not have.
    """
    check_fields(tables.lake, open_table(tables.location(ENGAGEMENT)).schema().fields)
    _ensure_settled(tables, spark)
    for schema in spark_tables(tables.lake):
        if schema.name in (ENGAGEMENT, MUTATION_REQUEST, SETTLED_REQUEST):
            known = {column.name for column in open_table(tables.location(schema.name)).schema().fields}
            added = ", ".join(f"`{name}` {kind}" for name, kind in schema.columns.items() if name not in known)
            if added:
                spark.sql(f"ALTER TABLE {tables.identifier(schema.name)} ADD COLUMNS ({added})")


def _ensure_settled(tables: LakeTables, spark: SparkSession) -> None:
    """Build the table of settled requests from the log, if the lake was made by a version that had none.

    It is created together with its rows. The requests of an open batch of mutation are left to its own commit.
    """
    from pyspark.sql import functions as F

    location = tables.location(SETTLED_REQUEST)
    if is_table(location):
        return
    last = tables.checkpoints.read(tables.lake.app_name("mutation"))
    is_open = last is not None and not last.finished
    version = last.batch.reads[MUTATION_REQUEST] if last is not None and is_open else None
    log = scoped(tables.read(spark, MUTATION_REQUEST, version=version)).withColumn(
        "engagement_date",
        F.lit(None).cast("date"),  # no request of that version was bound to its date
    )
    writer = _settled(log, tables.lake).write.format("delta").mode("error").partitionBy("org_id")
    writer.options(**SETTLED_REQUEST_PROPERTIES).save(location)


def prune_log(tables: LakeTables) -> None:
    """Remove the requests of former batches of mutation from the log. No batch may be open.

    Those that were applied or are dead are settled, and the last batch has tried the pending ones.
    """
    log = open_table(tables.location(MUTATION_REQUEST))
    batches = read_rows(log, ["batch_id"]).column("batch_id").unique().to_pylist()
    if len(batches) > 1:
        log.delete(f"batch_id < {max(batches):d}")


def _settled(log: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return the requests of the log that are applied or dead: `SETTLED_REQUEST_COLUMNS`, in one task for each org."""
    from pyspark.sql import functions as F

    settled = with_record_ids(log.where("status <> 'parked'"), lake)
    counted = settled.withColumn("records", F.col(RECORD_IDS[0]).isNotNull().cast("int"))
    return counted.select(*SETTLED_REQUEST_COLUMNS).repartition("org_id")
