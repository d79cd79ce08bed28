"""Auditing what a target has published: its audits on hours of main. Changes nothing.

The published rows are compared with the sources as of the watermark, which is what sessions have built them from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog

from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.audit_run import audit_scope, evaluate
from lake_assets.incremental.engine.columns import check_target
from lake_assets.incremental.engine.iceberg import hours_present, rows_between, rows_in_hours
from lake_assets.incremental.engine.model import AuditResult, Committed, HeldHour, PlannedHour, SessionPlan
from lake_assets.incremental.engine.session import quarantine_results, ties_result
from lake_assets.incremental.engine.state import State, source_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NO_SESSION = "audit-of-published-rows"
"""Stands where a session has its id."""


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
    plan = _plan(catalog, target, state, evaluated)
    # About how many rows the sources and the hours have; infinite if the metadata do not tell.
    max_rows = plan.source_rows + rows_between(table, target.time_column, evaluated[0], evaluated[-1])
    spark = open_spark()
    stager = Stager(
        spark,
        target,
        catalog=catalog,
        start=start,
        main=main,
        complete_through=None,
        max_rows=max_rows,
    )
    try:
        prepared = stager.prepare_published(plan)
        by_hour = rows_in_hours(table, main, target.time_column, evaluated)
        scope = audit_scope(
            catalog,
            spark,
            target,
            prepared,
            snapshot_id=None,
            parent=main,
            hours=evaluated,
            rows=prepared.rows.count() if by_hour is None else sum(by_hour.values()),
            start=start,
        )
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


def _plan(catalog: Catalog, target: Target, state: State, hours: tuple[int, ...]) -> SessionPlan:
    """Return the hours, and the sources as of the watermark, as a plan that is not recorded and not run."""
    sources = []
    for name in target.source_tables:
        mark = state.watermarks.get(name)
        retained = {each.snapshot_id for each in iceberg.load(catalog, name).metadata.snapshots}
        if mark is None or (mark.snapshot_id is not None and mark.snapshot_id not in retained):
            raise UsageError(
                f"{name} does not have the snapshot that {target.table} was built from.",
                remedy=f"Run `lake catch-up {target.name}`, then audit again.",
            )
        sources.append(source_range(mark, mark.snapshot_id))
    return SessionPlan(
        process=target.table,
        session_id=NO_SESSION,
        kind="rebuild",
        load="none",
        sources=tuple(sources),
        hours=tuple(PlannedHour(hour, "chosen to be audited") for hour in hours),
        code_version=target.code_version,
    )
