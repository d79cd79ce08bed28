"""The tags of a session's run, and when its next attempt may start. Pure."""

from __future__ import annotations

import dagster as dg
import pytest

from lake_assets.base.hours import HOUR, hour_key
from lake_assets.errors import ServiceError
from lake_assets.incremental.dagster.asset_specs import partitions_of
from lake_assets.incremental.dagster.session_runs import (
    CODE_VERSION_TAG,
    SESSION_TAG,
    Attempt,
    ended_attempts,
    partition_tags,
    rest_seconds,
)
from lake_assets.incremental.engine.model import PlannedHour, SessionPlan
from lake_assets_tests.incremental.clicks import START, at

KEYS = [hour_key(START + hour) for hour in range(24)]


@pytest.mark.parametrize(
    ("hours", "complete_through", "expected"),
    [
        ((2, 3, 6), None, (KEYS[2], KEYS[3])),
        ((-5, 3), None, (KEYS[3], KEYS[3])),
        ((3, 90_000), None, (KEYS[3], KEYS[3])),
        ((50, 60), None, (KEYS[19], KEYS[19])),
        ((-9, -8), None, (KEYS[0], KEYS[0])),
        ((), START + 7, (KEYS[8], KEYS[8])),
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
    assert tuple(partition_tags(plan, HOUR, partitions_of(HOUR, KEYS[0], KEYS[20], at(23))).values()) == expected


@pytest.mark.parametrize(
    ("ended", "expected"), [([], 0), ([100], 30), ([100, 50], 120), ([50, 60, 100], 480), ([1, 2, 3, 100], None)]
)
def test_attempts_rest_longer_each_time(ended: list[float], expected: float | None) -> None:
    assert rest_seconds([Attempt(at, "v1") for at in ended], "v1", now=100) == expected


def test_a_change_of_code_is_a_fresh_start() -> None:
    assert rest_seconds([Attempt(at, "v1") for at in (1, 2, 3, 4)], "v2", now=5) == 0


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        *[("i", 30), ("ii", 60), ("iii", 120), ("iiii", 240), ("iiiii", 300), ("i" * 90, 300), ("ci", 30), ("ic", 30)],
        *[("icic", 120), ("cccii", 60), ("iiccc", 480), ("cccci", None), ("ccicc", None)],
    ],
)
def test_only_failures_of_code_or_data_are_limited(ended: str, expected: float | None) -> None:
    attempts = [Attempt(float(number), "v1", kind == "i") for number, kind in enumerate(ended)]
    assert rest_seconds(attempts, "v1", now=len(ended) - 1) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ServiceError("No Spark Connect server answers at sc://h:1: refused.", remedy="Start one."), True),
        (OSError(28, "No space left on device"), True),
        (ValueError("amount is negative"), False),
    ],
)
def test_an_attempt_knows_whether_the_infrastructure_failed(
    error: Exception, expected: bool, instance: dg.DagsterInstance
) -> None:
    @dg.op
    def build() -> None:
        try:
            raise error
        except Exception as cause:
            raise RuntimeError("The step failed.") from cause

    @dg.job(tags={SESSION_TAG: "s", CODE_VERSION_TAG: "v1"})
    def session() -> None:
        build()

    session.execute_in_process(instance=instance, raise_on_error=False)
    (attempt,) = ended_attempts(instance, "s")
    assert (attempt.code_version, attempt.by_infrastructure) == ("v1", expected)


def test_a_run_that_was_killed_failed_by_infrastructure(instance: dg.DagsterInstance) -> None:
    run = instance.create_run_for_job(
        dg.GraphDefinition("nothing").to_job(), tags={SESSION_TAG: "s"}, status=dg.DagsterRunStatus.STARTED
    )
    instance.report_run_failed(run)  # as the code server reports a process that died
    assert [attempt.by_infrastructure for attempt in ended_attempts(instance, "s")] == [True]
