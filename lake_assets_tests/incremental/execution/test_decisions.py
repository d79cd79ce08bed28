"""Which plans go too far beyond the rows of their sources."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.base.hours import DAY, HOUR, days_in
from lake_assets.incremental.engine.model import NoSession, PlannedHour, SessionPlan, SourceRange
from lake_assets.incremental.engine.planner import wait_if_beyond_data

EMPTY = SessionPlan(
    process="core.fact",
    session_id="fact-1",
    kind="session",
    load="overwrite",
    sources=(),
    hours=(),
)


def plan_of(hours: set[int], newest: list[int | None]) -> SessionPlan:
    sources = [
        SourceRange(f"raw.s{number}", "uuid", None, 1, 1, 1, complete_through=500, last_hour=last)
        for number, last in enumerate(newest)
    ]
    planned = tuple(PlannedHour(hour, "complete") for hour in sorted(hours))
    return replace(EMPTY, sources=tuple(sources), hours=planned)


@settings(deadline=None)
@given(st.sets(st.integers(0, 90)), st.lists(st.none() | st.integers(0, 90), max_size=3))
def test_a_plan_of_more_than_a_day_beyond_all_rows_waits_for_a_person(
    hours: set[int], newest: list[int | None]
) -> None:
    plan = plan_of(hours, newest)
    last_rows = [last for last in newest if last is not None]
    beyond = [hour for hour in hours if last_rows and all(hour > last for last in last_rows)]
    found = wait_if_beyond_data(plan, HOUR)
    if len(beyond) <= 24:
        assert found == plan
    else:
        assert isinstance(found, NoSession)
        assert found.kind == "beyond"


def test_what_is_too_far_is_named_with_what_to_do() -> None:
    found = wait_if_beyond_data(plan_of(set(range(100, 130)), [102, None]), HOUR)
    assert isinstance(found, NoSession)
    assert found.reason == (
        "27 hours up to 1970-01-06-09:00 would be built beyond the newest row, which is of hour 1970-01-05-06:00, "
        "because sources are declared complete: raw.s0 through 1970-01-21-20:00, raw.s1 through 1970-01-21-20:00. "
        "`lake complete TABLE HOUR --force` corrects a wrong one; `lake catch-up core.fact --force` builds the hours"
    )


@pytest.mark.parametrize(
    ("hours", "is_built"),
    [
        (range(48, 72), True),  # the day of the newest row, which is of its first hour
        (range(48, 96), True),  # and the next day
        (range(48, 97), False),
    ],
)
def test_days_beyond_the_newest_row_are_counted_from_the_end_of_its_day(hours: range, is_built: bool) -> None:
    plan = plan_of(set(hours), [48])
    assert (wait_if_beyond_data(plan, DAY) == plan) is is_built


def test_a_day_of_25_hours_beyond_the_newest_row_is_built() -> None:
    first = 498_196  # 2026-11-01 00:00 in New York, where clocks are set back on that day
    plan = plan_of(set(range(first, first + 25)), [first - 1])
    assert wait_if_beyond_data(plan, days_in("America/New_York")) == plan
    assert wait_if_beyond_data(plan, HOUR) != plan
