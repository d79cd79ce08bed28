"""The comparison of a target with one full rebuild from its sources.

Each target is compared with a rebuild from its sources as of its watermark, in one pass from nothing. The sources of a
target are raw tables or targets that are compared themselves, so all targets together are compared with the raw rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.base.hours import format_hours
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.declared_columns import check_target
from lake_assets.incremental.metadata.source_tables import load_source
from lake_assets.incremental.planning.changes import Head, Watermark, changes
from lake_assets.incremental.planning.plan import Committed, PlanningInput, plan
from lake_assets.incremental.planning.session import SessionPlan

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.execution.engine import Engine
    from lake_assets.incremental.execution.state import State


@dataclass(frozen=True)
class Comparison:
    """A target compared with its full rebuild.

    Attributes:
        table: The target's table.
        rows: Number of rows of the target.
        missing: Number of rows that the rebuild has and the target lacks.
        extra: Number of rows that the target has and the rebuild lacks.
        inexact: Columns whose numbers differ by no more than the order of addition decides: such rows count as equal.
    """

    table: str
    rows: int
    missing: int
    extra: int
    inexact: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return self.missing == self.extra == 0


def compare(engine: Engine, target: Target, spark: SparkSession) -> Comparison:
    """Compare a target with its full rebuild as of the watermark, except for pending, skipped and held hours."""
    from lake_assets.base.time_filters import hours_condition
    from lake_assets.incremental.staging.reading import read_at
    from lake_assets.incremental.staging.stage import Stager
    from lake_assets.incremental.staging.unchanged_hours import compare as compare_rows

    head = publish.main_id(tables.load(engine.catalog, target.table))
    published = read_at(spark, engine.catalog, target.table, head)
    rows = published.count()
    planned = full_plan(engine, target, engine.state(target))
    if planned is None:
        return Comparison(target.table, rows, missing=0, extra=rows)
    committed = engine.state(target).committed
    excluded_hours = committed.skipped | committed.pending | committed.held_hours
    is_excluded = hours_condition(target.time_column, sorted(excluded_hours))

    def rebuilt(*, is_perturbed: bool = False) -> DataFrame:
        stager = Stager(
            spark,
            target,
            start=engine.pipeline.start_hour,
            main=None,
            complete_through=None,
            is_perturbed=is_perturbed,
            catalog=engine.catalog,
        )
        return stager.prepare(planned).rows.where(~is_excluded)

    found = compare_rows(
        target,
        rebuilt(),
        published.where(~is_excluded),
        counted=True,
        perturbed=partial(rebuilt, is_perturbed=True),
    )
    return Comparison(
        target.table,
        rows,
        missing=sum(each.missing for each in found.values()),
        extra=sum(each.extra for each in found.values()),
        inexact=tuple(sorted(frozenset[str]().union(*(each.inexact for each in found.values())))),
    )


def inexact_in_words(columns: Collection[str]) -> str:
    """Return, for people, that numbers of some columns differ by no more than the order of addition decides."""
    return (
        f"Large numbers cancel out in {', '.join(sorted(columns))}: some values differ from the rebuild's by no more"
        " than the order of addition decides. Sum decimals for exact ones."
    )


def left(engine: Engine, target: Target) -> tuple[str, ...]:
    """Return what a target has not built from its sources, in words; `compare` cannot see it.

    Returns:
        Nothing if the watermark is at the head of each source, compactions aside, and no hour is left out.
    """
    state = engine.state(target)
    found = []
    for source in target.sources:
        table = tables.load(engine.catalog, source.table)
        if not _is_read(table, state.watermarks.get(source.table)):
            found.append(f"{source.table} has snapshots that were not read")
    left_out = {
        "pending": state.committed.pending,
        "skipped": state.committed.skipped,
        "held back": state.committed.held_hours,
    }
    for reason, hours in left_out.items():
        if hours:
            found.append(f"{format_hours(hours)}: {reason}")
    return tuple(found)


def _is_read(source: Table, watermark: Watermark | None) -> bool:
    last_read = watermark.snapshot_id if watermark else None
    return publish.main_id(source) == last_read or publish.only_compacted_since(source, last_read)


def full_plan(engine: Engine, target: Target, state: State) -> SessionPlan | None:
    """Return the plan that builds a target from nothing, as of its watermarks; None if there is nothing to build."""
    watermarks = state.watermarks
    if not watermarks:
        return None
    check_target(tables.load(engine.catalog, target.table), target)
    start = engine.pipeline.start_hour
    found = []
    for source in target.sources:
        watermark = watermarks[source.table]
        up_to = Head(watermark.snapshot_id, watermark.complete_through)
        table = load_source(engine.catalog, engine.pipeline, source, reader=target)
        found.append(changes(table, source, None, start=start, up_to=up_to))
    planning_input = PlanningInput(
        target.table,
        target.mode,
        tuple(found),
        Committed(),
        grain=target.grain,
        start=start,
    )
    decision = plan(planning_input)
    if not isinstance(decision, SessionPlan) or decision.load == "none":
        return None
    return decision
