"""What the audits of a session evaluate: its staged rows, computed once for all, and tables as of its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from lake_assets.incremental.audit_reads.session_reads import SessionReads
from lake_assets.incremental.audit_reads.source_rows import in_hours, rows_at
from lake_assets.incremental.declaration.target import AuditScope, RowsByHour, RowsWith, no_rows_with
from lake_assets.incremental.key_index.lookup import KeyIndex
from lake_assets.incremental.key_index.spark_rows import distinct_values, local_rows
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
    start: int,
) -> AuditScope:
    """Return what the audits of a staged snapshot evaluate.

    Args:
        snapshot_id: The staged snapshot; None if all hours are unchanged, so the audits evaluate `parent`.
        parent: The snapshot of main that it was staged on.
        hours: Hours to evaluate.
        rows: Rows that the staged snapshot added.
        start: First hour of the pipeline.
    """
    from lake_assets.connections.row_checkpoint import checkpoint_rows
    from lake_assets.incremental.staging.reading import coalesce_if_few, is_few

    evaluated_id = snapshot_id or parent
    staged = checkpoint_rows(_staged_rows(catalog, spark, target, prepared, evaluated_id, hours))
    snapshots_read = {source.source: source.to_snapshot_id for source in plan.sources}
    snapshots_read[target.table] = parent
    reads = _session_reads(catalog, spark, target, prepared, start=start)
    return AuditScope(
        target=target,
        hours=hours,
        staged=staged,
        kept=prepared.kept,
        valid=coalesce_if_few(reads.valid_rows(), prepared.max_rows),
        staged_everywhere=_staged_everywhere(catalog, spark, target, prepared, evaluated_id, staged),
        rows_in_source=lambda: reads.count() + prepared.row_counts.outside,
        counts=_counts(prepared, rows),
        table=_reader(catalog, spark, snapshots_read),
        staged_rows=_rows_by_hour(catalog, spark, target, evaluated_id),
        earlier_rows=_rows_by_hour(catalog, spark, target, parent),
        few=prepared.single_partition,
        rows_with=_index(catalog, spark, snapshots_read) if is_few(rows) else no_rows_with,
    )


def _session_reads(
    catalog: Catalog, spark: SparkSession, target: Target, prepared: PreparedRows, *, start: int
) -> SessionReads:
    source = target.sources[0]
    return SessionReads(
        spark=spark,
        table=tables.load(catalog, source.table),
        source=source,
        span=prepared.plan.sources[0],
        load=prepared.load,
        hours=prepared.plan.hour_numbers,
        left_out=prepared.plan.left_out,
        late_rows=prepared.plan.late_rows,
        start=start,
    )


def _staged_everywhere(
    catalog: Catalog,
    spark: SparkSession,
    target: Target,
    prepared: PreparedRows,
    evaluated_id: int | None,
    staged: DataFrame,
) -> DataFrame:
    """Return `staged`; if an append repeats rows that were published before, the rows of all planned hours."""
    if prepared.load != "append" or not prepared.row_counts.duplicates:
        return staged
    return _staged_rows(catalog, spark, target, prepared, evaluated_id, prepared.plan.hour_numbers)


def _staged_rows(
    catalog: Catalog,
    spark: SparkSession,
    target: Target,
    prepared: PreparedRows,
    evaluated_id: int | None,
    hours: Collection[int],
) -> DataFrame:
    from lake_assets.incremental.staging.reading import coalesce_if_few

    rows = rows_at(spark, tables.load(catalog, target.table), evaluated_id)
    return coalesce_if_few(rows.where(in_hours(target.time_column, hours)), prepared.max_rows)


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
    from lake_assets.incremental.staging.reading import coalesce_if_few

    def read(name: str) -> DataFrame:
        table = tables.load(catalog, name)
        snapshot_id = publish.main_id(table)
        if name in snapshots_read:
            snapshot_id = snapshots_read[name]
        rows = rows_at(spark, table, snapshot_id)
        return coalesce_if_few(rows, publish.rows_of(table, snapshot_id))

    return read


def _index(catalog: Catalog, spark: SparkSession, snapshots_read: Mapping[str, int | None]) -> RowsWith:
    """Return a function that finds values in tables by their indexes, in the same snapshots as `_reader`."""
    index = KeyIndex(catalog)

    def rows_with(name: str, column: str, wanted: DataFrame) -> DataFrame | None:
        snapshot_id = snapshots_read.get(name) or publish.main_id(tables.load(catalog, name))
        if not index.covers(name, snapshot_id, column):
            return None
        values = distinct_values(wanted, column)
        if values is None:
            return None
        found = index.rows(name, snapshot_id, column, values - {None}, columns=[column])
        return None if found is None else local_rows(spark, found)

    return rows_with


def _rows_by_hour(catalog: Catalog, spark: SparkSession, target: Target, snapshot_id: int | None) -> RowsByHour:
    """Return a function that counts the rows of a target's snapshot: by metadata if possible, else by Spark."""

    def count(hours: Collection[int]) -> Mapping[int, int]:
        table = tables.load(catalog, target.table)
        by_metadata = rows_in_hours(table, snapshot_id, target.time_column, hours)
        if by_metadata is not None:
            return by_metadata
        rows = rows_at(spark, table, snapshot_id).where(in_hours(target.time_column, hours))
        return rows_by_hour(rows, target.time_column)

    return count
