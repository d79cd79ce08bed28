"""Whose rows a session recomputes of hours that were built before: of every entity, or of those that changed. Pure.

Where the rows of one entity depend on no row of another, an entity without a changed source row comes out as it is
published. That holds as long as all that was read is built, by the code of today, and nobody else has written to the
target; then it is a question of cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lake_assets.incremental.declaration import Sequential
from lake_assets.incremental.planning.changes import SourceChanges
from lake_assets.incremental.planning.plan import PlanningInput
from lake_assets.incremental.planning.session import SessionPlan

PART, MOST = 10, 5_000_000
"""Changed entities are told apart if at most one in so many changed, and so many in all: each task holds their ids."""


def rebuilt(question: PlanningInput, planned: SessionPlan) -> tuple[int, ...]:
    """The planned hours, ascending, that were built before and may be recomputed for some entities alone."""
    last = question.committed.last_built
    if not isinstance(question.mode, Sequential) or question.mode.entity is None or last is None:
        return ()
    return tuple(hour for hour in planned.hour_numbers if hour <= last)


def narrowed(question: PlanningInput, planned: SessionPlan, *, rows: int, intact: bool) -> SessionPlan:
    """The plan, and in words whose rows it recomputes, and why; as it is if nothing was built before.

    rows: of the target, in the hours of `rebuilt`. intact: whether nobody else has written to it.
    """
    hours = rebuilt(question, planned)
    if not hours:
        return planned
    assert isinstance(question.mode, Sequential)
    entity, changed = question.mode.entity, rows_changed(question.changes, hours[-1])
    weighed = f"some {changed:,} source rows changed, and {rows:,} rows are published"
    if against := next(_against(question, hours, intact), None):
        return _noted(planned, f"recomputes every {entity}: {against}")
    if not is_cheaper(changed, rows, hours=len(hours), few=question.mode.few_rows):
        return _noted(planned, f"recomputes every {entity}, which is cheaper: {weighed}")
    note = f"recomputes, of hours built before, each {entity} that changed, which is cheaper: {weighed}"
    return replace(_noted(planned, note), changed_through=hours[-1])


def is_cheaper(changed: int, rows: int, *, hours: int, few: int) -> bool:
    """Whether it is cheaper to recompute changed entities alone.

    changed: source rows that did, which are of so many entities at most. rows: published in the hours, one for each
    entity and hour. few: up to so many rows it is not.
    """
    return rows > few and changed <= MOST and changed * hours * PART <= rows


def rows_changed(changes: Iterable[SourceChanges], last_hour: int) -> int:
    """About how many source rows came, changed or went, of hours up to the last one: by metadata."""
    return sum(max(_came(c, last_hour), _gone(c, last_hour)) for c in changes)


def _came(changes: SourceChanges, last_hour: int) -> int:
    return sum(f.rows for f in changes.added if f.hours and f.hours[0] <= last_hour)


def _gone(changes: SourceChanges, last_hour: int) -> int:
    return sum(s.rows_gone for s in changes.effective if s.hours and s.hours[0][0] <= last_hour)


def _against(question: PlanningInput, hours: tuple[int, ...], intact: bool) -> Iterator[str]:
    """What stands against leaving any entity out."""
    committed = question.committed
    for c in question.changes:
        if c.since is None or c.how == "expired":
            yield f"what was read of {c.source} before is not there to compare with"
    if committed.skipped or any(hour <= hours[-1] for hour in committed.pending):
        yield "some hours are pending or were skipped, whose changes an earlier session has read"
    since = committed.uniform_from
    if since is None or since > hours[0] or committed.code_version != question.code_version:
        yield "some of the hours were built by other code"
    if not intact:
        yield "somebody else has written to the target"


def _noted(planned: SessionPlan, note: str) -> SessionPlan:
    return replace(planned, notes=(*planned.notes, note))
