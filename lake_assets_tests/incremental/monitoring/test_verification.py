"""A target that was changed behind the engine's back differs from a rebuild, in just the hours that were changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from lake_assets.base.hours import hour_key
from lake_assets.demo.membership import compare, expected_rows
from lake_assets.demo.membership_simulator import EXAMPLE, worked_example
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.assets import incremental_definitions
from lake_assets.incremental.dagster.lake_resource import LAKE
from lake_assets.incremental.dagster.watch import (
    EQUALS_REBUILD,
    check_key,
    verification_definitions,
    verification_problem,
)
from lake_assets.incremental.operations.verify import Verification, verify_hours
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import NOW, START, Lake

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

FIRST, LATE, _ = worked_example(replace(EXAMPLE, accounts=40))
FACT, STATEFUL, DIM = "signup_fact", "cancel_fact", "account_state_dim"
NAMES = (FACT, STATEFUL, DIM)


def verified(lake: Lake, name: str, hours: Sequence[int]) -> Verification:
    wanted = [START + hour for hour in hours]
    return verify_hours(lake.engine, lake.target(name), day=1, limit=6, wanted=wanted)


def numbers(hours: Sequence[int]) -> list[int]:
    return [hour - START for hour in hours]


@pytest.mark.journey
def test_hours_that_are_not_those_of_a_rebuild_are_named(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    assert verified(lake, FACT, [1]).note == "Nothing was built yet."
    lake.land(FIRST)
    lake.land(LATE)
    lake.catch_up()
    sent = expected_rows([FIRST, LATE], start=START)
    for target in PIPELINE.targets:
        rows = lake.rows(target.table)[target.table]
        assert compare(target.columns, rows, sent[target.table]) == (0, 0), target.table
    assert lake.state("account_state_dim").committed.pending == {START + 7}
    for name in NAMES:
        found = verified(lake, name, range(2, 10) if name == DIM else range(2, 7))
        table = lake.target(name)
        rows = [r for r in lake.rows(table.table)[table.table] if 2 <= r[table.time_column].hour < 7]
        assert (found.equal, numbers(found.compared)) == (True, [2, 3, 4, 5, 6]), name
        assert found.rows == found.rows_rebuilt == len(rows) > 0
    assert found.left_out == (
        f"{hour_key(START + 7)}: pending",
        f"{hour_key(START + 8)}..{hour_key(START + 9)}: not built, or without rows",
    )

    hour = "hour({}) = {}".format
    spark.sql(f"UPDATE lake.core.signup_fact SET plan = null WHERE {hour('signed_up_at', 3)}")
    spark.sql(f"DELETE FROM lake.core.cancel_fact WHERE {hour('canceled_at', 5)}")
    spark.sql(f"UPDATE lake.core.account_state_dim SET churn_type = 'x' WHERE {hour('state_hour', 4)}")
    state = {name: (lake.main(f"core.{name}"), lake.state(name)) for name in NAMES}
    results = {name: verified(lake, name, range(7)) for name in NAMES}
    differing = {name: numbers(found.differing) for name, found in results.items()}
    assert differing == {FACT: [3], STATEFUL: [5], DIM: [4]}
    found = results[STATEFUL]
    assert found.remedy == f"Rebuild the hours: `lake rebuild cancel_fact {hour_key(START + 5)} {hour_key(START + 5)}`."
    assert found.rows < found.rows_rebuilt
    assert state == {name: (lake.main(f"core.{name}"), lake.state(name)) for name in NAMES}

    assert_dagster_shows_it(lake)


def assert_dagster_shows_it(lake: Lake) -> None:
    """A run of the check, as the schedule requests it, fails and names the hour; so does the alert."""
    handed = {LAKE: SimpleNamespace(catalog=lambda: lake.catalog, spark_session=lake.spark)}
    definitions = dg.Definitions.merge(
        incremental_definitions(PIPELINE, clock=lambda: NOW, end=hour_key(START + 20)),
        verification_definitions(PIPELINE, clock=lambda: NOW, hours=12, cron="0 4 * * *"),
        dg.Definitions(resources={k: dg.ResourceDefinition.hardcoded_resource(v) for k, v in handed.items()}),
    )
    repository = definitions.get_repository_def()
    target = lake.target(FACT)
    schedule = repository.get_schedule_def("verification_schedule")
    with dg.instance_for_test() as instance:
        tick = dg.build_schedule_context(instance, scheduled_execution_time=NOW, repository_def=repository)
        requests = schedule.evaluate_tick(tick).run_requests
        assert requests
        assert [request.asset_check_keys for request in requests] == [[check_key(each)] for each in PIPELINE.targets]
        job = repository.get_job(schedule.job_name).get_subset(
            asset_selection=set(), asset_check_selection={check_key(target)}
        )
        result = job.execute_in_process(instance=instance)
        (evaluation,) = result.get_asset_check_evaluations()
        assert (evaluation.asset_key, evaluation.check_name) == (asset_key(target.table), EQUALS_REBUILD)
        assert not evaluation.passed
        assert f"in {hour_key(START + 3)}. Rebuild the hours: `lake rebuild" in (evaluation.description or "")
        alert = verification_problem(instance, target)
        assert alert is not None
        assert (alert.kind, alert.target, alert.what) == ("not_equal", target.table, evaluation.description)
        assert verification_problem(instance, lake.target(DIM)) is None
