"""Which hours of a target wait to be built, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lake_assets.incremental.planning.plan.planning_input import Committed
from lake_assets.incremental.planning.session import Decision, NoSession


@dataclass(frozen=True)
class PendingHours:
    """What a target still has to build.

    Attributes:
        hours: Hours that have changed and are not built yet, ascending. They may be unknown although something waits.
        why: What the target waits for, for people; empty if nothing waits.
    """

    hours: tuple[int, ...] = ()
    why: str = ""


def pending_hours(committed: Committed, decision: Decision, *, stuck: str = "") -> PendingHours:
    """Return what a target still has to build.

    Args:
        committed: What the target has committed.
        decision: Its next session, or why there is none.
        stuck: Why the session that is due does not run; empty if it is about to run.
    """
    if isinstance(decision, NoSession):
        if decision.kind == "idle" and not committed.pending:
            return PendingHours()
        waiting = committed.pending.union(each.hour for each in decision.deferred)
        return PendingHours(tuple(sorted(waiting)), decision.reason)
    hours = committed.pending.union(decision.hour_numbers, decision.pending)
    if not hours and not stuck:
        return PendingHours()
    return PendingHours(tuple(sorted(hours)), stuck or f"session {decision.session_id} is due: {decision.reason}")
