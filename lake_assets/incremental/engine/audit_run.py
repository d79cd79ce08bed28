"""Evaluating audits, on a staged snapshot or on what is published: what they read, and who counts what violates them.

The staged rows are computed once for all audits, and tables are read as of the session's snapshots. The offending rows
of all audits are counted, hour by hour, in one Spark job. Published rows are compared with the sources as of the
watermark, which is what sessions have built them from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.base.columns import quoted, union_by_name
from lake_assets.base.hours import hour_key, hour_sql
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration.model import Audit, AuditScope, Offenders, Verdict, no_rows_with
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.audit_reads import SessionReads, in_hours, rows_at
from lake_assets.incremental.engine.audits import HOUR, KEY, SAMPLE
from lake_assets.incremental.engine.columns import check_target
from lake_assets.incremental.engine.iceberg import hours_present, rows_between, rows_in_hours
from lake_assets.incremental.engine.key_index import KeyIndex, distinct_values, local_rows
from lake_assets.incremental.engine.model import (
    AuditResult,
    Committed,
    HeldHour,
    PlannedHour,
    RowCounts,
    source_range,
)
from lake_assets.incremental.engine.state import State, carrying_plan
from lake_assets.incremental.engine.user_code import naming_audit

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.base.hours import Grain
    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.engine.stage import PreparedRows


MAX_REPORTED_PARTITIONS = 100
"""Most hours, or days, that a failed audit reports one by one. If it fails in more, something is wrong with all."""

AUDIT = "i"
"""Column of offenders: the number of the audit."""
ROWS = "n"
"""Column of counts: the number of offenders."""
SAMPLED = "s"
"""Column of counts: keys of the sample."""


def audit_scope(prepared: PreparedRows, *, snapshot_id: int | None, hours: tuple[int, ...], rows: int) -> AuditScope:
    """Return what the audits of a staged snapshot evaluate.

    Args:
        snapshot_id: The staged snapshot; None if all hours are unchanged, so the audits evaluate main.
        hours: Hours to evaluate.
        rows: Rows that the staged snapshot added.
    """
    from lake_assets.connections.row_checkpoint import checkpoint_rows
    from lake_assets.incremental.engine.stage import coalesce_if_few, is_few

    stager, plan, counts = prepared.stager, prepared.plan, prepared.row_counts
    catalog, spark, target = stager.catalog, stager.spark, stager.target
    evaluated_id = snapshot_id or stager.main
    pinned = {span.source: span.to_snapshot_id for span in plan.sources} | {target.table: stager.main}

    def snapshot_of(name: str) -> int | None:
        return pinned[name] if name in pinned else publish.main_id(iceberg.load(catalog, name))

    def read(name: str) -> DataFrame:
        table, read_id = iceberg.load(catalog, name), snapshot_of(name)
        return coalesce_if_few(rows_at(spark, table, read_id), publish.rows_of(table, read_id))

    def rows_with(name: str, column: str, wanted: DataFrame) -> DataFrame | None:
        index, read_id = KeyIndex(catalog), snapshot_of(name)
        values = distinct_values(wanted, column) if index.covers(name, read_id, column) else None
        if values is None:
            return None
        found = index.rows(name, read_id, column, values - {None}, columns=[column])
        return None if found is None else local_rows(spark, found)

    def staged_in(some: Collection[int]) -> DataFrame:
        found = rows_at(spark, iceberg.load(catalog, target.table), evaluated_id)
        return coalesce_if_few(found.where(in_hours(target.time_column, some)), stager.max_rows)

    def rows_by_hour(counted_id: int | None, some: Collection[int]) -> Mapping[int, int]:
        table = iceberg.load(catalog, target.table)
        by_metadata = rows_in_hours(table, counted_id, target.time_column, some)
        if by_metadata is not None:
            return by_metadata
        found = rows_at(spark, table, counted_id).where(in_hours(target.time_column, some))
        by_hour = found.selectExpr(f"{hour_sql(quoted(target.time_column))} as {HOUR}").groupBy(HOUR).count()
        return {row[HOUR]: row["count"] for row in by_hour.collect()}

    source = target.sources[0]
    reads = SessionReads(spark, iceberg.load(catalog, source.table), source, plan, prepared.load, stager.start)
    staged = checkpoint_rows(staged_in(hours))
    repeats_published = prepared.load == "append" and counts.duplicates > 0
    return AuditScope(
        target=target,
        hours=hours,
        staged=staged,
        kept=prepared.kept,
        valid=coalesce_if_few(reads.valid_rows(), stager.max_rows),
        staged_everywhere=staged_in(plan.hour_numbers) if repeats_published else staged,
        rows_in_source=lambda: reads.count() + counts.outside,
        counts={
            "read": counts.read,
            "duplicates": counts.duplicates,
            "quarantined": counts.quarantined,
            "written": rows + prepared.rows_unchanged,
        },
        table=read,
        staged_rows=partial(rows_by_hour, evaluated_id),
        earlier_rows=partial(rows_by_hour, stager.main),
        few=is_few(stager.max_rows),
        rows_with=rows_with if is_few(rows) else no_rows_with,
    )


def evaluate(audits: Sequence[Audit], scope: AuditScope) -> tuple[AuditResult, ...]:
    """Evaluate audits on a staged snapshot.

    Returns:
        The result of each audit, in the order of `audits`.

    Raises:
        LakeError: An audit cannot be evaluated.
    """
    table = scope.target.table
    verdicts: dict[int, Verdict] = {}
    offenders: dict[int, Offenders] = {}
    for number, audit in enumerate(audits):
        with naming_audit(audit, table):
            found = audit.run(scope)
        if isinstance(found, Verdict):
            verdicts[number] = found
        else:
            offenders[number] = found
    try:
        verdicts |= _verdicts_on_offenders(offenders, few=scope.few)
    except Exception:
        # Spark refuses one query of all audits: find the one whose query it is.
        for number, found in offenders.items():
            with naming_audit(audits[number], table):
                found.rows.schema  # noqa: B018 - Spark analyses the query
        raise
    results = []
    for number, audit in enumerate(audits):
        verdict = verdicts[number]
        result = AuditResult(
            name=audit.name,
            passed=verdict.passed,
            blocking=audit.blocking,
            counts=dict(verdict.counts),
            sample=verdict.sample,
            description=audit.description,
            hours={} if verdict.passed else reported_hours(verdict.hours, scope.hours, scope.target.grain),
        )
        results.append(result)
    return tuple(results)


def _verdicts_on_offenders(offenders: Mapping[int, Offenders], *, few: bool) -> dict[int, Verdict]:
    """Return number of the audit → verdict; an audit without offending rows has passed.

    One job computes the rows of all audits, counts them, and takes the first keys of each audit.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not offenders:
        return {}
    numbered = [found.rows.select(F.lit(number).alias(AUDIT), KEY, HOUR) for number, found in offenders.items()]
    rows = union_by_name(*numbered)
    if few:
        rows = rows.coalesce(1)
    by_key = rows.groupBy(AUDIT, HOUR, KEY).agg(F.count("*").alias(ROWS))
    place = F.dense_rank().over(Window.partitionBy(AUDIT).orderBy(KEY))
    ranked = by_key.select(AUDIT, HOUR, ROWS, F.when(place <= SAMPLE, F.col(KEY)).alias(SAMPLED))
    counted = ranked.groupBy(AUDIT, HOUR).agg(F.sum(ROWS).alias(ROWS), F.collect_set(SAMPLED).alias(SAMPLED))
    hours: dict[int, dict[int | None, int]] = {number: {} for number in offenders}
    keys: dict[int, set[str]] = {number: set() for number in offenders}
    for row in counted.collect():
        hours[row[AUDIT]][row[HOUR]] = row[ROWS]
        keys[row[AUDIT]].update(row[SAMPLED])
    verdicts = {}
    for number, found in offenders.items():
        # Sorted, so that the sample does not depend on the order of the rows.
        sample = tuple(sorted(keys[number])[:SAMPLE])
        total = sum(hours[number].values())
        verdicts[number] = Verdict(not total, {found.counted: total}, sample, hours[number])
    return verdicts


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
    return {hour_key(hour): by_partition[grain.first(hour)] for hour in sorted(grain.whole(by_partition))}


# Results of the audits that are not declared


def quarantine_results(target: Target, counts: RowCounts, *, new_rows: int) -> tuple[AuditResult, ...]:
    """Return a warning on all quarantined rows, and the blocking limit on those that are new to the quarantine.

    Args:
        target: The target.
        counts: Of the rows of the driving source.
        new_rows: Rows of any source that are not in it yet.
    """
    limit = target.most_quarantined(counts.read)
    quarantined = max(counts.quarantined, new_rows)
    warning = AuditResult(
        name="quarantine",
        passed=quarantined == 0,
        blocking=False,
        counts={"quarantined": quarantined},
        description="no row is quarantined",
    )
    blocking = AuditResult(
        name="quarantine_limit",
        passed=new_rows <= limit,
        blocking=True,
        counts={"quarantined": new_rows, "limit": limit},
        description=f"at most {limit} rows are new to the quarantine",
    )
    return warning, blocking


def ties_result(target: Target, tied: int) -> tuple[AuditResult, ...]:
    """Return a warning on rows of the driving source that count by nothing but a hash; none for one without a key."""
    source = target.sources[0]
    if source.key is None:
        return ()
    description = f"no two rows of one {source.key} and {source.time_column} differ and landed together"
    if source.has_versions:
        order = ", ".join(source.order_columns)
        description = f"no two versions of one {source.key} have equal {order} and landed together"
    return (AuditResult("ties", passed=tied == 0, blocking=False, counts={"tied": tied}, description=description),)


# The audits of a target on what it has published


@dataclass(frozen=True)
class PublishedAudit:
    """The results of audits on published rows.

    Attributes:
        table: The target.
        hours: The event hours that were evaluated, ascending.
        snapshot_id: The snapshot of main that was evaluated.
        audits: The results.
        unsettled: Those of the hours that are pending, held back or skipped: their rows are older than the sources.
        held: All hours that audits hold back now, evaluated or not.
    """

    table: str
    hours: tuple[int, ...]
    snapshot_id: int
    audits: tuple[AuditResult, ...]
    unsettled: tuple[int, ...] = ()
    held: tuple[HeldHour, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no blocking audit has failed."""
        return all(audit.passed or not audit.blocking for audit in self.audits)


def newest_complete_hours(
    target: Target, committed: Committed, start: int, present: Collection[int]
) -> tuple[int, ...]:
    """Return the hours of the newest partition with rows that is complete and built; without rows, if none has any.

    Args:
        target: The target.
        committed: What it has committed.
        start: First hour of the pipeline.
        present: Hours that have rows.
    """
    if committed.complete_through is None:
        return ()
    found: tuple[int, ...] = ()
    hour = target.grain.complete(committed.complete_through)
    while hour >= start:
        partition = target.grain.whole([hour])
        if committed.waiting.keys().isdisjoint(partition):
            found = found or tuple(sorted(partition))
            if not partition.isdisjoint(present):
                return tuple(sorted(partition))
        hour = target.grain.first(hour) - 1
    return found


def audit_published(
    catalog: Catalog,
    target: Target,
    state: State,
    hours: Collection[int],
    names: Collection[str] | None,
    *,
    start: int,
    open_spark: Callable[[], SparkSession],
) -> PublishedAudit:
    """Evaluate audits on published hours of a target.

    Args:
        state: The state of the target.
        hours: The hours; those of whole partitions are evaluated. Empty for the newest complete partition.
        names: Names of the audits; None for all, those of the quarantine included.
        start: First hour of the pipeline.
        open_spark: Gives the Spark session; called when rows are read.

    Raises:
        UsageError: Nothing is published, no hour is complete, or a snapshot that the target was built from is gone.
    """
    from lake_assets.connections.row_checkpoint import release_checkpoints
    from lake_assets.incremental.engine.stage import Stager

    committed = state.committed
    evaluated = tuple(sorted(target.grain.whole(hours)))
    table = iceberg.load(catalog, target.table)
    check_target(table, target)
    main = publish.main_id(table)
    if not evaluated:
        evaluated = newest_complete_hours(target, committed, start, hours_present(table, target.time_column))
    if main is None or not evaluated:
        raise UsageError(
            f"{target.table} has no complete hour to audit.",
            remedy=f"Build it with `lake catch-up {target.name}`, or name hours.",
        )
    sources = []
    for name in target.source_tables:
        mark = state.watermarks.get(name)
        is_empty = mark is not None and mark.snapshot_id is None
        if mark is None or not (is_empty or iceberg.load(catalog, name).snapshot_by_id(mark.snapshot_id or 0)):
            raise UsageError(
                f"{name} does not have the snapshot that {target.table} was built from.",
                remedy=f"Run `lake catch-up {target.name}`, then audit again.",
            )
        sources.append(source_range(mark, mark.snapshot_id))
    chosen = tuple(PlannedHour(hour, "chosen to be audited") for hour in evaluated)
    plan = replace(carrying_plan(state, "audit"), sources=tuple(sources), hours=chosen)
    # About how many rows the sources and the hours have; infinite if the metadata do not tell.
    max_rows = plan.source_rows + rows_between(table, target.time_column, evaluated[0], evaluated[-1])
    spark = open_spark()
    stager = Stager(spark, target, catalog=catalog, start=start, main=main, complete_through=None, max_rows=max_rows)
    try:
        prepared = stager.prepare_published(plan)
        by_hour = rows_in_hours(table, main, target.time_column, evaluated)
        rows = prepared.rows.count() if by_hour is None else sum(by_hour.values())
        scope = audit_scope(prepared, snapshot_id=None, hours=evaluated, rows=rows)
        counts = prepared.row_counts
        results = (
            *evaluate([audit for audit in target.audits if names is None or audit.name in names], scope),
            *quarantine_results(target, counts, new_rows=prepared.count_quarantined()),
            *ties_result(target, counts.tied),
        )
    finally:
        release_checkpoints(spark)
    return PublishedAudit(
        table=target.table,
        hours=evaluated,
        snapshot_id=main,
        audits=tuple(result for result in results if names is None or result.name in names),
        unsettled=tuple(sorted(committed.waiting.keys() & set(evaluated))),
        held=committed.held,
    )
