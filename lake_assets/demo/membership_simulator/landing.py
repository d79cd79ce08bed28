"""Landings into the raw tables through Spark: for each table one Iceberg commit, of the rows and of complete-through.

The rows of all tables are staged first, under the batch's WAP id, and then published one table after the other, which
takes a moment: so nobody sees a table's rows before its complete-through, or one table long before the next.

Failure model: complete-through is set with its rows and never before, so it never promises what is not there. A process
that dies in between lands the same batch again: what a table has of it is seen in its manifests, and not written twice.
That holds as long as one process lands a batch at a time, and a batch_id always means the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from lake_assets.errors import PublishConflict
from lake_assets.incremental.metadata import publish
from lake_assets.incremental.metadata.tables import check_write_audit_publish, complete_through, load
from lake_assets.incremental.staging.prepared_rows import WAP_ID
from lake_assets.membership.raw import RAW, SIGNUPS

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.demo.membership_simulator.batches import Landing
    from lake_assets.demo.membership_simulator.scenes import BadBatch


def land(spark: SparkSession, catalog: Catalog, landing: Landing) -> tuple[str, ...]:
    """Land a batch, or what is missing of it; the tables that got rows now. `catalog` is Spark's catalog `lake`.

    One table after the other, in the order of `RAW`. Raises `TableMissing`, `WriteAuditPublishDisabled`.
    """
    due = [raw.table for raw in RAW if landing.rows[raw.table].num_rows]
    missing = [table for table in due if not _has_batch(catalog, landing, table)]
    staged = {table: _staged(spark, catalog, landing, table) for table in missing}
    for raw in RAW:
        _publish(spark, catalog, landing, raw.table, staged.get(raw.table))
    return tuple(missing)


def repair(spark: SparkSession, bad: BadBatch) -> None:
    """Give the signups of a bad batch their account_id, in place: one overwrite of their data file."""
    cases = " ".join(f"WHEN '{signup}' THEN '{account}'" for signup, account in bad.right.items())
    signups = ", ".join(f"'{signup}'" for signup in bad.right)
    spark.sql(
        f"UPDATE lake.{SIGNUPS.table} SET account_id = CASE signup_id {cases} END "
        f"WHERE {_partition(bad.landing)} AND signup_id IN ({signups})"
    )


@dataclass(frozen=True)
class _Staged:
    """Rows of one table, committed where nobody reads them. parent: main at that time."""

    snapshot_id: int
    parent: int | None


def _staged(spark: SparkSession, catalog: Catalog, landing: Landing, name: str) -> _Staged:
    table = load(catalog, name)
    check_write_audit_publish(table, name)
    wap_id = publish.wap_id(landing.batch_id, publish.next_staging_number(table, landing.batch_id))
    spark.conf.set(WAP_ID, wap_id)
    try:
        # A batch is one partition: one file, and no shuffle to find that out.
        rows = spark.createDataFrame(landing.rows[name]).coalesce(1).writeTo(f"lake.{name}")
        rows.option("distribution-mode", "none").option("fanout-enabled", "true").append()
    finally:
        spark.conf.unset(WAP_ID)
    snapshot = publish.staged_snapshot(load(catalog, name), wap_id)
    return _Staged(snapshot.snapshot_id, snapshot.parent_snapshot_id)


def _publish(spark: SparkSession, catalog: Catalog, landing: Landing, name: str, staged: _Staged | None) -> None:
    """Publish what is staged, if anything, and move complete-through on; staged again when main has moved meanwhile."""

    @retry(retry=retry_if_exception_type(PublishConflict), stop=stop_after_attempt(3), reraise=True)
    def attempt() -> None:
        nonlocal staged
        if staged and publish.main_id(load(catalog, name)) != staged.parent:
            staged = _staged(spark, catalog, landing, name)
        publish.publish(
            catalog,
            name,
            staged.snapshot_id if staged else None,
            parent=staged.parent if staged else publish.main_id(load(catalog, name)),
            session_id=landing.batch_id,
            complete_through=landing.complete_through[name],
        )

    through, now = landing.complete_through[name], complete_through(load(catalog, name), name)
    if staged or (through is not None and (now is None or now < through)):
        attempt()


def _has_batch(catalog: Catalog, landing: Landing, table: str) -> bool:
    """Whether the table has files of this batch's partition: told by its manifests alone."""
    return any(True for _ in load(catalog, table).scan(row_filter=_partition(landing)).plan_files())


def _partition(landing: Landing) -> str:
    """The batch's partition, in words that Spark and pyiceberg both understand."""
    moment = landing.landed_at
    return f"landing_date = '{moment:%Y-%m-%d}' AND landing_hour = {moment.hour} AND batch_id = '{landing.batch_id}'"
