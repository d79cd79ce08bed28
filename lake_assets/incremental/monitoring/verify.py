"""The equality that proves it all: every target equals what one full rebuild from its sources gives.

Each target is compared with a rebuild from its sources as they stand at its watermark, in one pass from nothing. The
sources of a target are raw tables, or targets that are compared themselves: so all together are compared with raw rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.base.hours import format_hours
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.planning.changes import Head, Watermark, changes
from lake_assets.incremental.planning.plan import Committed, PlanningInput, plan
from lake_assets.incremental.planning.session import SessionPlan

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.execution.engine import Engine


@dataclass(frozen=True)
class Comparison:
    """rows: of the target. missing: rows that the rebuild has and the target lacks; extra: the other way round."""

    table: str
    rows: int
    missing: int
    extra: int

    @property
    def equal(self) -> bool:
        return self.missing == self.extra == 0


def compare(engine: Engine, target: Target, spark: SparkSession) -> Comparison:
    """Compare a target with its full rebuild as of the watermark. Pending, skipped and held hours are left aside."""
    from lake_assets.base.time_filters import hours_condition
    from lake_assets.incremental.staging.reading import read_at
    from lake_assets.incremental.staging.stage import Stager

    state = engine.store.state(target.table)
    published = read_at(spark, target.table, publish.main_id(tables.load(engine.catalog, target.table)))
    planned = _full_plan(engine, target)
    if planned is None:
        return Comparison(target.table, published.count(), 0, published.count())
    staging = Stager(spark, target, start=engine.pipeline.start_hour, main=None, complete_through=None).prepare(planned)
    committed = state.committed
    open_hours = committed.skipped | committed.pending | committed.held_hours
    aside = hours_condition(target.time_column, sorted(open_hours))
    expected, found = staging.rows.where(~aside), published.where(~aside)
    return Comparison(target.table, published.count(), _count(expected, found), _count(found, expected))


def left(engine: Engine, target: Target) -> tuple[str, ...]:
    """What a target has not taken in of its sources, in words: a comparison as of its watermark cannot tell.

    Empty when the watermark stands at the head of each source, compactions aside, and no hour is left aside.
    """
    state = engine.store.state(target.table)
    committed = state.committed
    behind = [
        f"{source.table} has snapshots that were not read"
        for source in target.sources
        if not _is_read(tables.load(engine.catalog, source.table), state.watermarks.get(source.table))
    ]
    aside = {"pending": committed.pending, "skipped": committed.skipped, "held back": committed.held_hours}
    return (*behind, *(f"{format_hours(hours)}: {why}" for why, hours in aside.items() if hours))


def _is_read(source: Table, mark: Watermark | None) -> bool:
    seen = mark.snapshot_id if mark else None
    return publish.main_id(source) == seen or publish.only_compacted_since(source, seen)


def _full_plan(engine: Engine, target: Target) -> SessionPlan | None:
    marks = engine.store.state(target.table).watermarks
    if not marks:
        return None
    found = tuple(
        changes(
            tables.load(engine.catalog, source.table),
            source,
            None,
            start=engine.pipeline.start_hour,
            up_to=Head(marks[source.table].snapshot_id, marks[source.table].complete_through),
        )
        for source in target.sources
    )
    start = engine.pipeline.start_hour
    decision = plan(PlanningInput(target.table, target.mode, found, Committed(), grain=target.grain, start=start))
    return decision if isinstance(decision, SessionPlan) and decision.load != "none" else None


def _count(left: DataFrame, right: DataFrame) -> int:
    return left.exceptAll(right).count()
