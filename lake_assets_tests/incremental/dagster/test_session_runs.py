"""The tags of a session's run, and when its next attempt may start. Pure."""

from __future__ import annotations

import pytest

from lake_assets.base.grain import HOUR
from lake_assets.base.hours import hour_key
from lake_assets.incremental.dagster.asset_specs import partitions_of
from lake_assets.incremental.dagster.session_runs import Attempt, envelope_tags, rest_seconds
from lake_assets.incremental.planning.session import PlannedHour, SessionPlan
from lake_assets_tests.incremental.clicks import START, at

KEYS = [hour_key(START + hour) for hour in range(24)]


@pytest.mark.parametrize(
    ("hours", "complete_through", "expected"),
    [
        ((2, 6), None, (KEYS[2], KEYS[6])),
        ((-5, 3), None, (KEYS[0], KEYS[3])),
        ((3, 90_000), None, (KEYS[3], KEYS[19])),
        ((50, 60), None, (KEYS[19], KEYS[19])),
        ((), START + 7, (KEYS[7], KEYS[7])),
        ((), None, (KEYS[0], KEYS[0])),
    ],
)
def test_g11_every_run_has_partitions_that_dagster_knows(
    hours: tuple[int, ...], complete_through: int | None, expected: tuple[str, str]
) -> None:
    plan = SessionPlan(
        process="core.click_fact",
        session_id="s",
        kind="session",
        load="append",
        sources=(),
        hours=tuple(PlannedHour(START + hour, "") for hour in hours),
        complete_through=complete_through,
    )
    assert tuple(envelope_tags(plan, partitions_of(HOUR, KEYS[0], KEYS[20], at(23))).values()) == expected


@pytest.mark.parametrize(
    ("ended", "expected"), [([], 0), ([100], 30), ([100, 50], 120), ([50, 60, 100], 480), ([1, 2, 3, 100], None)]
)
def test_attempts_rest_longer_each_time(ended: list[float], expected: float | None) -> None:
    assert rest_seconds([Attempt(at, "v1") for at in ended], "v1", now=100) == expected


def test_a_change_of_code_is_a_fresh_start() -> None:
    assert rest_seconds([Attempt(at, "v1") for at in (1, 2, 3, 4)], "v2", now=5) == 0
