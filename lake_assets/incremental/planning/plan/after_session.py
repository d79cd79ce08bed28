"""What a target has committed after a session."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lake_assets.incremental.declaration import Mode, Sequential, Stateful, Stateless
from lake_assets.incremental.planning.deferred import still_deferred
from lake_assets.incremental.planning.plan.planning_input import Committed
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
    pending = frozenset([*planned.pending, *follows])
    return Committed(
        pending=pending,
        skipped=before.skipped.union(planned.skipped).difference(built),
        last_built=_last_built(mode, before, built, complete_through),
        complete_through=complete_through,
        held=still_held(before.held, built, held),
        code_version=planned.code_version if planned.hours else before.code_version,
        uniform_from=_uniform_from(before, planned) if isinstance(mode, Sequential) else None,
        following=_following(planned, follows),
        chunk_hours=len(planned.hours) if follows else 0,
        deferred=still_deferred(() if _reads_anew(planned) else before.deferred, planned.deferred, pending),
    )


def _reads_anew(planned: SessionPlan) -> bool:
    """Whether a session reads its sources from the start: nothing then shows that rows that wait were only appended."""
    return any(source.from_snapshot_id is None for source in planned.sources)


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


def _uniform_from(before: Committed, planned: SessionPlan) -> int | None:
    """Return the hour from which on the target is of one code version. The planned hours have no gap."""
    if planned.envelope is None:
        return before.uniform_from
    first, last = planned.envelope
    known = before.uniform_from if before.code_version == planned.code_version else None
    adjoins_known = known is not None and last >= known - 1
    if known is not None and adjoins_known:
        return min(first, known)
    covers_all_later = before.last_built is None or last >= before.last_built
    return first if covers_all_later else known
