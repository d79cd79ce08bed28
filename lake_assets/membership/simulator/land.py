"""Landings into the raw tables: rows through Spark, one Iceberg commit for each table and batch; then complete-through.

Failure model: a table's complete-through is set after its rows and never before, so it never promises what is not
there. A process that died lands the same batch again: what a table has of it is seen in its manifests, and not written
twice. That holds as long as one process lands at a time, and a batch_id always means the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from lake_assets.incremental.hours import hour_key
from lake_assets.incremental.tables import COMPLETE_THROUGH, complete_through, load
from lake_assets.membership.raw import RAW, SIGNUPS

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.membership.simulator.batches import Landing
    from lake_assets.membership.simulator.scenes import BadBatch


def land(spark: SparkSession, catalog: Catalog, landing: Landing) -> tuple[str, ...]:
    """Land a batch, or what is missing of it; the tables that got rows now. `catalog` is Spark's catalog `lake`.

    One table after the other, in the order of `RAW`. Raises `TableMissing`.
    """
    return tuple(raw.table for raw in RAW if _land_table(spark, catalog, landing, raw.table))


def repair(spark: SparkSession, bad: BadBatch) -> None:
    """Give the signups of a bad batch their account_id, in place: one overwrite of their data file."""
    cases = " ".join(f"WHEN '{signup}' THEN '{account}'" for signup, account in bad.right.items())
    signups = ", ".join(f"'{signup}'" for signup in bad.right)
    spark.sql(
        f"UPDATE lake.{SIGNUPS.table} SET account_id = CASE signup_id {cases} END "
        f"WHERE {_partition(bad.landing)} AND signup_id IN ({signups})"
    )


def _land_table(spark: SparkSession, catalog: Catalog, landing: Landing, table: str) -> bool:
    rows = landing.rows[table]
    missing = rows.num_rows > 0 and not _has_batch(catalog, landing, table)
    if missing:
        spark.createDataFrame(rows).writeTo(f"lake.{table}").append()
    if (through := landing.complete_through[table]) is not None:
        _declare_complete(catalog, table, through)
    return missing


def _has_batch(catalog: Catalog, landing: Landing, table: str) -> bool:
    """Whether the table has files of this batch's partition: told by its manifests alone."""
    return any(True for _ in load(catalog, table).scan(row_filter=_partition(landing)).plan_files())


def _partition(landing: Landing) -> str:
    """The batch's partition, in words that Spark and pyiceberg both understand."""
    moment = landing.landed_at
    return f"landing_date = '{moment:%Y-%m-%d}' AND landing_hour = {moment.hour} AND batch_id = '{landing.batch_id}'"


@retry(retry=retry_if_exception_type(CommitFailedException), stop=stop_after_attempt(3), reraise=True)
def _declare_complete(catalog: Catalog, name: str, through: int) -> None:
    """Move the table's complete-through on; a batch that lands again after later ones does not move it back."""
    table = load(catalog, name)
    now = complete_through(table, name)
    if now is None or now < through:
        with table.transaction() as transaction:
            transaction.set_properties({COMPLETE_THROUGH: hour_key(through)})
