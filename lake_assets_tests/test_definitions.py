"""What Dagster loads, as a whole: every asset, dependency, check, sensor and pool."""

from __future__ import annotations

import dagster as dg

from lake_assets.definitions import defs

GRAPH = defs.resolve_asset_graph()
SET_ASIDE = ["quarantine", "quarantine_limit"]


def words(keys: object) -> list[str]:
    return sorted(key.to_user_string() for key in keys)  # type: ignore[attr-defined]


def test_all_assets_and_what_they_are_built_from() -> None:
    assert {node.key.to_user_string(): words(node.parent_keys) for node in GRAPH.asset_nodes} == {
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
    }


def test_all_checks_and_which_of_them_block() -> None:
    found: dict[str, dict[str, bool]] = {}
    for key in GRAPH.asset_check_keys:
        checks = found.setdefault(key.asset_key.to_user_string(), {})
        checks[key.name] = GRAPH.get_check_spec(key).blocking
    assert set(found) == {node.key.to_user_string() for node in GRAPH.asset_nodes if node.is_materializable}
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


def test_every_target_has_its_pool_and_is_backfilled_in_one_run() -> None:
    for node in GRAPH.asset_nodes:
        if node.is_materializable:
            assert node.pools == {node.key.to_user_string().replace("/", ".")}
            assert node.backfill_policy == dg.BackfillPolicy.single_run()


def test_all_sensors_run_from_the_start() -> None:
    assert {sensor.name: sensor.default_status for sensor in defs.sensors or ()} == dict.fromkeys(
        [
            "signup_fact_sensor",
            "plan_fact_sensor",
            "cancel_request_fact_sensor",
            "cancel_fact_sensor",
            "account_state_dim_sensor",
            "raw_tables_sensor",
        ],
        dg.DefaultSensorStatus.RUNNING,
    )


def test_columns_are_traced_to_their_sources() -> None:
    lineage = GRAPH.get(dg.AssetKey(["core", "signup_fact"])).metadata["dagster/column_lineage"]
    deps = lineage.deps_by_column
    assert [(dep.asset_key.to_user_string(), dep.column_name) for dep in deps["signed_up_at"]] == [
        ("raw/signups", "event_ts")
    ]
    assert [(dep.asset_key.to_user_string(), dep.column_name) for dep in deps["plan"]] == [("raw/signups", "plan")]
