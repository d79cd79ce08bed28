"""What a fixed lookback would have done instead: by example, and against the hours of a list."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.base.grain import DAY
from lake_assets.incremental.engine.model import AuditResult, PlannedHour, SessionPlan
from lake_assets.incremental.engine.session_log import SessionRecord
from lake_assets.incremental.operations.overview import LookbackComparison, compare_with_lookback, costs, lookback

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def session(
    number: int,
    built: tuple[int, ...],
    through: int | None,
    state: Literal["committed", "blocked", "published"] = "committed",
) -> SessionRecord:
    planned = tuple(PlannedHour(hour, "append 1 of raw.some") for hour in built)
    plan = SessionPlan("core.some", f"some-{number}", "session", "append", (), planned, complete_through=through)
    ended = NOON + timedelta(seconds=number)
    return SessionRecord(plan, state, 1, 1, "", NOON, ended, built=built, rows_read=5, rows_written=len(built))


def hours(history: list[SessionRecord]) -> list[tuple[list[int], list[int]]]:
    found = costs(history, rows_by_hour={}, start=0, hours=6)
    return [(list(c.lookback), list(c.missed)) for c in found]


def test_sessions_against_a_six_hour_lookback() -> None:
    history = [
        session(1, tuple(range(10)), 9),
        session(2, (10,), 10),
        session(3, (1, 7, 11), 11),
        session(4, (), 12),
        session(5, (13, 25), 25),
        session(6, (2,), None),  # late rows alone
    ]
    assert hours(history) == [
        (list(range(10)), []),  # at first everything is new
        ([5, 6, 7, 8, 9, 10], []),
        ([6, 7, 8, 9, 10, 11], [1]),
        ([], []),  # only the watermark moved
        (list(range(13, 26)), []),  # after a pause, what is new is more than six hours
        ([20, 21, 22, 23, 24, 25], [2]),
    ]


def test_of_days_a_lookback_does_whole_ones() -> None:
    span = lookback(range(24, 48), through=47, before=23, start=5, hours=6, grain=DAY)
    assert span == range(24, 48)
    assert lookback(range(24), through=47, before=47, start=5, hours=30, grain=DAY) == range(48)


def test_only_what_was_published_counts() -> None:
    blocked = replace(session(2, (8,), 8, "blocked"), audits=(AuditResult("unique_key", False), AuditResult("x", True)))
    asked_for = session(3, (0, 1), None)
    asked_for = replace(asked_for, plan=replace(asked_for.plan, kind="rebuild"))
    found = costs(
        [session(1, (7,), 7), blocked, asked_for, session(4, (3, 8), 8)], rows_by_hour={3: 2, 8: 5}, start=0, hours=6
    )
    assert [len(c.lookback) for c in found] == [6, 0, 0, 6]
    assert [a.name for a in found[1].failed_audits] == ["unique_key"]
    assert (found[1].built, found[1].planned) == ((), (8,))
    assert compare_with_lookback(found) == LookbackComparison(
        sessions=2,
        hours_rebuilt=3,
        rows_written=3,
        seconds=5.0,
        lookback_hours=12,
        lookback_rows=2 + 2 + 5,
        hours_saved=9,
        rows_saved=6,
        missed_hours=0,
    )


@settings(deadline=None)
@given(
    built=st.sets(st.integers(3, 40)),
    through=st.none() | st.integers(3, 40),
    before=st.none() | st.integers(3, 40),
    reach=st.integers(1, 12),
)
def test_a_lookback_does_the_last_hours_and_the_new_ones(
    built: set[int], through: int | None, before: int | None, reach: int
) -> None:
    span = lookback(built, through=through, before=before, start=3, hours=reach)
    reached = max([*built, *(h for h in (through, before) if h is not None)], default=3)
    recent = [h for h in range(reached - reach + 1, reached + 1) if h >= 3]
    new = [h for h in range(3, reached + 1) if (h >= min(built, default=3) if before is None else h > before)]
    assert list(span) == (sorted({*recent, *new}) if built else [])
