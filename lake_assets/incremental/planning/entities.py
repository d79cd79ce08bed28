"""Whether a session recomputes, in hours that were built before, all entities or only those that changed. Pure.

If the rows of one entity depend on no row of another, an entity without a changed source row comes out as it was
published. This holds if everything that was read has been built, by the present code, and nobody else has written to
the target. Then the cheaper way is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lake_assets.incremental.declaration import Sequential
from lake_assets.incremental.planning.changes import SourceChanges
from lake_assets.incremental.planning.plan import PlanningInput
from lake_assets.incremental.planning.session import SessionPlan

MIN_ENTITIES_PER_CHANGED = 10
"""Changed entities alone are recomputed if at most one in this many has changed."""

MAX_CHANGED_ROWS = 5_000_000
"""Changed entities alone are recomputed up to this many changed rows: each Spark task holds their ids in memory."""


def rebuilt(inputs: PlanningInput, planned: SessionPlan) -> tuple[int, ...]:
    """Return the planned hours, ascending, that were built before and may be recomputed for some entities only.

    Returns:
        Empty if the target declares no entity, or was never built.
    """
    last_built = inputs.committed.last_built
    declares_entity = isinstance(inputs.mode, Sequential) and inputs.mode.entity is not None
    if not declares_entity or last_built is None:
        return ()
    return tuple(hour for hour in planned.hour_numbers if hour <= last_built)


def narrowed(
    inputs: PlanningInput,
    planned: SessionPlan,
    *,
    rows: int,
    intact: bool,
) -> SessionPlan:
    """Return the plan with the decision which entities it recomputes, and a note with the reason.

    Args:
        inputs: The planning input.
        planned: The plan; it is returned as it is if none of its hours was built before.
        rows: Rows of the target in the hours of `rebuilt`.
        intact: Whether nobody else has written to the target.
    """
    hours = rebuilt(inputs, planned)
    if not hours:
        return planned
    assert isinstance(inputs.mode, Sequential)
    entity = inputs.mode.entity
    obstacle = next(_obstacles(inputs, hours, intact), None)
    if obstacle is not None:
        return _with_note(planned, f"recomputes every {entity}: {obstacle}")
    changed = rows_changed(inputs.changes, hours[-1])
    costs = f"about {changed:,} source rows changed, and {rows:,} rows are published"
    if not is_cheaper(changed, rows, hours=len(hours), few=inputs.mode.few_rows):
        return _with_note(planned, f"recomputes every {entity}, which is cheaper: {costs}")
    note = f"in hours that were built before, recomputes each {entity} that changed, which is cheaper: {costs}"
    return replace(_with_note(planned, note), changed_through=hours[-1])


def is_cheaper(
    changed: int,
    rows: int,
    *,
    hours: int,
    few: int,
) -> bool:
    """Whether it is cheaper to recompute only the changed entities.

    Args:
        changed: Number of changed source rows; at most as many entities have changed.
        rows: Rows published in the hours, one for each entity and hour.
        hours: Number of the hours.
        few: Up to this many published rows, it is cheaper to recompute all.
    """
    if rows <= few or changed > MAX_CHANGED_ROWS:
        return False
    return changed * hours * MIN_ENTITIES_PER_CHANGED <= rows


def rows_changed(changes: Iterable[SourceChanges], last_hour: int) -> int:
    """Return about how many source rows were added, changed or removed, in hours up to the last one, by metadata."""
    rows = 0
    for source in changes:
        rows += max(_rows_added(source, last_hour), _rows_removed(source, last_hour))
    return rows


def _rows_added(source: SourceChanges, last_hour: int) -> int:
    rows = 0
    for file in source.added:
        if file.hours:
            first_hour, _ = file.hours
            rows += file.rows if first_hour <= last_hour else 0
    return rows


def _rows_removed(source: SourceChanges, last_hour: int) -> int:
    rows = 0
    for snapshot in source.effective:
        if snapshot.hours:
            first_hour, _ = snapshot.hours[0]
            rows += snapshot.rows_gone if first_hour <= last_hour else 0
    return rows


def _obstacles(inputs: PlanningInput, hours: tuple[int, ...], intact: bool) -> Iterator[str]:
    """Yield the reasons why no entity may be left out."""
    for source in inputs.changes:
        if source.since is None or not _shows_changed_rows(source):
            yield f"the rows of {source.source} that were read before are not available for comparison"
    if _was_read_before(inputs, hours[-1]):
        yield "an earlier session has read the changes of hours that are pending or were skipped"
    if not _was_built_by_this_code(inputs, hours[0]):
        yield "some of the hours were built by other code"
    if not intact:
        yield "somebody else has written to the target"


def _shows_changed_rows(source: SourceChanges) -> bool:
    """Whether the changed rows can be read: those appended, or the rows before and after."""
    return source.appends_only or not source.since_expired


def _was_read_before(inputs: PlanningInput, last_hour: int) -> bool:
    """Whether an earlier session read changes of hours up to the last one without building them."""
    committed = inputs.committed
    return bool(committed.skipped) or any(hour <= last_hour for hour in committed.pending)


def _was_built_by_this_code(inputs: PlanningInput, first_hour: int) -> bool:
    """Whether all hours from the first one on were built by the present code."""
    committed = inputs.committed
    if any(last >= first_hour for _, last, _ in committed.older):
        return False
    return committed.code_version == inputs.code_version


def _with_note(planned: SessionPlan, note: str) -> SessionPlan:
    return replace(planned, notes=(*planned.notes, note))
