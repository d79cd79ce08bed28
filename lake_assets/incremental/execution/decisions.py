"""What the log of sessions and the target's table add to a decision, and take from it. No look at the catalog."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from pyiceberg.table import Table

from lake_assets.base.grain import Grain
from lake_assets.base.hours import hour_key
from lake_assets.incremental.declaration import Stateless, Target
from lake_assets.incremental.execution import target_check
from lake_assets.incremental.execution.session_log import ProcessState
from lake_assets.incremental.execution.steps.audit_rows import failures
from lake_assets.incremental.metadata import publish
from lake_assets.incremental.planning.changes import Head
from lake_assets.incremental.planning.deferred import due_at
from lake_assets.incremental.planning.outside_changes import OutsideChanges
from lake_assets.incremental.planning.plan import PlanningInput, another, last_buildable_hour
from lake_assets.incremental.planning.session import Decision, NoSession, SessionPlan

MAX_HOURS_BEYOND = 24
"""The most hours that a session builds beyond the newest row of its sources."""


def with_unpublished_id(table: Table, decision: SessionPlan) -> SessionPlan:
    """Return the plan under a session id that was never published.

    If watermarks are lost, a plan of the past is made again. Under its former id it would be taken for an attempt that
    has published and died.
    """
    candidate = decision
    for number in count(1):
        if not publish.is_published(table, candidate.session_id):
            break
        candidate = another(decision, number)
    return candidate


def left_by(planned: SessionPlan, found: OutsideChanges | None) -> OutsideChanges | None:
    """Return what others have done to a target, unless the plan builds all suspect hours from the sources alone."""
    is_rebuild = planned.load == "overwrite" and planned.changed_through is None
    if found is not None and is_rebuild and found.covered_by(planned.hour_numbers):
        return None
    return found


def with_problem(decision: Decision, target: Target, found: OutsideChanges) -> Decision:
    """Return a decision that also says what others have done to the target."""
    error = target_check.problem_of(target, found)
    problem = f"{error.problem} {error.remedy}"
    if isinstance(decision, NoSession):
        return replace(decision, reason=f"{decision.reason}; {problem}")
    return replace(decision, notes=(*decision.notes, problem))


def heads_at(state: ProcessState) -> dict[str, Head]:
    """Return the heads of the sources at the watermarks."""
    heads: dict[str, Head] = {}
    for source, mark in state.watermarks.items():
        heads[source] = Head(mark.snapshot_id, mark.complete_through)
    return heads


def buildable_hours(known: PlanningInput, found: OutsideChanges) -> set[int]:
    """Return the suspect hours that a session may build; a target has no rows in others."""
    if not found.hours:
        return set()
    last: int | None = found.hours[-1][1]
    if not isinstance(known.mode, Stateless):
        last = last_buildable_hour(known)
    return set() if last is None else found.within(known.start, last)


def changed_hours(known: PlanningInput) -> set[int]:
    """Return the hours that the sources' new snapshots touch."""
    found: set[int] = set()
    for change in known.changes:
        for snapshot in change.snapshots:
            for first, last in snapshot.hours:
                found.update(range(first, last + 1))
    return found


def wait_if_beyond_data(decision: Decision, grain: Grain) -> Decision:
    """Return the decision; a wait if it builds more than a day of hours that are later than all rows of the sources.

    Hours of the newest row's own partition do not count.

    A source that is declared complete far beyond its rows, as by a heartbeat of the future, would otherwise make a
    target carry its state through years. An idle source builds hour by hour, which is always allowed.
    """
    if not isinstance(decision, SessionPlan):
        return decision
    newest = _newest_row(decision)
    beyond = _hours_beyond(decision.hour_numbers, newest, grain)
    if newest is None or len(beyond) <= MAX_HOURS_BEYOND or len(grain.firsts(beyond)) == 1:
        return decision
    complete = min(source.complete_through or 0 for source in decision.sources)
    left = [hour for hour in decision.pending if hour <= complete]  # for later sessions: one builds so many at most
    beyond = sorted({*beyond, *_hours_beyond(left, newest, grain)})
    return NoSession(
        "beyond",
        f"{len(beyond):,} hours up to {hour_key(beyond[-1])} would be built beyond the newest row, which is of hour "
        f"{hour_key(newest)}, because sources are declared complete: {_completeness(decision)}. "
        f"`lake complete TABLE HOUR --force` corrects a wrong one; `lake catch-up {decision.process} --force` builds"
        " the hours",
        deferred=decision.deferred,
    )


def _newest_row(decision: SessionPlan) -> int | None:
    """Return the hour of the newest row of all sources; None if they have no row, or it is not known."""
    hours = [source.last_hour for source in decision.sources if source.last_hour is not None]
    return max(hours, default=None)


def _hours_beyond(hours: Iterable[int], newest: int | None, grain: Grain) -> list[int]:
    if newest is None:
        return []
    filled = grain.last(newest)
    return [hour for hour in hours if hour > filled]


def _completeness(decision: SessionPlan) -> str:
    through = []
    for source in decision.sources:
        if source.complete_through is not None:
            through.append(f"{source.source} through {hour_key(source.complete_through)}")
    return ", ".join(through)


def wait_if_blocked(state: ProcessState, decision: Decision, target: Target) -> Decision:
    """Return the decision; a wait if an audit has stopped just this plan of this code before."""
    last = state.session
    if last is None or last.state != "blocked" or not isinstance(decision, SessionPlan):
        return decision
    same_plan = last.plan.session_id == decision.session_id
    same_code = last.plan.code_version == decision.code_version
    if not (same_plan and same_code):
        return decision
    failed = "; ".join(f"{name}: {counts}" for name, counts in failures(last.audits).items())
    return NoSession(
        "blocked",
        f"{decision.session_id} was stopped by an audit ({failed}). It runs again when a source or the code changes,"
        f" or with `lake catch-up {decision.process} --again`",
        look_again_at=due_at(decision.deferred, target.late),
        deferred=decision.deferred,
    )
