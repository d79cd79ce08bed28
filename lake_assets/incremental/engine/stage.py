"""Rebuilding hours: of all entities, or of those that changed; and which hours equal the published ones.

Preparing a session: read its sources, classify their rows, and build the target's rows.

`prepared_rows.write` then writes them where nobody reads yet.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lake_assets.base.conditions import union_by_name
from lake_assets.base.time_filters import before, hours_condition, within
from lake_assets.connections.row_checkpoint import aggregate, checkpoint_and_aggregate, checkpoint_rows
from lake_assets.incremental.declaration import Sequential, Source, Stateless, Target
from lake_assets.incremental.engine import prepare
from lake_assets.incremental.engine.compare import unchanged_partitions
from lake_assets.incremental.engine.key_index import KeyIndex
from lake_assets.incremental.engine.model import RowCounts, SessionPlan, SourceRange
from lake_assets.incremental.engine.prepare import (
    ChangedEntities,
    PreparedRows,
    TargetBuild,
    check_sources,
    classified_rows_in_scope,
    coalesce_if_few,
    differing,
    hash_join_hint,
    ids_of,
    is_few,
    least_appended,
    least_in_hours,
    new_quarantine_rows,
    quarantine_rows_of_other_sources,
    read_appended,
    rows_of_entities,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.incremental.engine.readable import LeastRows


@dataclass(frozen=True)
class RebuiltHours:
    """The rows of the planned hours.

    Attributes:
        unchanged: Hours whose rows equal the published ones.
        rows_unchanged: Rows in `unchanged`.
    """

    rows: DataFrame
    unchanged: tuple[int, ...] = ()
    rows_unchanged: int = 0


class Rebuild:
    """Rebuilds the planned hours of a target.

    Args:
        last_built: Last hour that may have been built before; hours up to it are compared. None compares no hour.
        overdue: Hours that count as changed if they are empty.
    """

    def __init__(
        self,
        build: TargetBuild,
        *,
        last_built: float | None,
        overdue: Container[int],
    ) -> None:
        self.build = build
        self.target = build.target
        self.last_built = last_built
        self.overdue = overdue

    def rebuild(self, plan: SessionPlan, kept: DataFrame) -> RebuiltHours:
        """Build the planned hours, and compare those that were built before with what is published.

        Args:
            kept: Rows of the driving source within the planned hours that should appear in the target, classified.
        """
        if plan.changed_through is not None:
            return self._rebuild_changed_entities(plan, plan.changed_through)
        return self._rebuild_all_entities(plan, kept)

    def _rebuild_all_entities(self, plan: SessionPlan, kept: DataFrame) -> RebuiltHours:
        hours = plan.hour_numbers
        rows = self._build_all_entities(plan, kept)
        rows = within(rows, self.target.time_column, hours)
        built_before = self._built_before(hours)
        if not built_before:
            return RebuiltHours(rows)
        rows = checkpoint_rows(rows)
        same = self._unchanged_partitions(rows, self.build.published(), built_before)
        return RebuiltHours(
            rows=rows,
            unchanged=self._whole_partitions(same),
            rows_unchanged=sum(same.values()),
        )

    def _build_all_entities(self, plan: SessionPlan, kept: DataFrame) -> DataFrame:
        hours = plan.hour_numbers
        mode = self.target.mode
        if isinstance(mode, Stateless):
            inputs = [prepare.drop_classification(kept)]
            return self.build.transform(plan.session_id, hours, inputs)
        if isinstance(mode, Sequential):
            return self.build.build_hours(plan, hours, published=self.build.published())
        found = None if mode.entity is None else rows_of_entities(self.build, plan, kept, mode.entity)
        return self.build.build_hours(plan, hours, published=None, found=found)

    def _built_before(self, hours: Sequence[int]) -> list[int]:
        if self.build.main is None or self.last_built is None:
            return []
        return [hour for hour in hours if hour <= self.last_built]

    def _rebuild_changed_entities(self, plan: SessionPlan, through: int) -> RebuiltHours:
        """Rebuild the changed entities alone in the hours up to `through`, and all entities in the hours after it.

        Up to `through`, the rows of all other entities are as published.
        """
        time_column = self.target.time_column
        max_rows = self.build.max_rows
        published = self.build.published().select(*self.target.columns)
        changed = self._changed_entities(plan, through)
        published_changed = changed.of(published)
        hours = [hour for hour in plan.hour_numbers if hour <= through]

        rebuilt = self.build.build_hours(
            plan,
            hours,
            published=published_changed,
            limit=changed.of,
        )
        rebuilt = within(rebuilt, time_column, hours)
        rebuilt = checkpoint_rows(coalesce_if_few(rebuilt, max_rows))
        same: dict[int, int] = {}
        if self.last_built is not None:
            same = self._unchanged_partitions(rebuilt, published_changed, hours)
        others = changed.others(within(published, time_column, hours))
        rows = rebuilt.unionByName(others)

        new_hours = [hour for hour in plan.hour_numbers if hour > through]
        if new_hours:
            # They build on the state of the hours before as rebuilt here.
            earlier = before(published, time_column, hours[0])
            state = earlier.unionByName(rows)
            new_rows = self.build.build_hours(plan, new_hours, published=state)
            rows = rows.unionByName(within(new_rows, time_column, new_hours))
        unchanged = self._whole_partitions(same)
        rows_unchanged = 0
        if unchanged:
            rows_unchanged = within(published, time_column, unchanged).count()
        return RebuiltHours(
            rows=coalesce_if_few(rows, max_rows),
            unchanged=unchanged,
            rows_unchanged=rows_unchanged,
        )

    def _changed_entities(self, plan: SessionPlan, through: int) -> ChangedEntities:
        """Return the entities whose source rows were added, changed or removed in this session, up to an hour."""
        mode = self.target.mode
        assert isinstance(mode, Sequential)
        assert mode.entity is not None
        hours = [hour for hour in (*plan.hour_numbers, *plan.skipped) if hour <= through]
        changed_rows = []
        for source, span in self.build.sources(plan):
            rows = self._changed_rows(span)
            changed_rows.append(within(rows, source.time_column, hours))
        ids = coalesce_if_few(ids_of(changed_rows, mode.entity), self.build.max_rows)
        return ChangedEntities(mode.entity, checkpoint_rows(ids))

    def _changed_rows(self, span: SourceRange) -> DataFrame:
        """Return the rows of a source that its snapshots of a range added or removed."""
        if span.appends_only:
            return read_appended(self.build.spark, self.build.catalog, span)
        rows_before = self.build.read(span.source, span.from_snapshot_id)
        rows_after = self.build.read(span.source, span.to_snapshot_id)
        return differing(rows_before, rows_after)

    def _unchanged_partitions(
        self,
        rows: DataFrame,
        published: DataFrame,
        hours: Sequence[int],
    ) -> dict[int, int]:
        return unchanged_partitions(
            self.target,
            rows,
            published,
            hours,
            overdue=self.overdue,
        )

    def _whole_partitions(self, first_hours: dict[int, int]) -> tuple[int, ...]:
        return tuple(sorted(self.target.grain.whole(first_hours)))


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
            rows = prepare.classify_against_stored(rows, stored, source, self.target)
        rows, counts = self._computed_and_counted(rows, source, least)
        if counts.contested:
            return None
        kept = rows.where(prepare.is_counted())
        quarantined = []
        if counts.quarantined:
            quarantined.append(new_quarantine_rows(self.build, rows, source, schema))
        inputs = [prepare.drop_classification(kept)]
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
        classified = prepare.classify(rows, source, schema=schema, start=self.build.start)
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
        aggregates = prepare.count_aggregates(
            source,
            complete_through=self.complete_through,
            hours=hours,
            least=least,
        )
        if hours is not None and source.trusted:
            kept, values = rows, aggregate(rows, aggregates)
        else:
            kept, values = checkpoint_and_aggregate(rows, aggregates)
        counts = prepare.row_counts(values)
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
        kept = in_hours.where(prepare.is_counted())
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
