"""What Dagster loads, as a whole: every asset, dependency, check, sensor and pool."""

from __future__ import annotations

from datetime import UTC, datetime

import dagster as dg

from lake_assets.definitions import defs
from lake_assets.engagement.lake import STREAMS
from lake_assets.engagement.lakes import LAKES

GRAPH = defs.resolve_asset_graph()
TABLES = [node for node in GRAPH.asset_nodes if node.group_name in ("raw", "core")]
MAINTENANCE = [node for node in GRAPH.asset_nodes if node.group_name == "maintenance"]
ENGAGEMENT = [node for node in GRAPH.asset_nodes if node.group_name == "engagement"]
SET_ASIDE = ["quarantine", "quarantine_limit"]


def words(keys: object) -> list[str]:
    return sorted(key.to_user_string() for key in keys)  # type: ignore[attr-defined]


def test_all_assets_and_what_they_are_built_from() -> None:
    assert {node.key.to_user_string(): words(node.parent_keys) for node in TABLES} == {
        "raw/signups": [],
        "raw/plan_changes": [],
        "raw/cancel_requests": [],
        "raw/cancels": [],
        "core/signup_fact": ["raw/signups"],
        "core/plan_fact": ["raw/plan_changes"],
        "core/cancel_request_fact": ["raw/cancel_requests"],
        "core/cancel_fact": ["core/cancel_request_fact", "raw/cancels"],
        "core/account_state_dim": [
            "core/account_state_dim",
            "core/cancel_fact",
            "core/plan_fact",
            "core/signup_fact",
        ],
        "core/account_state_daily": ["core/account_state_dim"],
    }


def test_all_checks_and_which_of_them_block() -> None:
    found: dict[str, dict[str, bool]] = {}
    for key in (key for key in GRAPH.asset_check_keys if key.asset_key not in {node.key for node in ENGAGEMENT}):
        checks = found.setdefault(key.asset_key.to_user_string(), {})
        checks[key.name] = GRAPH.get_check_spec(key).blocking
    assert found.pop("maintenance/erasures") == {"erasures_finished": False}
    assert found.pop("serving/account_state") == {"row_count": False, "served_checksum": False}
    assert set(found) == {node.key.to_user_string() for node in TABLES if node.is_materializable}
    assert all(checks["quarantine_limit"] and not checks["quarantine"] for checks in found.values())
    assert found["core/signup_fact"] == {
        "source_target_counts": True,
        "no_missing_events": True,
        "not_null_account_id": True,
        "unique_key": True,
        "accepted_values_plan": True,
        "row_count_like_earlier": False,
        "quarantine": False,
        "quarantine_limit": True,
    }


def test_every_lake_has_its_streams_and_metrics_each_in_a_pool_of_its_own() -> None:
    found = {node.key.to_user_string(): (words(node.parent_keys), node.pools) for node in ENGAGEMENT}
    expected: dict[str, tuple[list[str], set[str]]] = {}
    for lake in LAKES:
        streams = {f"engagement/{lake.name}/{name}": ([], {f"{lake.name}.{name}"}) for name in STREAMS}
        metrics = (sorted(streams), {f"{lake.name}.engagement_metrics"})
        expected |= {**streams, f"engagement/{lake.name}/engagement_metrics": metrics}
    assert found == expected
    names = {key.name for key in GRAPH.asset_check_keys if key.asset_key.path[-1] == "ingestion"}
    assert names == {
        "turn_in_time",
        "notifications_equal_commits",
        "kafka_records_equal_rows",
        "unique_engagement_ids",
    }


def test_every_target_has_its_pool_and_is_backfilled_in_one_run() -> None:
    for node in TABLES:
        if node.is_materializable:
            assert node.pools == {node.key.to_user_string().replace("/", ".")}
            assert node.backfill_policy == dg.BackfillPolicy.single_run()


def test_all_sensors_run_from_the_start() -> None:
    assert {sensor.name: sensor.default_status for sensor in defs.sensors or ()} == dict.fromkeys(
        [
            *(f"{lake.name}_{name}_sensor" for lake in LAKES for name in (*STREAMS, "metrics")),
            "signup_fact_sensor",
            "plan_fact_sensor",
            "cancel_request_fact_sensor",
            "cancel_fact_sensor",
            "account_state_dim_sensor",
            "account_state_daily_sensor",
            "raw_tables_sensor",
            "serving_sensor",
        ],
        dg.DefaultSensorStatus.RUNNING,
    )


def test_every_table_has_its_maintenance_in_its_own_pool() -> None:
    found = {node.key.to_user_string(): node.pools for node in MAINTENANCE}
    assert found.pop("maintenance/erasures") == set()
    etl = ["etl/session", "etl/high_watermark", "etl/quarantine"]
    tables = [*(node.key.to_user_string() for node in TABLES), *etl]
    assert found == {f"maintenance/{table}": {table.replace("/", ".")} for table in tables}


def test_maintenance_is_requested_daily_one_run_for_each_table() -> None:
    schedule = defs.resolve_schedule_def("maintenance_schedule")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("17 3 * * *", "UTC")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    context = dg.build_schedule_context(scheduled_execution_time=datetime(2026, 1, 2, 3, 17, tzinfo=UTC))
    requests = schedule.evaluate_tick(context).run_requests or []
    selected = [words(request.asset_selection or ()) for request in requests]
    assert sorted(selected) == sorted([n.key.to_user_string()] for n in MAINTENANCE)
    assert len({request.run_key for request in requests}) == len(requests)


def test_columns_are_traced_to_their_sources() -> None:
    lineage = GRAPH.get(dg.AssetKey(["core", "signup_fact"])).metadata["dagster/column_lineage"]
    deps = lineage.deps_by_column
    assert [(dep.asset_key.to_user_string(), dep.column_name) for dep in deps["signed_up_at"]] == [
        ("raw/signups", "event_ts")
    ]
    assert [(dep.asset_key.to_user_string(), dep.column_name) for dep in deps["plan"]] == [("raw/signups", "plan")]


def test_what_is_served_follows_its_table_one_push_at_a_time() -> None:
    (node,) = [node for node in GRAPH.asset_nodes if node.group_name == "serving"]
    assert (node.key.to_user_string(), words(node.parent_keys)) == ("serving/account_state", ["core/account_state_dim"])
    assert (node.pools, node.partitions_def) == ({"serving.account_state"}, None)
    assert defs.resolve_job_def("revert_push").name == "revert_push"
