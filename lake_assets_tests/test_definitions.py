"""What Dagster loads, as a whole: every asset, dependency, check, sensor and pool."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from lake_assets.definitions import declared
from lake_assets.engagement.lake import STREAMS
from lake_assets.engagement.lakes import LAKES
from lake_assets.settings import Settings

defs = declared(Settings(home=Path("/nothing/is/opened")))
GRAPH = defs.resolve_asset_graph()
TABLES = [node for node in GRAPH.asset_nodes if node.group_name in ("raw", "core")]
LANDING = [node for node in GRAPH.asset_nodes if node.group_name == "landing"]
ENGAGEMENT = [node for node in GRAPH.asset_nodes if node.key.path[0] == "engagement"]
SERVING = [node for node in GRAPH.asset_nodes if node.group_name == "serving"]
SET_ASIDE = ["quarantine", "quarantine_limit"]


def words(keys: object) -> list[str]:
    return sorted(key.to_user_string() for key in keys)  # type: ignore[attr-defined]


def test_all_assets_and_what_they_are_built_from() -> None:
    assert {node.key.to_user_string(): words(node.parent_keys) for node in TABLES} == {
        "raw/signups": ["landing/raw/signups"],
        "raw/plan_changes": ["landing/raw/plan_changes"],
        "raw/cancel_requests": ["landing/raw/cancel_requests"],
        "raw/cancels": ["landing/raw/cancels"],
        "core/signup_fact": ["raw/signups"],
        "core/plan_fact": ["raw/plan_changes"],
        "core/cancel_request_fact": ["raw/cancel_requests"],
        "core/cancel_fact": ["core/cancel_request_fact", "raw/cancels"],
        "core/account_state_dim": ["core/cancel_fact", "core/plan_fact", "core/signup_fact"],
        "core/account_state_daily": ["core/account_state_dim"],
    }


def test_each_asset_links_to_the_report() -> None:
    links = {node.metadata.get("lake/report") for node in GRAPH.asset_nodes}
    assert links == {dg.MetadataValue.url("/lake-report")}
    assert len(TABLES) + len(LANDING) + len(ENGAGEMENT) + len(SERVING) == len(list(GRAPH.asset_nodes))


def test_all_checks_and_which_of_them_block() -> None:
    found: dict[str, dict[str, bool]] = {}
    aside = {node.key for node in (*ENGAGEMENT, *LANDING, *SERVING)}
    for key in (key for key in GRAPH.asset_check_keys if key.asset_key not in aside):
        checks = found.setdefault(key.asset_key.to_user_string(), {})
        checks[key.name] = GRAPH.get_check_spec(key).blocking
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
        "ties": False,
        "intact": False,
        "equals_rebuild": False,
        "pending_hours": False,
    }


def test_every_lake_has_its_graph_from_kafka_to_serving_each_part_in_a_pool_of_its_own() -> None:
    found = {node.key.to_user_string(): (words(node.parent_keys), node.pools or set()) for node in ENGAGEMENT}
    expected: dict[str, tuple[list[str], set[str]]] = {}
    for lake in LAKES:
        prefix = f"engagement/{lake.name}"
        for name in STREAMS:
            expected[f"{prefix}/kafka/{name}"] = ([], set())
            expected[f"{prefix}/{name}"] = ([f"{prefix}/kafka/{name}"], {f"{lake.name}.{name}"})
        expected[f"{prefix}/engagement"] = ([f"{prefix}/{name}" for name in STREAMS], set())
        expected[f"{prefix}/notification"] = ([f"{prefix}/engagement"], set())
        expected[f"{prefix}/engagement_metrics"] = ([f"{prefix}/notification"], {f"{lake.name}.engagement_metrics"})
        expected[f"{prefix}/maintenance"] = ([], {f"{lake.name}.maintenance"})
        served = GRAPH.get(dg.AssetKey(["serving", f"{lake.name}_metrics"]))
        assert words(served.parent_keys) == [f"{prefix}/engagement_metrics"]
    assert {node.group_name for node in ENGAGEMENT} == {f"engagement_{lake.name}" for lake in LAKES}
    assert {(node.key.path[1], node.group_name) for node in ENGAGEMENT if node.key.path[-1] == "maintenance"} == {
        (lake.name, f"engagement_{lake.name}") for lake in LAKES
    }
    assert found == expected
    names = {key.name for key in GRAPH.asset_check_keys if key.asset_key.path[-1] == "ingestion"}
    assert names == {
        "turn_in_time",
        "notifications_equal_commits",
        "kafka_records_equal_rows",
        "unique_engagement_ids",
    }


def test_each_topic_is_landed_in_two_zones_and_loaded_when_both_have_it() -> None:
    assert {node.key.to_user_string(): words(node.parent_keys) for node in LANDING} == {
        key: parents
        for topic in ("raw/signups", "raw/plan_changes", "raw/cancel_requests", "raw/cancels")
        for key, parents in {
            f"kafka/{topic}": [],
            f"landing/a/{topic}": [f"kafka/{topic}"],
            f"landing/b/{topic}": [f"kafka/{topic}"],
            f"landing/{topic}": [f"landing/a/{topic}", f"landing/b/{topic}"],
        }.items()
    }
    checks = {(key.asset_key.path[1], key.name) for key in GRAPH.asset_check_keys if key.asset_key.path[0] == "landing"}
    assert checks == {("a", "lag"), ("b", "lag"), ("raw", "zones_equal")}
    assert {node.key.path[0] for node in LANDING if not node.is_materializable} == {"kafka"}
    assert {pool for node in LANDING for pool in node.pools or () if len(node.key.path) == 4} == {
        "landing.a",
        "landing.b",
    }


def test_every_target_has_its_pool_and_is_backfilled_in_one_run() -> None:
    for node in TABLES:
        if node.is_materializable:
            assert node.pools == {node.key.to_user_string().replace("/", ".")}
            assert node.backfill_policy == dg.BackfillPolicy.single_run()


def test_all_sensors_run_from_the_start() -> None:
    assert {sensor.name: sensor.default_status for sensor in defs.sensors or ()} == dict.fromkeys(
        [
            *(f"{lake.name}_{name}_sensor" for lake in LAKES for name in (*STREAMS, "maintenance", "metrics")),
            "sessions_sensor",
            "raw_tables_sensor",
            "targets_sensor",
            "landing_sensor",
            "landing_merging_sensor",
            "serving_sensor",
        ],
        dg.DefaultSensorStatus.RUNNING,
    )


def test_g17_a_run_needs_no_second_interpreter() -> None:
    assert defs.executor is dg.in_process_executor


def test_maintenance_is_one_job_that_takes_no_pool_daily() -> None:
    """Sessions of all targets go on meanwhile."""
    names = ("maintenance", "landing_upkeep", "landing_verification")
    schedules = [defs.resolve_schedule_def(f"{name}_schedule") for name in names]
    assert [(found.cron_schedule, found.job_name) for found in schedules] == [
        ("17 3 * * *", "maintenance"),
        ("17 3 * * *", "landing_upkeep"),
        ("47 4 * * *", "landing_verification"),
    ]
    assert schedules[0].execution_timezone == "UTC"
    assert schedules[0].default_status is dg.DefaultScheduleStatus.RUNNING
    job = defs.resolve_job_def("maintenance")
    assert {node.name: node.definition.pools for node in job.nodes} == {
        "maintain_tables": set(),
        "finish_erasures": set(),
        "remove_old_runs": set(),
    }
    assert not any(node.key.path[0] == "maintenance" for node in GRAPH.asset_nodes)


def test_columns_are_traced_to_their_sources() -> None:
    lineage = GRAPH.get(dg.AssetKey(["core", "signup_fact"])).metadata["dagster/column_lineage"]
    deps = lineage.deps_by_column
    assert [(dep.asset_key.to_user_string(), dep.column_name) for dep in deps["signed_up_at"]] == [
        ("raw/signups", "event_ts")
    ]
    assert [(dep.asset_key.to_user_string(), dep.column_name) for dep in deps["plan"]] == [("raw/signups", "plan")]


def test_every_column_says_what_is_in_it() -> None:
    for node in TABLES:
        columns = node.metadata["dagster/column_schema"].columns
        assert columns
        assert [column.name for column in columns if not (column.description or "").endswith(".")] == []


def test_what_is_served_follows_its_table_one_push_at_a_time() -> None:
    found = {node.key.to_user_string(): (words(node.parent_keys), node.pools) for node in SERVING}
    metrics = {f"{lake.name}_metrics": f"engagement/{lake.name}/engagement_metrics" for lake in LAKES}
    served = {"account_state": "core/account_state_dim", **metrics}
    assert found == {f"serving/{name}": ([table], {f"serving.{name}"}) for name, table in served.items()}
    assert all(node.partitions_def is None for node in SERVING)
    assert {(key.name, GRAPH.get_check_spec(key).blocking) for node in SERVING for key in node.check_keys} == {
        ("row_count", False),
        ("served_checksum", False),
    }
    assert defs.resolve_job_def("revert_push").name == "revert_push"
