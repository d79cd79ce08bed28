"""Which hours of a target a day's verification compares: some each day, so that all hours come round. Pure.

The comparison of a target with one full rebuild from its sources.

Each target is compared with a rebuild from its sources as of its watermark, in one pass from nothing. The sources of a
target are raw tables or targets that are compared themselves, so all targets together are compared with the raw rows.

The standing check of a target: some of its hours, compared with a rebuild from its sources as of its watermark.

Rows are compared as those of a rebuild are, in whatever order, and floating point numbers with a tolerance: see
`engine.compare`. Nothing is written.

A stateless or stateful target is rebuilt from its sources alone. A sequential target is rebuilt from its stored hour
before each run of hours: that checks the step from one hour to the next, and all steps come round.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.base.grain import Grain
from lake_assets.base.hours import format_hours, hour_key, ranges
from lake_assets.incremental.declaration import Sequential, Target
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.columns import check_target, load_source
from lake_assets.incremental.engine.model import Committed, PlannedHour, PlanningInput, SessionPlan
from lake_assets.incremental.engine.planning import plan
from lake_assets.incremental.engine.source_changes import Head, Watermark, changes, hours_present
from lake_assets.incremental.engine.state import State

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.engine.compare import Compared
    from lake_assets.incremental.engine.engine import Engine


GOLDEN_RATIO = 2_654_435_769
TURN = 2**32
"""Steps of `GOLDEN_RATIO / TURN` of a circle visit its arcs evenly, also while the number of arcs changes (D. Knuth,
The Art of Computer Programming, volume 3, section 6.4): n arcs take fewer than 2 n steps. If a table grows by more
hours a day than are compared, no choice reaches all of them."""


def hours_of_day(candidates: Collection[int], *, day: int, limit: int, grain: Grain) -> tuple[int, ...]:
    """Return the hours to compare on a day, ascending: the candidates in one chunk of consecutive hours.

    Args:
        candidates: Hours that can be compared.
        day: Number of the day; any origin.
        limit: Most hours of a chunk. A chunk has one partition of the grain at least.
        grain: Chunks contain whole partitions.
    """
    size = max(1, limit // grain.hours)
    chunks = sorted({grain.number(hour) // size for hour in candidates})
    if not chunks:
        return ()
    angle = day * GOLDEN_RATIO % TURN
    chosen = chunks[angle * len(chunks) // TURN]
    return tuple(sorted(hour for hour in candidates if grain.number(hour) // size == chosen))


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
    from lake_assets.incremental.engine.compare import compare as compare_rows
    from lake_assets.incremental.engine.prepare import read_at
    from lake_assets.incremental.engine.stage import Stager

    head = publish.main_id(iceberg.load(engine.catalog, target.table))
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
        table = iceberg.load(engine.catalog, source.table)
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
    check_target(iceberg.load(engine.catalog, target.table), target)
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


MOST_REMEDIES = 3
"""Number of ranges that a message names a rebuild for."""


@dataclass(frozen=True)
class Verification:
    """A target's hours, compared with a rebuild.

    Attributes:
        table: The target's table.
        compared: The hours compared, ascending.
        differing: Those of them whose rows are not those of the rebuild.
        left_out: The hours that were wanted and not compared, with reasons, for people.
        rows: Rows of the published hours compared.
        rows_rebuilt: Rows of the same hours, rebuilt.
        seconds: Wall time.
        note: What else a person should know; empty for nothing.
    """

    table: str
    compared: tuple[int, ...] = ()
    differing: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()
    rows: int = 0
    rows_rebuilt: int = 0
    seconds: float = 0.0
    note: str = ""

    @property
    def equal(self) -> bool:
        return not self.differing

    @property
    def what(self) -> str:
        """The result in a sentence."""
        if self.differing:
            hours = format_hours(self.differing)
            return f"{self.table} differs from a rebuild from its sources in {hours}."
        if not self.compared:
            return f"No hour of {self.table} was compared."
        return f"{self.table} equals a rebuild from its sources in {format_hours(self.compared)}."

    @property
    def remedy(self) -> str:
        """What to do about differing hours; empty without any."""
        found = list(ranges(self.differing))
        if not found:
            return ""
        name = self.table.split(".")[1]
        commands = [f"`lake rebuild {name} {hour_key(first)} {hour_key(last)}`" for first, last in found]
        more = len(commands) - MOST_REMEDIES
        rest = f", and {more} more ranges likewise" if more > 0 else ""
        return f"Rebuild the hours: {', '.join(commands[:MOST_REMEDIES])}{rest}."


def verify_hours(
    engine: Engine,
    target: Target,
    *,
    day: int,
    limit: int,
    wanted: Collection[int] | None = None,
) -> Verification:
    """Compare hours of a target with a rebuild. Starts Spark only if there are hours to compare.

    Args:
        day: Number of the day, which chooses the hours.
        limit: Most hours that a day compares; of a daily target at least one day.
        wanted: The hours to compare; None for those of the day.

    Raises:
        SourceError: A source cannot be read as of the watermark.
    """
    began = time.perf_counter()
    state = engine.state(target)
    head = publish.main_id(iceberg.load(engine.catalog, target.table))
    unsettled = _unsettled(engine, target, state)
    planned = full_plan(engine, target, state)
    if unsettled or planned is None:
        return Verification(target.table, note=unsettled or "Nothing was built yet.")
    excluded = _excluded(state)
    present = target.grain.whole(hours_present(iceberg.load(engine.catalog, target.table), target.time_column))
    candidates = {*planned.hour_numbers, *present}
    left_out: set[int] = set().union(*excluded.values())
    comparable = candidates - left_out
    if wanted is None:
        hours = hours_of_day(comparable, day=day, limit=limit, grain=target.grain)
        wanted = candidates if not hours else range(hours[0], hours[-1] + 1)
    else:
        wanted = target.grain.whole(wanted)
        hours = tuple(sorted(comparable.intersection(wanted)))
    compared = _compare(engine, target, planned, head, hours)
    return replace(
        _verification(target, hours, compared),
        left_out=_in_words(excluded | {"not built, or without rows": set(wanted) - candidates - left_out}, wanted),
        seconds=time.perf_counter() - began,
    )


def _unsettled(engine: Engine, target: Target, state: State) -> str:
    """Return why rows and watermarks may not belong together: a session ran meanwhile. Empty if they do."""
    return "" if engine.state(target).n == state.n else "A session ran meanwhile; verify again."


def _excluded(state: State) -> dict[str, set[int]]:
    """Return reason → hours of a target that differ from a rebuild by intent."""
    committed = state.committed
    return {
        "pending": set(committed.pending),
        "skipped": set(committed.skipped),
        "held back": set(committed.held_hours),
    }


def _in_words(excluded: Mapping[str, Collection[int]], wanted: Collection[int]) -> tuple[str, ...]:
    found = []
    for reason, hours in excluded.items():
        concerned = set(hours).intersection(wanted)
        if concerned:
            found.append(f"{format_hours(concerned)}: {reason}")
    return tuple(found)


def _verification(target: Target, hours: tuple[int, ...], compared: Mapping[int, Compared]) -> Verification:
    differing: list[int] = []
    for first, found in sorted(compared.items()):
        if not found.equal:
            differing += sorted(target.grain.whole([first]))
    notes = []
    if isinstance(target.mode, Sequential) and hours:
        notes.append("Each run of hours was rebuilt from the stored hour before it.")
    inexact = frozenset[str]().union(*(found.inexact for found in compared.values()))
    if inexact:
        notes.append(inexact_in_words(inexact))
    return Verification(
        target.table,
        compared=hours,
        differing=tuple(differing),
        rows=sum(found.published for found in compared.values()),
        rows_rebuilt=sum(found.rebuilt for found in compared.values()),
        note=" ".join(notes),
    )


def _compare(
    engine: Engine,
    target: Target,
    planned: SessionPlan,
    head: int | None,
    hours: tuple[int, ...],
) -> dict[int, Compared]:
    """Return first hour of a partition → how it compares. Each run of hours of a sequential target is rebuilt alone."""
    if not hours:
        return {}
    from lake_assets.connections.row_checkpoint import release_checkpoints
    from lake_assets.incremental.engine.compare import compare

    assert engine.spark is not None, "an engine without Spark can compare nothing"
    spark = engine.spark()
    found: dict[int, Compared] = {}
    try:
        for part in _runs(target, hours):
            build = partial(_rebuilt, engine, target, planned, head, part, spark)
            published = _published(engine, target, head, part, spark)
            compared = compare(target, build(), published, perturbed=partial(build, is_perturbed=True))
            found.update({first: each for first, each in compared.items() if first is not None})
    finally:
        release_checkpoints(spark)
    return found


def _runs(target: Target, hours: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield what is rebuilt at once: all hours; of a sequential target, each run of consecutive hours."""
    if not isinstance(target.mode, Sequential):
        yield hours
        return
    for first, last in ranges(hours):
        yield tuple(range(first, last + 1))


def _published(
    engine: Engine, target: Target, head: int | None, hours: tuple[int, ...], spark: SparkSession
) -> DataFrame:
    from lake_assets.incremental.engine.audit_reads import in_hours, rows_at

    rows = rows_at(spark, iceberg.load(engine.catalog, target.table), head)
    return rows.where(in_hours(target.time_column, hours))


def _rebuilt(
    engine: Engine,
    target: Target,
    planned: SessionPlan,
    head: int | None,
    hours: tuple[int, ...],
    spark: SparkSession,
    *,
    is_perturbed: bool = False,
) -> DataFrame:
    from lake_assets.base.time_filters import within
    from lake_assets.incremental.engine.stage import Stager

    stager = Stager(
        spark,
        target,
        start=engine.pipeline.start_hour,
        main=head if isinstance(target.mode, Sequential) else None,
        complete_through=None,
        max_rows=_estimated_rows(engine, target, planned, head),
        is_perturbed=is_perturbed,
        catalog=engine.catalog,
    )
    # With both ends equal no row is looked for that has no hour: those are in quarantine, and in no target.
    sources = tuple(replace(span, from_snapshot_id=span.to_snapshot_id) for span in planned.sources)
    part = replace(
        planned,
        load="overwrite",
        sources=sources,
        hours=tuple(PlannedHour(hour, "verification") for hour in hours),
        changed_through=None,
    )
    return within(stager.prepare(part).rows, target.time_column, hours)


def _estimated_rows(engine: Engine, target: Target, planned: SessionPlan, head: int | None) -> float:
    rows = publish.rows_of(iceberg.load(engine.catalog, target.table), head)
    for span in planned.sources:
        rows += publish.rows_of(iceberg.load(engine.catalog, span.source), span.to_snapshot_id)
    return rows
