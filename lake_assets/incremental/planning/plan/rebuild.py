"""Planning a rebuild: hours that a person chose, from the sources as of the watermark."""

from __future__ import annotations

from collections.abc import Collection

from lake_assets.incremental.declaration import Sequential, Stateless
from lake_assets.incremental.planning.deferred import DeferredHour
from lake_assets.incremental.planning.plan.complete_hours import incomplete_sources, last_buildable_hour
from lake_assets.incremental.planning.plan.describe_session import identified, source_ranges
from lake_assets.incremental.planning.plan.planning_input import PlanningInput, hours_are_independent
from lake_assets.incremental.planning.session import Cost, Decision, NoSession, PlannedHour, SessionPlan
from lake_assets.incremental.planning.verdicts import check_none_held


def plan_rebuild(
    inputs: PlanningInput,
    hours: Collection[int],
    *,
    present: Collection[int],
    token: str,
) -> Decision:
    """Return a rebuild of hours from the sources as of the changes' heads; it leaves the watermark where it is.

    A sequential target is rebuilt from the first hour to the last one built. So is a target whose hours depend on their
    sequence, if one of the hours is pending or was skipped. Hours above complete-through are left out.

    Args:
        inputs: The planning input; its changes end at the watermark.
        hours: The hours to rebuild, in any order.
        present: All event hours of the sources. Before the first session, those that are not rebuilt become pending.
        token: Distinguishes this rebuild from another one of the same hours.

    Raises:
        ConfigurationError: A sequential target has held hours that the rebuild does not cover.
    """
    grain = inputs.grain
    is_first_session = any(c.since is None for c in inputs.changes)
    unread = grain.whole(present) if is_first_session else frozenset()
    wanted = _with_dependent_hours(inputs, set(grain.whole(hours)), unread)
    if not wanted:
        return NoSession("idle", "no hour was chosen")
    rebuilt = _buildable(inputs, wanted)
    left_out = wanted - rebuilt
    if not rebuilt:
        waits_for = incomplete_sources(inputs, min(left_out))
        return NoSession("wait", f"{grain.format_hours(left_out)} cannot be rebuilt yet: {waits_for}")
    check_none_held(inputs.process, inputs.mode, inputs.committed.held, first=min(rebuilt))

    notes = []
    if left_out:
        notes.append(f"left out, not complete yet: {grain.format_hours(left_out)}")
    pending = (inputs.committed.pending | unread) - rebuilt
    draft = SessionPlan(
        process=inputs.process,
        session_id="",
        kind="rebuild",
        load="overwrite",
        sources=source_ranges(inputs),
        hours=tuple(PlannedHour(hour, "a rebuild was requested") for hour in sorted(rebuilt)),
        pending=tuple(sorted(pending)),
        deferred=() if is_first_session else _still_late(inputs, pending),
        reasons={hour: inputs.committed.why(hour) for hour in sorted(pending)},
        complete_through=_first_complete_through(inputs, rebuilt) if is_first_session else None,
        cost=Cost(),
        notes=tuple(notes),
        code_version=inputs.code_version,
    )
    return identified(draft, inputs, token)


def _still_late(inputs: PlanningInput, pending: Collection[int]) -> tuple[DeferredHour, ...]:
    """Return the hours that go on waiting by the policy for late rows."""
    return tuple(each for each in inputs.committed.deferred if each.hour in pending)


def _buildable(inputs: PlanningInput, hours: set[int]) -> set[int]:
    if isinstance(inputs.mode, Stateless):
        return hours
    last_hour = last_buildable_hour(inputs)
    if last_hour is None:
        return set()
    return hours.intersection(range(min(hours), last_hour + 1))


def _with_dependent_hours(inputs: PlanningInput, hours: set[int], unread: Collection[int]) -> set[int]:
    """Return the hours, and all that depend on them. unread: hours of sources without a watermark."""
    if not hours or hours_are_independent(inputs.mode):
        return hours
    if isinstance(inputs.mode, Sequential):
        return _sequential_range(inputs, hours, unread)
    return _with_overdue_range(inputs, hours, unread)


def _with_overdue_range(inputs: PlanningInput, hours: set[int], unread: Collection[int]) -> set[int]:
    """Return the hours; from the first one that is overdue, all up to the last one built."""
    committed = inputs.committed
    # Hours after a held hour were already built from the sources.
    unbuilt_changes = committed.pending.union(committed.skipped, unread)
    overdue = hours.intersection(unbuilt_changes) - committed.held_hours
    if not overdue:
        return hours
    return hours.union(range(min(overdue), _last_of(inputs, hours) + 1))


def _sequential_range(inputs: PlanningInput, hours: set[int], unread: Collection[int]) -> set[int]:
    """Return all hours from the first to the last one built.

    The first hour needs the state of the hour before it. So no earlier hour may be missing or overdue.
    """
    last = _last_of(inputs, hours)
    starts = [*hours, *unread]
    for hour in inputs.committed.pending:
        if hour < last:
            starts.append(hour)
    if inputs.committed.last_built is not None:
        starts.append(inputs.committed.last_built + 1)
    return set(range(min(starts), last + 1))


def _last_of(inputs: PlanningInput, hours: set[int]) -> int:
    last_built = inputs.committed.last_built
    return max(hours) if last_built is None else max(*hours, last_built)


def _first_complete_through(inputs: PlanningInput, rebuilt: set[int]) -> int | None:
    # A first rebuild leaves out hours. Only a sequential target has none before the last one that it rebuilds.
    return max(rebuilt) if isinstance(inputs.mode, Sequential) else None
