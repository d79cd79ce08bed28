"""Rebuilding hours: of all entities, or of those that changed; and which hours equal the published ones."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from lake_assets.base.time_filters import before, within
from lake_assets.connections.row_checkpoint import checkpoint_rows
from lake_assets.incremental.declaration import Sequential, Stateless
from lake_assets.incremental.planning.session import SessionPlan, SourceRange
from lake_assets.incremental.staging import row_validation
from lake_assets.incremental.staging.entity_rows import ChangedEntities, differing, ids_of, rows_of_entities
from lake_assets.incremental.staging.reading import coalesce_if_few, read_appended
from lake_assets.incremental.staging.target_build import TargetBuild
from lake_assets.incremental.staging.unchanged_hours import unchanged_partitions


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
            inputs = [row_validation.drop_classification(kept)]
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
