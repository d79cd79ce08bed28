"""What the audits of a session evaluate: its staged rows, computed once for all, and tables as of its snapshots.

Evaluating audits: run them on a staged snapshot, and count what violates them, hour by hour, in one Spark job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lake_assets.base.conditions import union_by_name
from lake_assets.base.hours import hour_key
from lake_assets.incremental.declaration.target import (
    Audit,
    AuditScope,
    Offenders,
    RowsByHour,
    RowsWith,
    Verdict,
    no_rows_with,
)
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.audit_reads import SessionReads, in_hours, rows_at
from lake_assets.incremental.engine.audits import HOUR, KEY, SAMPLE, rows_by_hour
from lake_assets.incremental.engine.iceberg import rows_in_hours
from lake_assets.incremental.engine.key_index import KeyIndex, distinct_values, local_rows
from lake_assets.incremental.engine.model import AuditResult
from lake_assets.incremental.engine.user_code import call_audit, check_queries

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.base.grain import Grain
    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.engine.model import SessionPlan
    from lake_assets.incremental.engine.prepare import PreparedRows


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
    from lake_assets.incremental.engine.prepare import coalesce_if_few, is_few

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
        table=iceberg.load(catalog, source.table),
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
    from lake_assets.incremental.engine.prepare import coalesce_if_few

    rows = rows_at(spark, iceberg.load(catalog, target.table), evaluated_id)
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
    from lake_assets.incremental.engine.prepare import coalesce_if_few

    def read(name: str) -> DataFrame:
        table = iceberg.load(catalog, name)
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
        snapshot_id = snapshots_read.get(name) or publish.main_id(iceberg.load(catalog, name))
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
        table = iceberg.load(catalog, target.table)
        by_metadata = rows_in_hours(table, snapshot_id, target.time_column, hours)
        if by_metadata is not None:
            return by_metadata
        rows = rows_at(spark, table, snapshot_id).where(in_hours(target.time_column, hours))
        return rows_by_hour(rows, target.time_column)

    return count


MAX_REPORTED_PARTITIONS = 100
"""Most hours, or days, that a failed audit reports one by one. If it fails in more, something is wrong with all."""

AUDIT = "i"
"""Column of offenders: the number of the audit."""
ROWS = "n"
"""Column of counts: the number of offenders."""
SAMPLED = "s"
"""Column of counts: keys of the sample."""


def evaluate(audits: Sequence[Audit], scope: AuditScope) -> tuple[AuditResult, ...]:
    """Evaluate audits on a staged snapshot.

    Returns:
        The result of each audit, in the order of `audits`.

    Raises:
        AuditBroken: An audit cannot be evaluated.
    """
    verdicts: dict[int, Verdict] = {}
    offenders: dict[int, Offenders] = {}
    for number, audit in enumerate(audits):
        found = call_audit(audit, scope)
        if isinstance(found, Verdict):
            verdicts[number] = found
        else:
            offenders[number] = found
    try:
        verdicts |= _verdicts_on_offenders(offenders, few=scope.few)
    except Exception:
        check_queries(audits, offenders, scope.target.table)
        raise
    results = []
    for number, audit in enumerate(audits):
        results.append(_result_of(audit, verdicts[number], scope))
    return tuple(results)


def reported_hours(
    counts: Mapping[int | None, int],
    evaluated: Sequence[int],
    grain: Grain,
) -> dict[str, int]:
    """Return the hours that a failed audit reports.

    Args:
        counts: Event hour → offending rows; None for rows whose hour is not known.
        evaluated: The hours that the audit evaluated.

    Returns:
        Key of each hour in a partition that failed → offending rows in the partition. Empty if the hour of a row is not
        known, unless only one partition was evaluated, or if too many partitions failed.
    """
    if len(grain.firsts(evaluated)) == 1:
        offending = sum(counts.values())
        return {hour_key(hour): offending for hour in evaluated}
    by_partition: dict[int, int] = {}
    for hour, rows in counts.items():
        if hour is None:
            return {}
        first = grain.first(hour)
        by_partition[first] = by_partition.get(first, 0) + rows
    if len(by_partition) > MAX_REPORTED_PARTITIONS:
        return {}
    reported = {}
    for hour in sorted(grain.whole(by_partition)):
        reported[hour_key(hour)] = by_partition[grain.first(hour)]
    return reported


def _verdicts_on_offenders(offenders: Mapping[int, Offenders], *, few: bool) -> dict[int, Verdict]:
    """Return number of the audit → verdict; an audit without offending rows has passed."""
    counted = _count_offenders(offenders, few=few)
    verdicts = {}
    for number, found in offenders.items():
        counts = counted.get(number, _Counted())
        verdicts[number] = Verdict(
            passed=not counts.hours,
            counts={found.counted: sum(counts.hours.values())},
            sample=counts.sample,
            hours=counts.hours,
        )
    return verdicts


@dataclass
class _Counted:
    """The offenders of one audit, counted.

    Attributes:
        hours: Event hour → rows; None for rows whose hour is not known.
        sample: The first keys, at most `SAMPLE`.
    """

    hours: dict[int | None, int] = field(default_factory=dict)
    sample: tuple[str, ...] = ()


def _count_offenders(
    offenders: Mapping[int, Offenders],
    *,
    few: bool,
) -> dict[int, _Counted]:
    """Count the offenders of all audits: number of the audit → counts; without audits that have no offenders.

    One job computes the rows of all audits, counts them, and takes the first keys of each audit.
    """
    numbered = []
    for number, found in offenders.items():
        numbered.append(_numbered(found.rows, number))
    if not numbered:
        return {}
    rows = union_by_name(*numbered)
    if few:
        rows = rows.coalesce(1)
    counted: dict[int, _Counted] = {}
    for row in _counts_and_first_keys(rows).collect():
        of_audit = counted.setdefault(row[AUDIT], _Counted())
        of_audit.hours[row[HOUR]] = row[ROWS]
        # Sorted, so that the sample does not depend on the order of the rows.
        known = {*of_audit.sample, *row[SAMPLED]}
        of_audit.sample = tuple(sorted(known)[:SAMPLE])
    return counted


def _numbered(rows: DataFrame, number: int) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.select(F.lit(number).alias(AUDIT), KEY, HOUR)


def _counts_and_first_keys(rows: DataFrame) -> DataFrame:
    """Return audit, hour, its offenders, and which of the first `SAMPLE` keys of the audit it has."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by_key = rows.groupBy(AUDIT, HOUR, KEY).agg(F.count("*").alias(ROWS))
    place = F.dense_rank().over(Window.partitionBy(AUDIT).orderBy(KEY))
    first_key = F.when(place <= SAMPLE, F.col(KEY)).alias(SAMPLED)
    ranked = by_key.select(AUDIT, HOUR, ROWS, first_key)
    counts = F.sum(ROWS).alias(ROWS)
    return ranked.groupBy(AUDIT, HOUR).agg(counts, F.collect_set(SAMPLED).alias(SAMPLED))


def _result_of(audit: Audit, verdict: Verdict, scope: AuditScope) -> AuditResult:
    hours = {}
    if not verdict.passed:
        hours = reported_hours(verdict.hours, scope.hours, scope.target.grain)
    return AuditResult(
        name=audit.name,
        passed=verdict.passed,
        blocking=audit.blocking,
        counts=dict(verdict.counts),
        sample=verdict.sample,
        description=audit.description,
        hours=hours,
    )
