"""The equality that proves it all: however rows arrive, targets equal what one rebuild from all raw rows gives.

A failure prints the steps that led to it, as a script; docs/verification.md tells how to run it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from lake_assets.incremental.declaration import Stateful
from lake_assets.membership import PIPELINE
from lake_assets.settings import Settings
from lake_assets_tests.incremental.history import History
from lake_assets_tests.incremental.scenario import START, Lake, signup, with_target
from lake_assets_tests.matrices import one_now

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets_tests.membership.oracle import Row

HISTORIES = int(os.environ.get("LAKE_TEST_HISTORIES", "6"))
"""Random histories on real tables; a longer run sets more."""
SEED = os.environ.get("LAKE_TEST_SEED", "0")
"""What the histories are drawn from: the same ones, unless another is set."""
PARTS = 3
"""So many tests share the histories, so that several processes can. The simplest one is in each."""
EACH = -(-HISTORIES // PARTS)
LONGEST = 180
"""Seconds that a history may take, on a busy machine."""


@pytest.mark.slow
@pytest.mark.timeout(LONGEST * (EACH + 1))
@pytest.mark.parametrize("part", one_now(range(PARTS)))
def test_targets_equal_one_full_rebuild_whatever_happens(part: int, tmp_path: Path, spark_server: str) -> None:
    homes = (Settings(home=tmp_path / str(n), spark_remote=spark_server) for n in range(1_000_000))
    make: Any = seed(f"{SEED}, part {part}")(lambda: History(next(homes)))
    drawn = settings(
        max_examples=EACH + 1,  # the first is the simplest there is
        stateful_step_count=14,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate, Phase.shrink) if HISTORIES > 100 else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(make, settings=drawn)
    except Exception as failure:
        failure.add_note(f"Before these steps: from {History.__module__} import History")
        raise


def test_a_repeated_delivery_that_landed_earlier_takes_the_place_of_the_stored_one(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    rows = [signup(n, hour) for hour in (1, 2, 3) for n in range(3)]
    late = [{**row, "landed_at": row["landed_at"] + timedelta(hours=2), "plan": "family"} for row in rows]
    lake.append("raw.signups", late)
    lake.session("signup_fact")
    lake.append("raw.signups", [rows[4], signup(7, 2)])
    first = lake.session("signup_fact")
    assert (first.hours_built, first.rows_duplicate) == ((START + 2,), 1)
    lake.assert_true("signup_fact")

    latest = [{**row, "landed_at": row["landed_at"] + timedelta(hours=5)} for row in rows]
    lake.append("raw.signups", [*latest, signup(8, 3)])
    second = lake.session("signup_fact")
    assert (second.hours_built, second.rows_duplicate, second.rows_written) == ((START + 3,), 9, 1)
    lake.assert_true("signup_fact")


def test_hours_beyond_the_catch_up_threshold_are_skipped_until_a_backfill(
    catalog: Catalog, spark: SparkSession
) -> None:
    near = replace(PIPELINE.target("cancel_fact"), mode=Stateful(catchup_threshold=2))
    lake = Lake(catalog, spark, with_target(PIPELINE, near))
    for hours in (range(1, 6), (1, 5)):
        lake.append("raw.cancels", [_cancel(signup(len(hours), hour)) for hour in hours])
        lake.complete("raw.cancels", START + 5)
        lake.complete("raw.cancel_requests", START + 5)
        reports = lake.catch_up("cancel_request_fact", "cancel_fact")
    assert reports[-1].hours_built == (START + 5,)
    assert lake.state("cancel_fact").committed.skipped == {START + 1}
    lake.engine.rebuild(lake.target("cancel_fact"), [START + 1])
    lake.assert_true("cancel_fact")
    assert lake.state("cancel_fact").committed.skipped == frozenset()


def _cancel(row: Row) -> Row:
    return {**row, "cancel_id": row["signup_id"], "processing_ts": row["event_ts"]}
