"""What the checks of a target show, from a bad hour to its repair, as the UI shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from lake_assets.base.hours import hour_key
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.dagster.graphql import Ui, ui
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon, asset_key, in_process_daemon
from lake_assets_tests.incremental.scenario import START, Lake, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

TABLE = "core.signup_fact"
RAW = ("raw.signups", "raw.plan_changes", "raw.cancel_requests", "raw.cancels")
MEND = "UPDATE lake.raw.signups SET account_id = 'a' WHERE account_id IS NULL"
AUDITED = dict.fromkeys(
    [
        "source_target_counts",
        "no_missing_events",
        "not_null_account_id",
        "unique_key",
        "accepted_values_plan",
        "row_count_like_earlier",
        "quarantine",
        "quarantine_limit",
        "ties",
        "pending_hours",
    ],
    "SUCCEEDED",
)
GREEN = {**AUDITED, "equals_rebuild": "NOT EXECUTED", "intact": "NOT EXECUTED"}
"""The last two are no part of a session."""
HELD = {**GREEN, "not_null_account_id": "FAILED"}


def land(lake: Lake, *rows: dict[str, object], through: int) -> None:
    lake.append("raw.signups", rows)
    for raw in RAW:
        lake.complete(raw, START + through)


def chosen(first: int, last: int) -> dict[str, str]:
    return {
        "dagster/asset_partition_range_start": hour_key(START + first),
        "dagster/asset_partition_range_end": hour_key(START + last),
    }


def evaluations(result: dg.ExecuteInProcessResult) -> dict[str, tuple[bool, object]]:
    """Check → whether it passed, and the hours that it evaluated."""
    found: dict[str, tuple[bool, object]] = {}
    for each in result.get_asset_check_evaluations():
        hours = each.metadata.get("evaluated hours")
        found[each.check_name] = (each.passed, hours.value if hours else None)
    return found


@pytest.mark.slow
def test_g2_g19_a_verdict_stays_until_the_hour_is_judged_again(
    home: Settings, catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    land(lake, signup(1, 1), signup(1, 2, account_id=None), signup(2, 2), signup(1, 3), through=3)
    with (
        in_process_daemon(PIPELINE, catalog, utc_now, end=hour_key(START + 20), spark=spark) as daemon,
        ui(daemon.instance) as shown,
    ):
        assert daemon.catch_up("signup_fact") == {"signup_fact": [[1, 3]]}
        assert shown.checks(TABLE) == HELD  # hour 2

        land(lake, signup(1, 4), through=4)
        assert daemon.catch_up("signup_fact") == {"signup_fact": [[4]]}
        assert shown.checks(TABLE) == HELD  # hour 4 passed, hour 2 is as it was

        a_session_without_rows(lake, daemon, shown)
        a_person_executes_checks(lake, daemon, shown)
        a_person_audits_in_a_terminal(home)
        a_person_rebuilds(daemon, shown)

        spark.sql(MEND)
        assert daemon.catch_up("signup_fact") == {"signup_fact": [[2]]}
        assert shown.checks(TABLE) == GREEN


def a_session_without_rows(lake: Lake, daemon: InProcessDaemon, shown: Ui) -> None:
    lake.compact("raw.signups")
    assert daemon.catch_up("signup_fact") == {"signup_fact": [[]]}
    assert shown.checks(TABLE) == HELD
    assert belongs_to_newest(daemon.instance, "pending_hours")  # also if both came in one second


def belongs_to_newest(instance: dg.DagsterInstance, name: str) -> bool:
    """Whether the newest evaluation of a check names the newest materialization of the table."""
    key = dg.AssetCheckKey(asset_key(TABLE), name)
    evaluated = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key].evaluation
    target = evaluated.target_materialization_data if evaluated else None
    newest = instance.fetch_materializations(key.asset_key, limit=1).records[0]
    return target is not None and target.storage_id == newest.storage_id


def a_person_executes_checks(lake: Lake, daemon: InProcessDaemon, shown: Ui) -> None:
    before = lake.state(TABLE), lake.main(TABLE)
    newest = daemon.execute_checks(TABLE, "unique_key", "not_null_account_id", "pending_hours")
    assert newest.success
    assert evaluations(newest) == {
        "unique_key": (True, hour_key(START + 1)),
        "not_null_account_id": (False, hour_key(START + 1)),  # hour 2 is held back still
        "pending_hours": (True, None),
    }
    two_hours = daemon.execute_checks(TABLE, "no_missing_events", "source_target_counts", hours=[2, 3])
    assert two_hours.success
    hours = f"{hour_key(START + 2)}..{hour_key(START + 3)}"
    assert evaluations(two_hours) == {"no_missing_events": (False, hours), "source_target_counts": (False, hours)}
    assert shown.checks(TABLE) == {**HELD, "no_missing_events": "FAILED", "source_target_counts": "FAILED"}
    assert belongs_to_newest(daemon.instance, "no_missing_events")
    assert belongs_to_newest(daemon.instance, "pending_hours")
    assert (lake.state(TABLE), lake.main(TABLE)) == before


def a_person_audits_in_a_terminal(home: Settings) -> None:
    assert home.spark_remote
    environment = {**os.environ, "LAKE_HOME": str(home.home), "LAKE_SPARK_REMOTE": home.spark_remote}
    hours = f"{hour_key(START + 2)}..{hour_key(START + 3)}"
    command = [sys.executable, "-m", "lake_assets.cli.main", "audit", "signup_fact", hours]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert f"✗ no_missing_events: 2 missing; such as s01-2, s02-2; in {hour_key(START + 2)}" in done.stdout
    assert "✓ unique_key: 0 repeated" in done.stdout
    assert f"pending, held back or skipped: {hour_key(START + 2)}." in done.stdout


def a_person_rebuilds(daemon: InProcessDaemon, shown: Ui) -> None:
    result = daemon.execute(TABLE, tags=chosen(4, 4))
    assert result.success  # the hour is good; that another one is held back does not stop what is downstream
    assert daemon.hours_marked(result) == [4]
    (marked,) = result.asset_materializations_for_node("core__signup_fact")
    rows = [
        marked.metadata[name].value for name in ("dagster/partition_row_count", "rows written", "dagster/row_count")
    ]
    assert rows == [1, 0, 3]  # it came out as it was
    assert (marked.tags or {})["dagster/input_event_pointer/raw/signups"] == "NULL"
    assert shown.checks(TABLE) == HELD
    nothing = daemon.execute(TABLE, tags=chosen(9, 9))  # an hour that no source is complete for
    assert not daemon.hours_marked(nothing)
    assert shown.checks(TABLE) == HELD
    # Also if the two runs end in the same second: the verdict is one of the newest materialization.
    newest = daemon.instance.fetch_materializations(asset_key(TABLE), limit=1).records[0].storage_id
    targets = [each.target_materialization_data for each in nothing.get_asset_check_evaluations() if not each.passed]
    assert targets
    assert targets[-1]
    assert targets[-1].storage_id == newest
