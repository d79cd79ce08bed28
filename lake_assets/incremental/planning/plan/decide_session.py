"""Planning the next session of a target: from what changed, or from an hour that an audit holds back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from lake_assets.incremental.declaration import Sequential, Stateless
from lake_assets.incremental.planning.deferred import DeferredHour
from lake_assets.incremental.planning.plan.changed_hours import (
    changed_hours,
    has_new_rows,
    has_new_snapshots,
    only_appends,
    with_pending,
)
from lake_assets.incremental.planning.plan.complete_hours import (
    advances,
    incomplete_sources,
    last_buildable_hour,
    next_complete_through,
    why_none_is_complete,
)
from lake_assets.incremental.planning.plan.describe_session import Load, new_session
from lake_assets.incremental.planning.plan.hour_ranges import (
    HoursToRebuild,
    RangeMode,
    first_chunk,
    hours_to_rebuild,
)
from lake_assets.incremental.planning.plan.lanes import late_rows, wait_for_due, waiting_hours, why_due
from lake_assets.incremental.planning.plan.planning_input import PlanningInput
from lake_assets.incremental.planning.session import Decision, HeldHour, NoSession, SessionPlan
from lake_assets.incremental.planning.verdicts import check_none_held, in_words


def plan(inputs: PlanningInput) -> Decision:
    """Return the next session of a target, or the reason why there is none.

    Held hours come last, one partition in each session.

    Raises:
        ConfigurationError: A sequential target has held hours.
    """
    held = inputs.committed.held
    check_none_held(inputs.process, inputs.mode, held)
    decision = _plan_changes(inputs)
    if isinstance(decision, SessionPlan) and decision.load != "none":
        return decision
    return _plan_held(inputs, decision) or _with_held_hours(decision, held)


def plan_acknowledged(inputs: PlanningInput) -> Decision:
    """Return the next session like `plan`; but instead of waiting, move the watermark to the sources' heads.

    The changed hours become pending. This releases the source snapshots that the watermark refers to.
    """
    decision = plan(inputs)
    has_moved = any(c.moved for c in inputs.changes)
    if isinstance(decision, SessionPlan) or not has_moved:
        return decision
    if not isinstance(inputs.mode, Stateless) and last_buildable_hour(inputs) is None:
        return decision
    # The watermark passes rows without an hour, too: no other session would put them into quarantine.
    is_stateless = isinstance(inputs.mode, Stateless)
    return new_session(
        inputs,
        "append" if is_stateless and _can_append_bad_rows(inputs) else "none",
        {},
        pending=changed_hours(inputs).keys() | inputs.committed.pending,
        complete_through=next_complete_through(inputs),
    )


def _plan_changes(inputs: PlanningInput) -> Decision:
    """Return the decision apart from held hours."""
    if isinstance(inputs.mode, Stateless):
        return _plan_stateless(inputs)
    return _plan_range(inputs, inputs.mode)


def _plan_stateless(inputs: PlanningInput) -> Decision:
    waiting = waiting_hours(inputs)
    hours = {**with_pending(inputs, changed_hours(inputs), inputs.committed.pending), **why_due(inputs)}
    left = inputs.committed.held_hours.intersection(hours).union(each.hour for each in waiting)
    for hour in left:
        del hours[hour]
    through = next_complete_through(inputs)
    if hours:
        return _build_hours(inputs, hours, left, through)
    if waiting and not advances(inputs, through):
        return wait_for_due(inputs, waiting)
    load = _load_without_hours(inputs, waiting, through)
    if load is None:
        return _nothing_new(inputs)
    return new_session(inputs, load, {}, pending=left, complete_through=through)


def _build_hours(
    inputs: PlanningInput, hours: Mapping[int, str], left: Collection[int], through: int | None
) -> SessionPlan:
    """Return a session that appends what the hours lack, or overwrites them if that is not known or not all."""
    late = late_rows(inputs, hours) if only_appends(inputs) else None
    load: Load = "overwrite" if late is None else "append"
    return new_session(inputs, load, hours, pending=left, complete_through=through, late=late or ())


def _load_without_hours(
    inputs: PlanningInput, waiting: Collection[DeferredHour], through: int | None
) -> Literal["append", "none"] | None:
    """Return what a session does that builds no hour; None if there is none."""
    changed = changed_hours(inputs)
    if (waiting or not changed) and _can_append_bad_rows(inputs):
        return "append"
    if changed or has_new_snapshots(inputs) or advances(inputs, through):
        return "none"
    return None


def _can_append_bad_rows(inputs: PlanningInput) -> bool:
    # No hour to build has changed, so new rows lie in no such hour, or wait. A session puts the others into quarantine.
    return has_new_rows(inputs) and all(c.appends_only for c in inputs.changes)


def _plan_range(inputs: PlanningInput, mode: RangeMode) -> Decision:
    last_hour = last_buildable_hour(inputs)
    if last_hour is None:
        return NoSession("wait", why_none_is_complete(inputs))
    found = hours_to_rebuild(inputs, mode, last_hour)
    if found.due:
        return _rebuild_chunk(inputs, mode, found)
    through = next_complete_through(inputs)
    moves_on = found.skipped or found.has_range or advances(inputs, through)
    if moves_on or _has_only_compactions(inputs, found):
        return new_session(
            inputs,
            "none",
            {},
            pending=found.later | found.held,
            skipped=found.skipped,
            complete_through=through,
        )
    if found.later:
        return _wait_for_sources(inputs, found)
    return _nothing_new(inputs)


def _has_only_compactions(inputs: PlanningInput, found: HoursToRebuild) -> bool:
    return has_new_snapshots(inputs) and not found.later


def _rebuild_chunk(inputs: PlanningInput, mode: RangeMode, found: HoursToRebuild) -> SessionPlan:
    chunk = first_chunk(found, inputs, mode)
    is_last_chunk = max(chunk.hours) == max(found.due)
    # Until its last chunk is built, the new hours of a sequential target do not exist yet.
    all_new_hours_built = is_last_chunk or not isinstance(mode, Sequential)
    return new_session(
        inputs,
        "overwrite",
        chunk.hours,
        pending=found.later | chunk.pending | found.held,
        skipped=found.skipped,
        follows=chunk.follows,
        complete_through=next_complete_through(inputs) if all_new_hours_built else None,
    )


def _wait_for_sources(inputs: PlanningInput, found: HoursToRebuild) -> NoSession:
    grain = inputs.grain
    hours = f"{grain.name}s {grain.format_hours(found.later)}"
    return NoSession("wait", f"{hours} wait for {incomplete_sources(inputs, min(found.later))}")


def _nothing_new(inputs: PlanningInput) -> NoSession:
    return NoSession("idle", f"no new snapshot of {inputs.source_names}")


def _plan_held(inputs: PlanningInput, others: Decision) -> SessionPlan | None:
    """Return a session for the earliest held partition that has a reason to be tried again; None if there is none.

    others: the decision without it, which moves the watermark at most.
    """
    changed = changed_hours(inputs)
    if isinstance(others, SessionPlan):
        pending, skipped = set(others.pending), others.skipped
    else:
        pending, skipped = changed.keys() | inputs.committed.pending, ()
    first = _first_held_due(inputs, pending)
    if first is None:
        return None
    partition = inputs.grain.whole([first.hour])
    hours: dict[int, str] = {}
    for hour in partition:
        what_changed = changed.get(hour, "a source or the code has changed")
        hours[hour] = f"{what_changed}; was held back by {first.why}"
    return new_session(
        inputs,
        "overwrite",
        hours,
        pending=pending - partition,
        skipped=skipped,
        complete_through=next_complete_through(inputs, built=partition),
    )


def _first_held_due(inputs: PlanningInput, pending: set[int]) -> HeldHour | None:
    """Return the earliest held hour that changed, or was held by other code, and may be built."""
    last_hour = last_buildable_hour(inputs)
    for held in inputs.committed.held:
        is_complete = last_hour is not None and held.hour <= last_hour
        may_be_built = is_complete or isinstance(inputs.mode, Stateless)
        has_reason = held.hour in pending or held.code_version != inputs.code_version
        if may_be_built and has_reason:
            return held
    return None


def _with_held_hours(decision: Decision, held: Sequence[HeldHour]) -> Decision:
    """Add the held hours to the reason why there is no session. A plan has them in its notes."""
    if isinstance(decision, SessionPlan) or not held:
        return decision
    waiting = f"{in_words(held)}; it waits for a change of a source or the code"
    return replace(decision, reason=f"{decision.reason}; {waiting}")
