"""The worked example of the guide comes out exactly: session rows, published and marked partitions, data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from lake_assets.base.hours import HOUR, hour_key
from lake_assets.demo.membership_simulator import land, worked_example
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.operations import verify
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.dagster.graphql import Ui, ui
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon, asset_key, in_process_daemon
from lake_assets_tests.incremental.scenario import START, Lake

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession


def newest(lake: Lake, name: str) -> tuple[str, list[int]]:
    """What a target's newest session did: its load, and the hours that it built."""
    record = lake.history(name)[-1]
    assert record.state == "committed"
    return record.plan.load, [hour - START for hour in record.built]


def left(lake: Lake) -> dict[str, tuple[str, ...]]:
    """What targets have not taken in, where there is anything; but for the day, which is not complete."""
    due = [target for target in PIPELINE.targets if target.grain is HOUR]
    return {target.name: found for target in due if (found := verify.left(lake.engine, target))}


def assert_fresh(daemon: InProcessDaemon, shown: Ui) -> None:
    """No partition that was built shows "Unsynced", wherever late rows have landed since."""
    for target in PIPELINE.targets:
        partitions = sorted(daemon.instance.get_materialized_partitions(asset_key(target.table)))
        assert shown.stale(target.table, partitions) == dict.fromkeys(partitions, ("FRESH", []))


def assert_rows_of_partitions(lake: Lake, daemon: InProcessDaemon, name: str, hours: list[int]) -> None:
    """Each partition of the last session shows its own rows, those that the session wrote, and those of the table."""
    table = f"core.{name}"
    record = lake.history(table)[-1]
    rows = Counter(row["signed_up_at"] for row in lake.rows(table)[table])
    shown = {}
    for hour in hours:
        partition = dg.AssetRecordsFilter(asset_key(table), asset_partitions=[hour_key(START + hour)])
        event = daemon.instance.fetch_materializations(partition, limit=1).records[0].asset_materialization
        assert event is not None
        found: dict[str, Any] = {name: value.value for name, value in event.metadata.items()}
        shown[hour] = found["dagster/partition_row_count"], found["dagster/row_count"]
        assert 0 < found["rows written"] <= found["dagster/partition_row_count"]
        assert found["session rows written"] == record.rows_written
    in_hour = {hour: sum(n for at, n in rows.items() if at.hour == hour) for hour in hours}
    assert shown == {hour: (in_hour[hour], rows.total()) for hour in hours}


@pytest.mark.journey
def test_g6_g15_only_the_hours_that_changed_are_rebuilt_and_marked(catalog: Catalog, spark: SparkSession) -> None:
    lake, (first, late, rest) = Lake(catalog, spark), worked_example()
    with (
        in_process_daemon(PIPELINE, catalog, utc_now, end=hour_key(START + 20), spark=spark) as daemon,
        ui(daemon.instance) as shown,
    ):
        land(catalog, first)
        assert daemon.catch_up()["account_state_dim"] == [list(range(6))]

        land(catalog, late)
        expected = {
            "signup_fact": ("append", [2, 3, 6]),
            "plan_fact": ("append", [2, 3, 6]),
            "cancel_request_fact": ("none", []),
            "cancel_fact": ("overwrite", [5, 6, 7]),
            "account_state_dim": ("overwrite", [2, 3, 4, 5, 6]),
        }
        assert daemon.catch_up() == {name: [hours] for name, (_, hours) in expected.items()}
        assert {name: newest(lake, name) for name in expected} == expected
        assert 7 not in daemon.hours_of("core.account_state_dim")
        dimension = lake.state("account_state_dim").committed
        assert (dimension.pending, dimension.complete_through) == (frozenset({START + 7}), START + 6)

        assert_fresh(daemon, shown)
        assert_rows_of_partitions(lake, daemon, "signup_fact", [2, 3, 6])
        assert shown.checks("core.account_state_dim")["pending_hours"] == "WARN"

        assert left(lake) == {"account_state_dim": (f"{hour_key(START + 7)}: pending",)}
        land(catalog, rest)
        assert left(lake)["signup_fact"] == ("raw.signups has snapshots that were not read",)
        marked = daemon.catch_up()
        assert marked["account_state_dim"] == [[7]]
        assert marked.get("cancel_fact", [[]]) == [[]]
        assert lake.complete_through("core.account_state_dim") == 7
        assert shown.checks("core.account_state_dim")["pending_hours"] == "SUCCEEDED"
        assert_fresh(daemon, shown)
    assert left(lake) == {}
    lake.assert_true()
