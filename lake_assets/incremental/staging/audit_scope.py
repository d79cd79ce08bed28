"""What the audits of one session may look at: its staged rows, kept for all of them, and tables as it reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from lake_assets.incremental.declaration.target import AuditScope, RowsByHour
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.partitions import rows_in_hours
from lake_assets.incremental.staging.audits import rows_by_hour

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.planning.session import SessionPlan
    from lake_assets.incremental.staging.stage import Staging


def audit_scope(
    catalog: Catalog,
    spark: SparkSession,
    target: Target,
    plan: SessionPlan,
    staging: Staging,
    *,
    snapshot_id: int | None,
    parent: int | None,
    hours: tuple[int, ...],
    rows: int,
) -> AuditScope:
    """The scope of a staged snapshot; of `parent`, main when it was staged, if that comes out unchanged.

    hours: those to be judged. rows: that the snapshot added.
    """
    from lake_assets.base.time_filters import within
    from lake_assets.connections.row_checkpoint import checkpoint_rows
    from lake_assets.incremental.staging.stage import read_at

    judged_id, fates, few = snapshot_id or parent, staging.fates, staging.few
    staged = within(read_at(spark, target.table, judged_id), target.time_column, hours)
    counts = {"read": fates.read, "duplicates": fates.duplicates, "quarantined": fates.quarantined}
    return AuditScope(
        target=target,
        hours=hours,
        staged=checkpoint_rows(staged.coalesce(1) if few else staged),
        kept=staging.kept,
        counts={**counts, "written": rows + staging.rows_unchanged},
        table=_reader(catalog, spark, {s.source: s.to_snapshot_id for s in plan.sources} | {target.table: parent}),
        staged_rows=_rows_by_hour(catalog, spark, target, judged_id),
        earlier_rows=_rows_by_hour(catalog, spark, target, parent),
        few=few,
    )


def _reader(catalog: Catalog, spark: SparkSession, at: Mapping[str, int | None]) -> Callable[[str], DataFrame]:
    """Reads tables for audits: those with a snapshot to read them at as of that, others as they are."""
    from lake_assets.incremental.staging.stage import coalesce_if_few, read_at

    def read(name: str) -> DataFrame:
        table = tables.load(catalog, name)
        snapshot_id = at[name] if name in at else publish.main_id(table)
        return coalesce_if_few(read_at(spark, name, snapshot_id), publish.rows_of(table, snapshot_id))

    return read


def _rows_by_hour(catalog: Catalog, spark: SparkSession, target: Target, snapshot_id: int | None) -> RowsByHour:
    """Counts the rows of a target's snapshot by metadata, and by Spark only where these cannot tell."""
    from lake_assets.base.time_filters import within
    from lake_assets.incremental.staging.stage import read_at

    def count(hours: Collection[int]) -> Mapping[int, int]:
        told = rows_in_hours(tables.load(catalog, target.table), snapshot_id, target.time_column, hours)
        if told is not None:
            return told
        rows = within(read_at(spark, target.table, snapshot_id), target.time_column, sorted(hours))
        return rows_by_hour(rows, target.time_column)

    return count
