"""What the audits of a session evaluate: its staged rows, computed once for all, and tables as of its snapshots."""

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
    from lake_assets.incremental.staging.prepared_rows import PreparedRows


def audit_scope(
    catalog: Catalog,
    spark: SparkSession,
    target: Target,
    plan: SessionPlan,
    prepared: PreparedRows,
    *,
    snapshot_id: int | None,
    parent: int | None,
    hours: tuple[int, ...],
    rows: int,
) -> AuditScope:
    """Return what the audits of a staged snapshot evaluate.

    Args:
        snapshot_id: The staged snapshot; None if all hours are unchanged, so the audits evaluate `parent`.
        parent: The snapshot of main that it was staged on.
        hours: Hours to evaluate.
        rows: Rows that the staged snapshot added.
    """
    from lake_assets.base.time_filters import within
    from lake_assets.connections.row_checkpoint import checkpoint_rows
    from lake_assets.incremental.staging.reading import read_at

    evaluated_id = snapshot_id or parent
    staged = read_at(spark, target.table, evaluated_id)
    staged = within(staged, target.time_column, hours)
    if prepared.single_partition:
        staged = staged.coalesce(1)
    snapshots_read = {source.source: source.to_snapshot_id for source in plan.sources}
    snapshots_read[target.table] = parent
    return AuditScope(
        target=target,
        hours=hours,
        staged=checkpoint_rows(staged),
        kept=prepared.kept,
        counts=_counts(prepared, rows),
        table=_reader(catalog, spark, snapshots_read),
        staged_rows=_rows_by_hour(catalog, spark, target, evaluated_id),
        earlier_rows=_rows_by_hour(catalog, spark, target, parent),
        few=prepared.single_partition,
    )


def _counts(prepared: PreparedRows, rows: int) -> dict[str, int]:
    return {
        "read": prepared.row_counts.read,
        "duplicates": prepared.row_counts.duplicates,
        "quarantined": prepared.row_counts.quarantined,
        "written": rows + prepared.rows_unchanged,
    }


def _reader(
    catalog: Catalog, spark: SparkSession, snapshots_read: Mapping[str, int | None]
) -> Callable[[str], DataFrame]:
    """Return a function that reads tables: those of the session as of its snapshots, others as of main."""
    from lake_assets.incremental.staging.reading import coalesce_if_few, read_at

    def read(name: str) -> DataFrame:
        table = tables.load(catalog, name)
        snapshot_id = publish.main_id(table)
        if name in snapshots_read:
            snapshot_id = snapshots_read[name]
        rows = read_at(spark, name, snapshot_id)
        return coalesce_if_few(rows, publish.rows_of(table, snapshot_id))

    return read


def _rows_by_hour(catalog: Catalog, spark: SparkSession, target: Target, snapshot_id: int | None) -> RowsByHour:
    """Return a function that counts the rows of a target's snapshot: by metadata if possible, else by Spark."""
    from lake_assets.base.time_filters import within
    from lake_assets.incremental.staging.reading import read_at

    def count(hours: Collection[int]) -> Mapping[int, int]:
        table = tables.load(catalog, target.table)
        by_metadata = rows_in_hours(table, snapshot_id, target.time_column, hours)
        if by_metadata is not None:
            return by_metadata
        rows = read_at(spark, target.table, snapshot_id)
        rows = within(rows, target.time_column, sorted(hours))
        return rows_by_hour(rows, target.time_column)

    return count
