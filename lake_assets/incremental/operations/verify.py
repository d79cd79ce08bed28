"""Targets compared with a rebuild from their sources, as of their watermarks. Nothing is written.

`compare` rebuilds a target in one pass from nothing. The sources of a target are raw tables or targets that are
compared themselves, so all targets together are compared with the raw rows. `verify_hours` rebuilds some hours, other
ones each day, so that all hours come round. It rebuilds a sequential target from its stored hour before each run of
hours: that checks the step from one hour to the next, and all steps come round.

Rows are compared as those of a rebuild are, in whatever order, and floating point numbers with a tolerance: see
`engine.compare`. Published rows are read as audits read them, by queries of their own.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.base.columns import quoted
from lake_assets.base.hours import Grain, format_hours, hour_key, ranges
from lake_assets.errors import TableMissing
from lake_assets.incremental.declaration import Sequential, Target
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.iceberg import hours_present
from lake_assets.incremental.engine.model import PlannedHour, SessionPlan
from lake_assets.incremental.engine.state import State

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

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
        failure: Why the target could not be compared, if others were; None if it was.
    """

    table: str
    rows: int = 0
    missing: int = 0
    extra: int = 0
    inexact: tuple[str, ...] = ()
    failure: str | None = None

    @property
    def equal(self) -> bool:
        return self.failure is None and self.missing == self.extra == 0


def compare(engine: Engine, target: Target) -> Comparison:
    """Compare a target with its full rebuild as of the watermark, except for pending, skipped and held hours.

    Raises:
        TableMissing: The target does not exist.
    """
    state, table, planned, hours = _read(engine, target)
    rows = table.scan().count()
    if planned is None:
        return Comparison(target.table, rows, missing=0, extra=rows)
    hours = hours.difference(*_left_out(state).values())
    found = _compare_hours(engine, target, table, planned, sorted(hours), from_nothing=True).values()
    missing, extra = sum(each.missing for each in found), sum(each.extra for each in found)
    return Comparison(target.table, rows, missing, extra, _inexact(found))


def left(engine: Engine, target: Target) -> tuple[str, ...]:
    """Return what a target has not built from its sources, in words; `compare` cannot see it.

    Returns:
        Nothing if the watermark is at the head of each source, compactions aside, and no hour is left out.
    """
    state = engine.state(target)
    found = []
    for source in target.sources:
        table = iceberg.load(engine.catalog, source.table)
        watermark = state.watermarks.get(source.table)
        last_read = watermark.snapshot_id if watermark else None
        if publish.main_id(table) != last_read and not publish.only_compacted_since(table, last_read):
            found.append(f"{source.table} has snapshots that were not read")
    return (*found, *_in_words(_left_out(state)))


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
        TableMissing: The target does not exist.
    """
    began = time.perf_counter()
    state, table, planned, candidates = _read(engine, target)
    if planned is None:
        return Verification(target.table, note="Nothing was built yet.")
    left_out = _left_out(state)
    comparable = candidates.difference(*left_out.values())
    if wanted is None:
        hours = hours_of_day(comparable, day=day, limit=limit, grain=target.grain)
        wanted = candidates if not hours else range(hours[0], hours[-1] + 1)
    else:
        wanted = target.grain.whole(wanted)
        hours = tuple(sorted(comparable.intersection(wanted)))
    left_out["not built, or without rows"] = set(wanted).difference(candidates, *left_out.values())
    found = _compare_hours(engine, target, table, planned, hours)
    differing = {first for first, each in found.items() if first is not None and not each.equal}
    notes = []
    if isinstance(target.mode, Sequential) and hours:
        notes.append("Each run of hours was rebuilt from the stored hour before it.")
    inexact = _inexact(found.values())
    if inexact:
        notes.append(
            f"Large numbers cancel out in {', '.join(inexact)}: some values differ from the rebuild's by no more"
            " than the order of addition decides. Sum decimals for exact ones."
        )
    return Verification(
        target.table,
        compared=hours,
        differing=tuple(sorted(target.grain.whole(differing))),
        left_out=_in_words({reason: each.intersection(wanted) for reason, each in left_out.items()}),
        rows=sum(each.published for each in found.values()),
        rows_rebuilt=sum(each.rebuilt for each in found.values()),
        seconds=time.perf_counter() - began,
        note=" ".join(notes),
    )


# What both share


def _read(engine: Engine, target: Target) -> tuple[State, Table, SessionPlan | None, set[int]]:
    """Return the state of a target, and the table that was loaded with it, so that rows and watermarks fit.

    Returns:
        Also the plan that builds the target from nothing, as of its watermarks, None if there is nothing to build; and
        the hours that such a rebuild or the target has.
    """
    state = engine.state(target)
    if state.table is None:
        raise TableMissing(target.table)
    decision = engine.planner_for(target).from_nothing(state) if state.watermarks else None
    if not isinstance(decision, SessionPlan) or decision.load == "none":
        return state, state.table, None, set()
    present = target.grain.whole(hours_present(state.table, target.time_column))
    return state, state.table, decision, {*decision.hour_numbers, *present}


def _left_out(state: State) -> dict[str, set[int]]:
    """Return reason → hours of a target that differ from a rebuild by intent."""
    committed = state.committed
    return {
        "pending": set(committed.pending),
        "skipped": set(committed.skipped),
        "held back": set(committed.held_hours),
    }


def _in_words(left_out: Mapping[str, Collection[int]]) -> tuple[str, ...]:
    return tuple(f"{format_hours(hours)}: {reason}" for reason, hours in left_out.items() if hours)


def _inexact(found: Collection[Compared]) -> tuple[str, ...]:
    return tuple(sorted(frozenset[str]().union(*(each.inexact for each in found))))


def _compare_hours(
    engine: Engine,
    target: Target,
    table: Table,
    planned: SessionPlan,
    hours: Sequence[int],
    *,
    from_nothing: bool = False,
) -> dict[int | None, Compared]:
    """Return first hour of a partition → how it compares.

    Args:
        table: The target, at the head that is compared.
        planned: The plan that builds it from nothing.
        hours: The hours to compare, ascending.
        from_nothing: Whether all planned hours are rebuilt in one pass, and rows without a time count, too. Otherwise
            these hours are rebuilt alone; of a sequential target, each run of consecutive hours.
    """
    if not hours:
        return {}
    from lake_assets.base.time_filters import within
    from lake_assets.connections.row_checkpoint import release_checkpoints
    from lake_assets.incremental.engine.audit_reads import in_hours, rows_at
    from lake_assets.incremental.engine.compare import compare as compare_rows
    from lake_assets.incremental.engine.stage import Stager

    spark = engine.open_spark()
    head = publish.main_id(table)
    from_stored = isinstance(target.mode, Sequential) and not from_nothing
    max_rows = publish.rows_of(table, head)
    for span in planned.sources:
        max_rows += publish.rows_of(iceberg.load(engine.catalog, span.source), span.to_snapshot_id)
    # With both ends equal no row is looked for that has no hour: those are in quarantine, and in no target.
    sources = tuple(replace(span, from_snapshot_id=span.to_snapshot_id) for span in planned.sources)
    as_overwrite = replace(planned, load="overwrite", sources=sources, changed_through=None)

    def rebuilt(part: Sequence[int], *, is_perturbed: bool = False) -> DataFrame:
        stager = Stager(
            spark,
            target,
            start=engine.pipeline.start_hour,
            main=head if from_stored else None,
            complete_through=None,
            max_rows=max_rows,
            is_perturbed=is_perturbed,
            catalog=engine.catalog,
        )
        built = planned.hour_numbers if from_nothing else part
        session = replace(as_overwrite, hours=tuple(PlannedHour(hour, "verification") for hour in built))
        return within(stager.prepare(session).rows, target.time_column, part)

    found: dict[int | None, Compared] = {}
    try:
        for part in [range(first, last + 1) for first, last in ranges(hours)] if from_stored else [hours]:
            is_compared = in_hours(target.time_column, part)
            if from_nothing:
                is_compared += f" or {quoted(target.time_column)} is null"
            published = rows_at(spark, table, head).where(is_compared)
            perturbed = partial(rebuilt, part, is_perturbed=True)
            found |= compare_rows(target, rebuilt(part), published, counted=True, perturbed=perturbed)
    finally:
        release_checkpoints(spark)
    return found
