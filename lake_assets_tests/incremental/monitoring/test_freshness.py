"""Whether a target is as complete as it should be. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from lake_assets.base.hours import DAY
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import SessionContext, Source, Stateless, incremental_asset
from lake_assets.incremental.from_settings import with_delay_of
from lake_assets.incremental.operations.health import Freshness, evaluate_freshness
from lake_assets.settings import Settings
from lake_assets_tests.incremental.clicks import CLICKS, START, at, click_fact, click_state

HALF_AN_HOUR = replace(click_fact, max_delay=timedelta(minutes=30))


def verdict(now: datetime, *, through: int | None, source: int | None) -> Freshness:
    hours = [None if hour is None else START + hour for hour in (through, source)]
    return evaluate_freshness(HALF_AN_HOUR, hours[0], {"raw.clicks": hours[1]}, start=START, now=now)


@pytest.mark.parametrize(
    ("now", "through", "delay", "fresh"),
    [
        (at(6, 0), 5, 0, True),  # hour 6 has just begun
        (at(7, 30), 5, 30, True),
        (at(7, 31), 5, 31, False),
        (at(7, 31), 6, 0, True),
        (at(0, 59), None, 0, True),  # the first hour is not over
        (at(1, 45), None, 45, False),
        (at(3, 0), 9, 0, True),  # declared ahead of the clock
    ],
)
def test_the_delay_counts_from_the_end_of_the_first_hour_that_is_not_complete(
    now: datetime, through: int | None, delay: int, fresh: bool
) -> None:
    found = verdict(now, through=through, source=through)
    assert (found.delay, found.fresh) == (timedelta(minutes=delay), fresh)


def test_the_remedy_tells_whether_the_sources_or_the_sessions_are_behind() -> None:
    silent = verdict(at(9), through=5, source=5)
    assert (
        silent.what == "core.click_fact is complete through 2026-01-01-05:00, 2 h 00 min late; allowed are 0 h 30 min"
    )
    assert silent.remedy.startswith("raw.clicks is not complete through 2026-01-01-06:00")
    assert "lake sessions click_fact" in verdict(at(9), through=5, source=8).remedy


def test_a_day_may_last_and_its_delay_counts_from_its_end() -> None:
    daily = replace(HALF_AN_HOUR, grain=DAY)
    of_day_1 = evaluate_freshness(daily, None, {"raw.clicks": START + 21}, start=START, now=at(22))
    of_day_2 = evaluate_freshness(
        daily, START + 23, {"raw.clicks": START + 46}, start=START, now=at(23) + timedelta(days=1, hours=2)
    )
    assert [(f.fresh, f.delay) for f in (of_day_1, of_day_2)] == [(True, timedelta(0)), (False, timedelta(hours=1))]
    assert of_day_2.remedy.startswith("raw.clicks is not complete through 2026-01-02-23:00")


def test_a_target_without_a_max_delay_gets_the_default() -> None:
    pipeline = replace(CLICKS, targets=(HALF_AN_HOUR, click_state))
    assert with_delay_of(Settings(), pipeline) == pipeline
    delays = [t.max_delay for t in with_delay_of(Settings(max_delay_minutes=120), pipeline).targets]
    assert delays == [timedelta(minutes=30), timedelta(hours=2)]


def test_a_max_delay_below_zero_is_refused() -> None:
    def clicks(session: SessionContext, clicks: object) -> None:
        """Never called."""

    declare = incremental_asset(
        mode=Stateless(),
        sources=[Source("raw.clicks", time_column="event_ts")],
        key="click_id",
        time_column="clicked_at",
        columns={"click_id": "string", "clicked_at": "timestamptz"},
        max_delay=timedelta(seconds=-1),
    )
    with pytest.raises(ConfigurationError, match="max_delay"):
        declare(clicks)  # type: ignore[arg-type]
