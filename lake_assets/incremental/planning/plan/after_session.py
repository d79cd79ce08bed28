"""What a target has committed after a session."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lake_assets.base.hours import ranges
from lake_assets.incremental.declaration import Mode, Stateful, Stateless
from lake_assets.incremental.planning.deferred import still_deferred
from lake_assets.incremental.planning.plan.planning_input import Committed, Kind, OlderCode, Waiting, cut
from lake_assets.incremental.planning.session import HeldHour, SessionPlan
from lake_assets.incremental.planning.verdicts import capped, still_held


def committed_after(
    mode: Mode,
    before: Committed,
    planned: SessionPlan,
    built: Collection[int],
    unchanged: Collection[int] = (),
    held: Collection[HeldHour] = (),
) -> Committed:
    """Return what a target has committed after a session.

    Args:
        mode: The target's mode.
        before: What it had committed before.
        planned: The session.
        built: The hours that the session built, unchanged ones included.
        unchanged: Those of them that came out as they were published.
        held: The hours that the session held back instead.
    """
    follows = () if _converged(planned, unchanged) else planned.follows
    complete_through = _complete_through(before, planned, held)
    return Committed(
        waiting=_waiting(before, planned, follows, built, held),
        last_built=_last_built(mode, before, built, complete_through),
        complete_through=complete_through,
        code_version=planned.code_version if planned.hours else before.code_version,
        older=older_code(before, planned, built),
        span=_span(before, built),
        chunk_hours=len(planned.hours) if follows else 0,
    )


def _waiting(
    before: Committed,
    planned: SessionPlan,
    follows: Collection[int],
    built: Collection[int],
    held: Collection[HeldHour],
) -> dict[int, Waiting]:
    """Return the hours that wait after a session."""
    pending = {*planned.pending, *follows}
    # Of those that waited before, another process may have changed what the target has since: the plan knows.
    late = still_deferred((), planned.deferred, pending)
    since_ms = max((source.to_timestamp_ms for source in planned.sources), default=0)
    only_follow = _following(planned, follows)
    waiting: dict[int, Waiting] = {}
    kind: Kind
    for hour in sorted(before.skipped.union(planned.skipped).difference(built)):
        waiting[hour] = before.waiting.get(hour, _found(planned, "skipped", hour, since_ms))
    for hour in sorted(pending):
        kind = "follows" if hour in only_follow else "changed"
        known = before.waiting.get(hour)
        waiting[hour] = known if known and known.kind == kind else _found(planned, kind, hour, since_ms)
    for each in late:
        why = waiting[each.hour].why
        waiting[each.hour] = Waiting("late", why, each.since_ms, planned.session_id, rows=each.rows, after=each.after)
    for stays in still_held(before.held, built, held):
        kind = "retry" if stays.hour in pending else "held"
        waiting[stays.hour] = Waiting(kind, stays.why, since_ms, stays.session_id, stays.code_version)
    return dict(sorted(waiting.items()))


def _found(planned: SessionPlan, kind: Kind, hour: int, since_ms: int) -> Waiting:
    return Waiting(kind, planned.reasons.get(hour, ""), since_ms, planned.session_id)


def older_code(before: Committed, planned: SessionPlan, built: Collection[int]) -> tuple[OlderCode, ...]:
    """Return which hours of a target other code has built than that of a session.

    An hour to which rows are appended keeps those that the other code has built.
    """
    if not planned.hours:
        return before.older
    older = list(before.older)
    if before.span is not None and before.code_version != planned.code_version:
        of_older = [range(first, last + 1) for first, last, _ in older]
        first, last = before.span
        older += [(*each, before.code_version) for each in cut((first, last), of_older)]
    rebuilt = [range(first, last + 1) for first, last in ranges(built if planned.load == "overwrite" else ())]
    left = sorted((*each, version) for first, last, version in older for each in cut((first, last), rebuilt))
    merged: list[OlderCode] = []
    for first, last, version in left:
        if merged and merged[-1][1] + 1 == first and merged[-1][2] == version:
            merged[-1] = (merged[-1][0], last, version)
        else:
            merged.append((first, last, version))
    return tuple(merged)


def _span(before: Committed, built: Collection[int]) -> tuple[int, int] | None:
    hours = [*(before.span or ()), *built]
    return (min(hours), max(hours)) if hours else None


def _following(planned: SessionPlan, follows: Collection[int]) -> frozenset[int]:
    """Return the hours that follow from a later hour than the last planned one.

    The hour after the last planned one has an earlier state that changed: it must be rebuilt in any case.
    """
    last_planned = planned.hours[-1].hour if planned.hours else None
    return frozenset(hour for hour in follows if last_planned is None or hour > last_planned + 1)


def _converged(planned: SessionPlan, unchanged: Collection[int]) -> bool:
    """Whether the last planned hour came out unchanged, so that nothing follows from it."""
    return bool(planned.hours) and planned.hours[-1].hour in unchanged


def _complete_through(before: Committed, planned: SessionPlan, held: Collection[HeldHour]) -> int | None:
    held_hours = [h.hour for h in held]
    planned_through = capped(planned.complete_through, held_hours, before.complete_through)
    return _latest([before.complete_through, planned_through])


def _last_built(
    mode: Mode,
    before: Committed,
    built: Collection[int],
    complete_through: int | None,
) -> int | None:
    if isinstance(mode, Stateless):
        return None
    last = _latest([before.last_built, *built])
    if isinstance(mode, Stateful):
        # An hour without rows counts as built, too, once it is complete.
        return _latest([last, complete_through])
    return last


def _latest(hours: Iterable[int | None]) -> int | None:
    return max((hour for hour in hours if hour is not None), default=None)
