"""Auditing what a target has published: its audits on hours of main. Changes nothing.

The published rows are compared with the sources as of the watermark, which is what sessions have built them from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.columns import check_target
from lake_assets.incremental.engine.iceberg import rows_between, rows_in_hours
from lake_assets.incremental.engine.model import AuditResult, Committed, HeldHour, PlannedHour, SessionPlan, SourceRange
from lake_assets.incremental.engine.session import quarantine_results, ties_result
from lake_assets.incremental.engine.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.incremental.engine.prepare import PreparedRows, TargetBuild


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


def newest_complete_hours(target: Target, committed: Committed, start: int) -> tuple[int, ...]:
    """Return the hours of the newest partition that is complete and built; empty if there is none.

    Args:
        target: The target.
        committed: What it has committed.
        start: First hour of the pipeline.
    """
    if committed.complete_through is None:
        return ()
    unsettled = _unsettled_hours(committed)
    hour = target.grain.complete(committed.complete_through)
    while hour >= start:
        partition = target.grain.whole([hour])
        if unsettled.isdisjoint(partition):
            return tuple(sorted(partition))
        hour = target.grain.first(hour) - 1
    return ()


class PublishedAuditor:
    """Audits the published rows of one target.

    Args:
        start: First hour of the pipeline.
        open_spark: Gives the Spark session; called when rows are read.
    """

    def __init__(
        self,
        catalog: Catalog,
        target: Target,
        state: State,
        *,
        start: int,
        open_spark: Callable[[], SparkSession],
    ) -> None:
        self.catalog = catalog
        self.target = target
        self.state = state
        self.start = start
        self.open_spark = open_spark

    def audit(self, hours: Collection[int], names: Collection[str] | None) -> PublishedAudit:
        """Evaluate audits on published hours.

        Args:
            hours: The hours; those of whole partitions are evaluated. Empty for the newest complete partition.
            names: Names of the audits; None for all, those of the quarantine included.

        Raises:
            UsageError: Nothing is published, no hour is complete, or a snapshot that the target was built from is gone.
        """
        committed = self.state.committed
        evaluated = tuple(sorted(self.target.grain.whole(hours)))
        evaluated = evaluated or newest_complete_hours(self.target, committed, self.start)
        table = iceberg.load(self.catalog, self.target.table)
        check_target(table, self.target)
        main = publish.main_id(table)
        if main is None or not evaluated:
            raise UsageError(
                f"{self.target.table} has no complete hour to audit.",
                remedy=f"Build it with `lake catch-up {self.target.name}`, or name hours.",
            )
        plan = self._plan(evaluated)
        results = self._evaluate(table, main, plan, names)
        return PublishedAudit(
            table=self.target.table,
            hours=evaluated,
            snapshot_id=main,
            audits=results,
            unsettled=tuple(sorted(_unsettled_hours(committed).intersection(evaluated))),
            held=committed.held,
        )

    def _plan(self, hours: tuple[int, ...]) -> SessionPlan:
        """Return the hours, and the sources as of the watermark, as a plan that is not recorded and not run."""
        return SessionPlan(
            process=self.target.table,
            session_id=NO_SESSION,
            kind="rebuild",
            load="none",
            sources=self._sources_at_watermark(),
            hours=tuple(PlannedHour(hour, "chosen to be audited") for hour in hours),
            code_version=self.target.code_version,
        )

    def _sources_at_watermark(self) -> tuple[SourceRange, ...]:
        sources = []
        for name in self.target.source_tables:
            mark = self.state.watermarks.get(name)
            retained = {each.snapshot_id for each in iceberg.load(self.catalog, name).metadata.snapshots}
            if mark is None or (mark.snapshot_id is not None and mark.snapshot_id not in retained):
                raise UsageError(
                    f"{name} does not have the snapshot that {self.target.table} was built from.",
                    remedy=f"Run `lake catch-up {self.target.name}`, then audit again.",
                )
            read = SourceRange(
                source=name,
                table_uuid=mark.table_uuid,
                from_snapshot_id=mark.snapshot_id,
                to_snapshot_id=mark.snapshot_id,
                to_sequence_number=mark.sequence_number,
                to_timestamp_ms=mark.timestamp_ms,
                complete_through=mark.complete_through,
                totals=mark.totals,
                last_hour=mark.last_hour,
            )
            sources.append(read)
        return tuple(sources)

    def _evaluate(
        self, table: Table, main: int, plan: SessionPlan, names: Collection[str] | None
    ) -> tuple[AuditResult, ...]:
        from lake_assets.connections.row_checkpoint import release_checkpoints
        from lake_assets.incremental.engine.audit_run import audit_scope, evaluate
        from lake_assets.incremental.engine.prepare import TargetBuild

        spark = self.open_spark()
        max_rows = self._estimated_rows(table, plan)
        build = TargetBuild(spark, self.catalog, self.target, start=self.start, main=main, max_rows=max_rows)
        try:
            prepared = self._published_rows(build, plan)
            scope = audit_scope(
                self.catalog,
                spark,
                self.target,
                plan,
                prepared,
                snapshot_id=None,
                parent=main,
                hours=plan.hour_numbers,
                rows=self._row_count(table, main, prepared),
                start=self.start,
            )
            audits = [audit for audit in self.target.audits if names is None or audit.name in names]
            of_quarantine = quarantine_results(
                self.target,
                all_rows=prepared.row_counts.quarantined,
                new_rows=prepared.count_quarantined(),
            )
            of_rows = of_quarantine + ties_result(self.target, prepared.row_counts.tied)
            results = (*evaluate(audits, scope), *of_rows)
        finally:
            release_checkpoints(spark)
        return tuple(result for result in results if names is None or result.name in names)

    def _published_rows(self, build: TargetBuild, plan: SessionPlan) -> PreparedRows:
        """Return the published rows of the hours, with what the driving source has for them."""
        from lake_assets.base.time_filters import within
        from lake_assets.connections.row_checkpoint import checkpoint_rows
        from lake_assets.incremental.engine import prepare
        from lake_assets.incremental.engine.prepare import (
            PreparedRows,
            check_sources,
            classified_rows_in_scope,
            least_in_hours,
            new_quarantine_rows,
        )

        source = self.target.sources[0]
        check_sources(build, self.catalog, plan)
        rows, schema = classified_rows_in_scope(build, source, plan.sources[0], plan)
        if not source.trusted:
            rows = checkpoint_rows(rows)
        least = least_in_hours(self.catalog, source, plan)
        counts = prepare.count_rows(rows, source, complete_through=None, least=least)
        least.check(read=counts.read, timed=counts.in_bounds)
        quarantined = []
        if counts.quarantined:
            quarantined.append(new_quarantine_rows(build, rows, source, schema))
        return PreparedRows(
            plan=plan,
            load="none",
            hours=plan.hour_numbers,
            rows=within(build.published(), self.target.time_column, plan.hour_numbers),
            kept=rows.where(prepare.is_counted()),
            row_counts=counts,
            quarantined=quarantined,
            max_rows=build.max_rows,
        )

    def _row_count(self, table: Table, main: int, prepared: PreparedRows) -> int:
        by_hour = rows_in_hours(table, main, self.target.time_column, prepared.hours)
        return prepared.rows.count() if by_hour is None else sum(by_hour.values())

    def _estimated_rows(self, table: Table, plan: SessionPlan) -> float:
        """Return about how many rows the sources and the hours have; infinite if the metadata do not tell."""
        hours = plan.hour_numbers
        rows: float = rows_between(table, self.target.time_column, hours[0], hours[-1])
        for source in plan.sources:
            if source.to_snapshot_id is not None:
                rows += source.totals.rows if source.totals else inf
        return rows


def _unsettled_hours(committed: Committed) -> frozenset[int]:
    return committed.pending | committed.skipped | committed.held_hours
