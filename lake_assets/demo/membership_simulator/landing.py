"""Write landings to the raw tables through Spark: one Iceberg commit per table, with the rows and complete-through.

The rows of all tables are first staged under the batch's WAP id, then published table by table, which takes a moment.
So no reader sees rows of a table long before those of the next table, or rows without their complete-through.

Failure model: complete-through is committed with its rows and never before them, so it never covers missing rows. After
a crash, the same batch is landed again: the manifests show which tables already have it, and those are left alone. This
requires that one process lands a batch at a time, and that a batch_id always stands for the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from lake_assets.errors import PublishConflict
from lake_assets.incremental.engine import publish
from lake_assets.incremental.engine.iceberg import check_write_audit_publish, complete_through, load
from lake_assets.incremental.engine.stage import WAP_ID
from lake_assets.membership.raw import RAW, SIGNUPS

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.demo.membership_simulator.batches import Landing
    from lake_assets.demo.membership_simulator.scenes import BadBatch

MAX_ATTEMPTS = 3


def land(spark: SparkSession, catalog: Catalog, landing: Landing) -> tuple[str, ...]:
    """Land a batch, or the part of it that is missing. The tables are published in the order of `RAW`.

    Args:
        spark: A session whose catalog `lake` is `catalog`.
        catalog: The catalog of the raw tables.
        landing: The batch.

    Returns:
        The tables that got rows now.

    Raises:
        TableMissing: A raw table does not exist.
        TargetError: A raw table does not allow staged commits.
    """
    writer = _Writer(spark, catalog, landing)
    due = [raw.table for raw in RAW if landing.rows[raw.table].num_rows]
    missing = [table for table in due if not writer.has_batch(table)]
    staged = {table: writer.stage(table) for table in missing}
    for raw in RAW:
        writer.publish(raw.table, staged.get(raw.table))
    return tuple(missing)


def repair(spark: SparkSession, bad: BadBatch) -> None:
    """Set the account_id of the bad signups of a batch, in place: one overwrite of their data file."""
    cases = " ".join(f"WHEN '{signup}' THEN '{account}'" for signup, account in bad.right.items())
    signups = ", ".join(f"'{signup}'" for signup in bad.right)
    spark.sql(
        f"UPDATE lake.{SIGNUPS.table} SET account_id = CASE signup_id {cases} END "
        f"WHERE {_partition(bad.landing)} AND signup_id IN ({signups})"
    )


@dataclass(frozen=True)
class _Staged:
    """Rows of one table in a snapshot that no branch has. parent: main's snapshot when they were staged."""

    snapshot_id: int
    parent: int | None


@dataclass(frozen=True)
class _Writer:
    """Stages and publishes one batch."""

    spark: SparkSession
    catalog: Catalog
    landing: Landing

    def has_batch(self, name: str) -> bool:
        """Return whether the table has files in the batch's partition. Reads manifests only."""
        files = load(self.catalog, name).scan(row_filter=_partition(self.landing)).plan_files()
        return any(True for _ in files)

    def stage(self, name: str) -> _Staged:
        table = load(self.catalog, name)
        check_write_audit_publish(table, name)
        number = publish.next_staging_number(table, self.landing.batch_id)
        wap_id = publish.wap_id(self.landing.batch_id, number)
        self.spark.conf.set(WAP_ID, wap_id)
        try:
            self._append(name)
        finally:
            self.spark.conf.unset(WAP_ID)
        snapshot = publish.staged_snapshot(load(self.catalog, name), wap_id)
        return _Staged(snapshot.snapshot_id, snapshot.parent_snapshot_id)

    def publish(self, name: str, staged: _Staged | None) -> None:
        """Publish staged rows, if there are any, and advance complete-through."""
        if staged is not None:
            self._publish_rows(name, staged)
        elif self._advances(name):
            self._publish_complete_through(name)

    def _append(self, name: str) -> None:
        # The batch is one partition. One file without a shuffle is enough.
        rows = self.spark.createDataFrame(self.landing.rows[name]).coalesce(1)
        write = rows.writeTo(f"lake.{name}")
        write = write.option("distribution-mode", "none").option("fanout-enabled", "true")
        write.append()

    def _publish_rows(self, name: str, first: _Staged) -> None:
        staged = first

        @retry(retry=retry_if_exception_type(PublishConflict), stop=stop_after_attempt(MAX_ATTEMPTS), reraise=True)
        def attempt() -> None:
            nonlocal staged
            if self._main(name) != staged.parent:
                staged = self.stage(name)
            self._commit(name, staged.snapshot_id, staged.parent)

        attempt()

    @retry(retry=retry_if_exception_type(PublishConflict), stop=stop_after_attempt(MAX_ATTEMPTS), reraise=True)
    def _publish_complete_through(self, name: str) -> None:
        self._commit(name, None, self._main(name))

    def _commit(self, name: str, snapshot_id: int | None, parent: int | None) -> None:
        publish.publish(
            self.catalog,
            name,
            snapshot_id,
            parent=parent,
            session_id=self.landing.batch_id,
            complete_through=self.landing.complete_through[name],
        )

    def _main(self, name: str) -> int | None:
        return publish.main_id(load(self.catalog, name))

    def _advances(self, name: str) -> bool:
        declared = self.landing.complete_through[name]
        if declared is None:
            return False
        now = complete_through(load(self.catalog, name), name)
        return now is None or now < declared


def _partition(landing: Landing) -> str:
    """Return the condition of the batch's partition, in the syntax that Spark and pyiceberg share."""
    moment = landing.landed_at
    return f"landing_date = '{moment:%Y-%m-%d}' AND landing_hour = {moment.hour} AND batch_id = '{landing.batch_id}'"
