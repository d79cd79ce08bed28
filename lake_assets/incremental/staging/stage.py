"""Preparing a session: read its sources, classify their rows, and build the target's rows.

`prepared_rows.write` then writes them where nobody reads yet.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lake_assets.base.conditions import union_by_name
from lake_assets.base.time_filters import hours_condition, within
from lake_assets.connections.row_checkpoint import aggregate, checkpoint_and_aggregate
from lake_assets.incremental.declaration import Source, Target
from lake_assets.incremental.key_index.lookup import KeyIndex
from lake_assets.incremental.planning.session import RowCounts, SessionPlan
from lake_assets.incremental.staging import row_validation
from lake_assets.incremental.staging.prepared_rows import PreparedRows
from lake_assets.incremental.staging.quarantine import (
    classified_rows_in_scope,
    new_quarantine_rows,
    quarantine_rows_of_other_sources,
)
from lake_assets.incremental.staging.read_check import check_sources, least_appended, least_in_hours
from lake_assets.incremental.staging.reading import coalesce_if_few, hash_join_hint, is_few, read_appended
from lake_assets.incremental.staging.rebuild import Rebuild, RebuiltHours
from lake_assets.incremental.staging.target_build import TargetBuild

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.incremental.metadata.least_rows import LeastRows


class Stager:
    """Prepares the sessions of one target on one Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        target: Target,
        *,
        start: int,
        main: int | None,
        complete_through: int | None,
        last_built: float | None = None,
        overdue: Container[int] = (),
        max_rows: float = inf,
        index: KeyIndex | None = None,
        is_perturbed: bool = False,
        catalog: Catalog,
    ) -> None:
        """Make a stager.

        Args:
            start: First hour of the pipeline.
            main: The target's snapshot to build on; None for an empty target.
            complete_through: The target's before the session; rows of hours up to it count as late.
            last_built: Last hour that may have been built before. Hours up to it whose rows equal the published ones
                are left out; None leaves none out.
            overdue: Hours to be built in any case, even if they have no rows.
            max_rows: About how many rows the session reads of any table, at most.
            index: Finds rows by a column's values; None to read tables whole.
            is_perturbed: Whether floating point numbers of the sources are changed a little, for a comparison.
            catalog: Has the metadata of the sources, by which it is checked that Spark reads all of their rows.
        """
        self.catalog = catalog
        self.target = target
        self.complete_through = complete_through
        self.single_partition = is_few(max_rows)
        self.build = TargetBuild(
            spark, catalog, target, start=start, main=main, max_rows=max_rows, index=index, is_perturbed=is_perturbed
        )
        self.hours = Rebuild(self.build, last_built=last_built, overdue=overdue)

    def prepare(self, plan: SessionPlan) -> PreparedRows:
        """Read and transform what the plan names.

        An append becomes an overwrite if one of its deliveries may replace a row that the target has already.

        Raises:
            FilesMisread: Spark does not read a file rightly.
            RowsUnread: Spark reads fewer rows of a source than its metadata contain.
        """
        check_sources(self.build, self.catalog, plan)
        if plan.load == "append":
            prepared = self._prepare_append(plan)
            if prepared is not None:
                return prepared
        return self._prepare_overwrite(plan)

    def _prepare_append(self, plan: SessionPlan) -> PreparedRows | None:
        """Prepare the new rows, without those of held and deferred hours.

        Returns:
            None if a new row may replace a stored one.
        """
        source = self.target.sources[0]
        rows, schema = self._classified_new_rows(source, plan)
        least = least_appended(self.catalog, source, plan)
        if self._can_repeat_stored_rows(source, plan):
            stored = within(self.build.published(), self.target.time_column, plan.hour_numbers)
            stored = hash_join_hint(stored, few=self.single_partition)
            rows = row_validation.classify_against_stored(rows, stored, source, self.target)
        rows, counts = self._computed_and_counted(rows, source, least)
        if counts.contested:
            return None
        kept = rows.where(row_validation.is_counted())
        quarantined = []
        if counts.quarantined:
            quarantined.append(new_quarantine_rows(self.build, rows, source, schema))
        inputs = [row_validation.drop_classification(kept)]
        return PreparedRows(
            plan=plan,
            load="append",
            hours=tuple(sorted(self.target.grain.whole(counts.hours))),
            rows=self.build.transform(plan.session_id, counts.hours, inputs),
            kept=kept,
            row_counts=counts,
            quarantined=quarantined,
            max_rows=self.build.max_rows,
        )

    def _classified_new_rows(self, source: Source, plan: SessionPlan) -> tuple[DataFrame, StructType]:
        """Return the classified rows that were appended to a source, and its columns."""
        rows = coalesce_if_few(self._appended_rows(source, plan), self.build.max_rows)
        schema = rows.schema
        # Rows are classified first: a version in an hour that is left out may supersede one of another hour.
        classified = row_validation.classify(rows, source, schema=schema, start=self.build.start)
        if plan.left_out:
            is_left_out = hours_condition(source.time_column, plan.left_out)
            classified = classified.where(~F.coalesce(is_left_out, F.lit(False)))
        return classified, schema

    def _appended_rows(self, source: Source, plan: SessionPlan) -> DataFrame:
        """Return the rows of the new snapshots, and those that have waited."""
        span = plan.sources[0]
        parts = [read_appended(self.build.spark, self.catalog, span)]
        for late in plan.late_rows:
            earlier = replace(span, from_snapshot_id=late.from_snapshot_id, to_snapshot_id=late.to_snapshot_id)
            waited = read_appended(self.build.spark, self.catalog, earlier)
            parts.append(within(waited, source.time_column, late.hours))
        return union_by_name(*parts)

    def _computed_and_counted(
        self,
        rows: DataFrame,
        source: Source,
        least: LeastRows,
        hours: Sequence[int] | None = None,
    ) -> tuple[DataFrame, RowCounts]:
        """Return classified rows, computed except those of a trusted source that are overwritten, and their counts.

        Raises:
            RowsUnread: Spark has read fewer rows than `least`.
        """
        aggregates = row_validation.count_aggregates(
            source,
            complete_through=self.complete_through,
            hours=hours,
            least=least,
        )
        if hours is not None and source.trusted:
            kept, values = rows, aggregate(rows, aggregates)
        else:
            kept, values = checkpoint_and_aggregate(rows, aggregates)
        counts = row_validation.row_counts(values)
        least.check(read=counts.read, timed=counts.in_bounds)
        return kept, counts

    def _can_repeat_stored_rows(self, source: Source, plan: SessionPlan) -> bool:
        if source.has_versions:
            return False  # an append is planned only if no new key has a row already
        has_single_keys = source.key is not None and len(self.target.key) == 1
        return has_single_keys and self.build.main is not None and bool(plan.hours)

    def _prepare_overwrite(self, plan: SessionPlan) -> PreparedRows:
        """Prepare the planned hours, rebuilt from all sources. A plan without hours may have rows to quarantine."""
        source = self.target.sources[0]
        hours = plan.hour_numbers
        rows, schema = classified_rows_in_scope(self.build, source, plan.sources[0], plan)
        least = least_in_hours(self.catalog, source, plan)
        rows, counts = self._computed_and_counted(rows, source, least, hours)
        in_hours = within(rows, source.time_column, hours)
        kept = in_hours.where(row_validation.is_counted())
        rebuilt = RebuiltHours(kept)
        if hours:
            rebuilt = self.hours.rebuild(plan, kept)
        changed = tuple(hour for hour in hours if hour not in rebuilt.unchanged)
        changed_rows = rebuilt.rows
        if rebuilt.unchanged:
            changed_rows = within(changed_rows, self.target.time_column, changed)
        quarantined = []
        if counts.quarantined:
            quarantined.append(new_quarantine_rows(self.build, rows, source, schema))
        quarantined += quarantine_rows_of_other_sources(self.build, plan)
        return PreparedRows(
            plan=plan,
            load="overwrite" if hours else "none",
            hours=changed,
            rows=changed_rows,
            kept=kept,
            row_counts=counts,
            quarantined=quarantined,
            max_rows=self.build.max_rows,
            unchanged=rebuilt.unchanged,
            rows_unchanged=rebuilt.rows_unchanged,
        )
