"""Which hours wait, and why. Pure; the sensor's report of it is tested with the sensors."""

from __future__ import annotations

from lake_assets.incremental.engine.model import Committed, NoSession, PlannedHour, SessionPlan, Waiting
from lake_assets.incremental.engine.planning import PendingHours, pending_hours

IDLE = NoSession("idle", "no new snapshot of raw.a")
HOURS = (PlannedHour(5, "append 1"),)
DUE = SessionPlan("core.t", "t-1", "session", "append", (), HOURS, waiting={8: Waiting("changed")})


def test_nothing_waits_if_a_target_is_idle_and_has_no_pending_hour() -> None:
    assert pending_hours(Committed(), IDLE) == PendingHours()
    assert pending_hours(Committed({6: Waiting("changed"), 7: Waiting("late")}), IDLE) == PendingHours(
        (6, 7), IDLE.reason
    )


def test_what_a_target_waits_for_is_the_reason() -> None:
    waits = NoSession("wait", "hours wait for raw.a")
    assert pending_hours(Committed(), waits) == PendingHours((), "hours wait for raw.a")


def test_the_hours_of_a_due_session_wait_until_it_has_run() -> None:
    known = Committed({7: Waiting("changed"), 9: Waiting("held")})
    assert pending_hours(known, DUE) == PendingHours((5, 7, 8), "session t-1 is due: append 1")
    assert pending_hours(known, DUE, stuck="no attempts left") == PendingHours((5, 7, 8), "no attempts left")
    moves_on = SessionPlan("core.t", "t-2", "session", "none", (), ())
    assert pending_hours(Committed(), moves_on) == PendingHours()
