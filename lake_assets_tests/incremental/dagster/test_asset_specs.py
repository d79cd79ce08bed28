"""What Dagster is told of tables: their partitions of hours and of days, and how old they may be."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.loader import LoadingContextForTest
from dagster._core.test_utils import freeze_time
from dagster._daemon.freshness import FreshnessDaemon

from lake_assets.base.hours import DAY, HOUR, days_in, hour_key, hour_of, parse_hour
from lake_assets.incremental.dagster.asset_specs import asset_key, partitions_of, raw_spec, target_spec
from lake_assets.incremental.dagster.assets import incremental_definitions
from lake_assets.incremental.declaration import RawTable, Target
from lake_assets.settings import PROJECT
from lake_assets_tests.incremental.clicks import CLICKS, START, at, click_fact


def test_g5_dynamic_partitions_lose_late_keys_of_a_range_and_those_of_hours_do_not() -> None:
    first, last = hour_key(START), hour_key(START + 2)
    chosen_range = dg.PartitionKeyRange(first, last)
    with dg.DagsterInstance.ephemeral() as instance, partition_loading_context(at(9), instance):
        instance.add_dynamic_partitions("late", [last, hour_key(START + 1), first])
        assert dg.DynamicPartitionsDefinition(name="late").get_partition_keys_in_range(chosen_range) == []
        hours = partitions_of(HOUR, first, None, at(9))
        assert len(hours.get_partition_keys_in_range(chosen_range)) == 3


def test_the_current_hour_is_a_partition_and_the_next_is_not() -> None:
    partitions = partitions_of(HOUR, hour_key(START), None, at(9, 30))
    with partition_loading_context(at(9, 30)):
        assert partitions.get_last_partition_key() == hour_key(START + 9)


def test_days_are_those_that_hold_the_hours() -> None:
    partitions = partitions_of(DAY, hour_key(START + 5), hour_key(START + 25), at(9, 30))
    assert isinstance(partitions, dg.DailyPartitionsDefinition)
    with partition_loading_context(at(9, 30)):
        assert partitions.get_partition_keys() == ["2026-01-01", "2026-01-02"]
    with partition_loading_context(at(9, 30)):
        assert partitions_of(DAY, hour_key(START), None, at(9, 30)).get_partition_keys() == ["2026-01-01"]


@pytest.mark.parametrize(
    ("zone", "start", "end"),
    [
        ("America/New_York", "2025-03-01-05:00", "2025-11-10-05:00"),
        ("Pacific/Auckland", "2024-12-31-11:00", "2025-10-10-11:00"),
        ("America/Sao_Paulo", "2017-10-01-03:00", "2018-03-01-03:00"),  # the clock skips midnight in spring
    ],
)
def test_dagster_has_the_days_of_a_time_zone_with_the_same_hours(zone: str, start: str, end: str) -> None:
    grain = days_in(zone)
    partitions = partitions_of(grain, start, end, at(9, 30))
    keys = partitions.get_partition_keys()
    hours = range(parse_hour(start), parse_hour(end))
    assert keys == list(dict.fromkeys(grain.key(hour) for hour in hours))
    for key, first in zip(keys, grain.firsts(hours), strict=True):
        window = partitions.time_window_for_partition_key(key)
        assert (hour_of(window.start), hour_of(window.end) - 1) == (first, grain.last(first))


def test_the_current_day_of_a_time_zone_is_a_partition() -> None:
    for moment, newest in ((at(4, 59), "2025-12-31"), (at(5), "2026-01-01")):
        partitions = partitions_of(days_in("America/New_York"), "2025-12-30-05:00", None, moment)
        with partition_loading_context(moment):
            assert partitions.get_last_partition_key() == newest


def test_tables_of_any_name_have_keys_of_their_own_that_dagster_takes() -> None:
    names = ("Prod.Web-Visits", "Prod.Web_Visits", "prod.web.été", "prod.web._t_", "prod.a b", "prod.a_b")
    tables = [RawTable(name, time_column="seen_at") for name in names]
    hours = partitions_of(HOUR, hour_key(START), None, at(9))
    specs = [raw_spec(table, hours) for table in tables]

    @dg.asset(deps=[spec.key for spec in specs])
    def reader() -> None: ...

    defs = dg.Definitions(assets=[*specs, reader], resources={"lake_assets_io_manager": dg.mem_io_manager})
    assert len({spec.key for spec in specs}) == len(tables)
    assert defs.resolve_asset_graph().get(reader.key).parent_keys == {spec.key for spec in specs}
    assert asset_key("raw.payments") == dg.AssetKey(["raw", "payments"])


def test_targets_of_any_name_have_pools_of_their_own_that_dagster_takes() -> None:
    names = ("Prod.Web-Visits", "prod.web.été", "prod.a b", "prod.a  c")
    pipeline = replace(CLICKS, targets=tuple(replace(click_fact, table=name) for name in names))
    found = incremental_definitions(pipeline, clock=lambda: at(9)).assets or ()
    pools = [pool for each in found if isinstance(each, dg.AssetsDefinition) for pool in each.op.pools]
    assert pools == ["Prod.Web-Visits", "prod.web.été", "prod.a_b", "prod.a_c"]


def test_dagsters_own_daemon_says_whether_a_target_is_fresh() -> None:
    """As `dagster.yaml` configures it: an hour and the delay after the newest materialization, it is not."""
    configured = yaml.safe_load((PROJECT / "dagster.yaml").read_text())
    hours = partitions_of(HOUR, hour_key(START), None, at(9))

    def state(instance: dg.DagsterInstance, target: Target) -> str:
        spec = target_spec(CLICKS, target, hours)
        defs = dg.Definitions(assets=[spec], resources={"lake_assets_io_manager": dg.mem_io_manager})
        node = defs.resolve_asset_graph().get(spec.key)
        asyncio.run(FreshnessDaemon()._evaluate_asset(LoadingContextForTest(instance), node))
        found = instance.get_freshness_state_records([spec.key])
        return found[spec.key].freshness_state.value

    with dg.instance_for_test(overrides={"freshness": configured["freshness"]}) as instance:
        assert "FRESHNESS_DAEMON" in instance.get_required_daemon_types()
        late = replace(click_fact, max_delay=timedelta(minutes=30))
        assert state(instance, late) == "UNKNOWN"
        instance.report_runless_asset_event(dg.AssetMaterialization(asset_key(late.table), partition=hour_key(START)))
        assert state(instance, late) == "PASS"
        for minutes, expected in ((80, "PASS"), (100, "FAIL")):
            with freeze_time(datetime.now(UTC) + timedelta(minutes=minutes)):
                assert state(instance, late) == expected
        assert state(instance, click_fact) == "NOT_APPLICABLE"
    assert target_spec(CLICKS, late, hours).freshness_policy == dg.FreshnessPolicy.time_window(timedelta(minutes=90))
