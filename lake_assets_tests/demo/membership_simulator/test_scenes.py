"""The landings laid down by hand land exactly what they say, for any seed."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.base.hours import hour_of
from lake_assets.demo.membership_simulator.batches import Landing, flaws
from lake_assets.demo.membership_simulator.scenes import EXAMPLE, bad_batch, dirty_batch, worked_example
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import RawTable
from lake_assets.membership.raw import CANCEL_REQUESTS, CANCELS, PLAN_CHANGES, RAW, SIGNUPS

START = EXAMPLE.start_hour
SEEDS = st.integers(0, 2**32)


def _hours(landing: Landing, raw: RawTable) -> set[int]:
    """The event hours of a landing's rows, counted from the start."""
    return {hour_of(moment) - START for moment in landing.rows[raw.table][raw.time_column].to_pylist()}


def _through(landing: Landing) -> list[int]:
    return [(landing.complete_through[raw.table] or 0) - START for raw in RAW]


def _ids(landing: Landing, raw: RawTable) -> set[str]:
    return set(landing.rows[raw.table].column(0).to_pylist())


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_the_worked_example_lands_as_the_design_tells_it(seed: int) -> None:
    first, late, rest = worked_example(replace(EXAMPLE, seed=seed))
    assert [_hours(first, raw) for raw in RAW] == [set(range(6))] * 4
    assert [_hours(late, raw) for raw in RAW] == [{2, 3, 6}, {2, 3, 6}, set(), {5, 6, 7}]
    assert [_hours(rest, raw) for raw in RAW] == [{7}, {7}, set(), set()]
    assert [_through(x) for x in (first, late, rest)] == [[5, 5, 5, 5], [6, 6, 7, 7], [7, 7, 7, 7]]
    for raw in (SIGNUPS, PLAN_CHANGES, CANCELS):
        assert not _ids(first, raw) & (_ids(late, raw) | _ids(rest, raw))
        assert late.late[raw.table] == sum(
            hour_of(m) <= START + 5 for m in late.rows[raw.table][raw.time_column].to_pylist()
        )
    assert late.rows[CANCEL_REQUESTS.table].num_rows == 0


def test_the_worked_example_can_start_at_any_hour() -> None:
    shifted = worked_example(replace(EXAMPLE, start="2026-03-05-17:00"))
    assert [x.landed_at.hour for x in shifted] == [23, 1, 1]


def test_a_dirty_batch_has_each_flaw_once_for_each_table_beside_good_rows() -> None:
    landing = dirty_batch(hour=8)
    for raw in RAW:
        rows = landing.rows[raw.table].to_pylist()
        told = [_flaw(landing, raw, row) for row in rows]
        expected = [flaw.reason for flaw in flaws(landing.landed_at, START) if flaw.concerns(raw)]
        assert [reason for reason in told if reason] == expected
        assert told.count(None) > 0
    assert _through(landing) == [8] * 4


def _flaw(landing: Landing, raw: RawTable, row: dict[str, object]) -> str | None:
    """Told without the simulator's own list."""
    moment = row[raw.time_column]
    if row[next(iter(raw.columns))] is None:
        return "null key"
    if not isinstance(moment, datetime):
        return "null time"
    if hour_of(moment) < START:
        return "before the start"
    if (moment - landing.landed_at).total_seconds() > 3600:
        return "over an hour after it landed"
    if "-" in str(row.get("monthly_price")):
        return "negative price"
    return "unknown plan" if row.get("plan") == "platinum" else None


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_a_bad_batch_lacks_some_account_ids_and_knows_them(seed: int) -> None:
    bad = bad_batch(replace(EXAMPLE, seed=seed), hour=9)
    signups = bad.landing.rows[SIGNUPS.table].to_pylist()
    assert {row["signup_id"] for row in signups if row["account_id"] is None} == set(bad.right)
    assert all(bad.right.values())
    assert len(bad.right) == 3 < len(signups)
    assert [_hours(bad.landing, raw) for raw in RAW] == [{9}] * 4


def test_a_batch_of_the_worked_example_s_own_hours_is_refused() -> None:
    with pytest.raises(UsageError, match="hour 7"):
        bad_batch(hour=7)
