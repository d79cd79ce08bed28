"""Backfills: which partitions they ask for downstream, and how they end if some of these cannot be built yet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.execution.asset_backfill import AssetBackfillData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from lake_assets.base.hours import days_in, hour_key
from lake_assets.connections.dagster import use_time_zones
from lake_assets.incremental.dagster.assets import incremental_definitions
from lake_assets.incremental.dagster.lake_resource import LAKE
from lake_assets.incremental.dagster.session_step import leave_out
from lake_assets.incremental.declaration import Pipeline, SessionContext, Source, Stateful, incremental_asset
from lake_assets.incremental.engine.engine import Engine
from lake_assets_tests.incremental.clicks import CLICKS, START, at, click_fact, click_state, land_clicks
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon, in_process_daemon

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

FACT, STATE, DAILY, LOCAL = "core.click_fact", "core.click_state", "core.clicks_daily", "core.clicks_local"
END = hour_key(START + 60)


@incremental_asset(
    mode=Stateful(load="changed"),
    sources=[Source(FACT, time_column="clicked_at")],
    grain="day",
    key="click_day",
    time_column="click_day",
    columns={"click_day": "timestamptz", "clicks": "long"},
)
def clicks_daily(session: SessionContext, clicks: DataFrame) -> DataFrame:
    """Clicks of each day."""
    days = session.within(clicks, "clicked_at").selectExpr("date_trunc('day', clicked_at) AS click_day")
    return days.groupBy("click_day").count().withColumnRenamed("count", "clicks")


clicks_local = replace(clicks_daily, table=LOCAL, grain=days_in("America/New_York"))
DAYS = replace(CLICKS, targets=(click_fact, click_state, clicks_daily))
ZONES = replace(CLICKS, targets=(click_fact, clicks_local), start="2026-03-06-00:00")


def key(table: str) -> dg.AssetKey:
    return dg.AssetKey(table.split("."))


def asked(pipeline: Pipeline, table: str, partitions: Sequence[str], end: str = END) -> dict[str, list[str]]:
    """What a backfill of some partitions of a table, with all targets that read it, asks for."""
    resources = {LAKE: dg.ResourceDefinition.none_resource()}
    definitions = incremental_definitions(pipeline, clock=lambda: at(9), end=end)
    graph = dg.Definitions.merge(definitions, dg.Definitions(resources=resources)).resolve_asset_graph()
    return _targeted(_data(graph, [target.table for target in pipeline.targets], partitions))


def _data(graph: dg.AssetGraph, tables: Sequence[str], partitions: Sequence[str]) -> AssetBackfillData:
    with dg.DagsterInstance.ephemeral() as instance:
        keys = [key(table) for table in tables]
        return AssetBackfillData.from_asset_partitions(
            graph, partitions, keys, instance, at(9).timestamp(), all_partitions=False
        )


def _targeted(data: AssetBackfillData) -> dict[str, list[str]]:
    subsets = data.target_subset.partitions_subsets_by_asset_key
    with partition_loading_context(at(9)):
        found = {".".join(each.path): sorted(subset.get_partition_keys()) for each, subset in subsets.items()}
    return {table: keys for table, keys in found.items() if keys}


def test_a_backfill_asks_for_the_same_hour_and_for_the_day_that_has_it() -> None:
    last, first = hour_key(START + 23), hour_key(START + 24)
    assert asked(DAYS, FACT, [last]) == {FACT: [last], STATE: [last], DAILY: ["2026-01-01"]}
    assert asked(DAYS, FACT, [last, first]) == {
        FACT: [last, first],
        STATE: [last, first],  # the engine rebuilds the hours that follow
        DAILY: ["2026-01-01", "2026-01-02"],
    }


def test_the_first_and_the_last_day_may_reach_beyond_the_hours_that_exist() -> None:
    late_start = replace(DAYS, start=hour_key(START + 5))
    assert asked(late_start, FACT, [hour_key(START + 5)], hour_key(START + 30))[DAILY] == ["2026-01-01"]
    assert asked(late_start, FACT, [hour_key(START + 29)], hour_key(START + 30))[DAILY] == ["2026-01-02"]


@pytest.fixture
def time_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster as the services of `lake up` change it."""
    for name in ("_map_partitions", "validate_partition_mapping"):
        known = getattr(dg.TimeWindowPartitionMapping, name)
        monkeypatch.setattr(dg.TimeWindowPartitionMapping, name, known)
    use_time_zones()


@pytest.mark.usefixtures("time_zones")
@pytest.mark.parametrize(
    ("hours", "days"),
    [
        (["2026-03-08-04:00"], ["2026-03-07"]),  # 23:00 of the day before, in winter time
        (["2026-03-08-05:00"], ["2026-03-08"]),
        (["2026-03-09-03:00"], ["2026-03-08"]),  # the last hour of a day of 23
        (["2026-03-09-04:00"], ["2026-03-09"]),
        (["2026-11-02-04:00"], ["2026-11-01"]),  # the last hour of a day of 25
        (["2026-11-02-05:00"], ["2026-11-02"]),
        (["2026-03-08-04:00", "2026-03-09-04:00"], ["2026-03-07", "2026-03-09"]),
    ],
)
def test_a_backfill_of_hours_asks_for_the_local_days_that_have_them(hours: list[str], days: list[str]) -> None:
    assert asked(ZONES, FACT, hours, "2026-12-01-00:00") == {FACT: hours, LOCAL: days}


def test_dagster_by_itself_cannot_tell_local_days_and_asks_for_all() -> None:
    assert len(asked(ZONES, FACT, ["2026-03-08-05:00"], "2026-03-20-00:00")[LOCAL]) == 15


@pytest.fixture
def daemon(catalog: Catalog, spark: SparkSession) -> Iterator[InProcessDaemon]:
    Engine(catalog, DAYS, clock=lambda: at(9)).create_tables()
    with in_process_daemon(DAYS, catalog, lambda: at(9), end=END, spark=spark) as daemon:
        yield daemon


class Backfill:
    """A backfill as the daemon stores it, with the runs of a test."""

    def __init__(self, daemon: InProcessDaemon, tables: Sequence[str], partitions: Sequence[str]) -> None:
        self.daemon = daemon
        data = _data(daemon.repository.asset_graph, tables, partitions)
        data = data._replace(requested_runs_for_target_roots=True, requested_subset=data.target_subset)
        stored = PartitionBackfill(
            backfill_id="open",
            status=BulkActionStatus.REQUESTED,
            from_failure=False,
            tags={},
            backfill_timestamp=at(9).timestamp(),
            asset_selection=[key(table) for table in tables],
            asset_backfill_data=data,
        )
        daemon.instance.add_backfill(stored)

    def run(self, *tables: str, first: str, last: str) -> tuple[bool, list[str | None]]:
        """A run of the backfill: whether it succeeded, and the partitions that it marked."""
        tags = {
            "dagster/backfill": "open",
            "dagster/asset_partition_range_start": first,
            "dagster/asset_partition_range_end": last,
        }
        result = self.daemon.execute(*tables, tags=tags)
        return result.success, [event.partition for event in result.get_asset_materialization_events()]

    def data(self) -> AssetBackfillData:
        stored = self.daemon.instance.get_backfill("open")
        assert stored is not None
        assert stored.asset_backfill_data is not None
        return stored.asset_backfill_data

    def without_partitions(self) -> set[str]:
        """The assets without partitions that the daemon still has to request."""
        return {".".join(each.path) for each in self.data().target_subset.non_partitioned_asset_keys}

    def left(self, materialized: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
        """What the daemon still waits for, or has to request."""
        targeted = _targeted(self.data())
        found = {table: sorted({*keys}.difference(materialized.get(table, ()))) for table, keys in targeted.items()}
        return {table: keys for table, keys in found.items() if keys}


@pytest.mark.slow
def test_a_backfill_over_the_open_day_succeeds_without_it(daemon: InProcessDaemon, catalog: Catalog) -> None:
    land_clicks(catalog, [22, 23, 25], landing=25)
    hours = [hour_key(START + hour) for hour in (23, 24, 25, 26)]
    backfill = Backfill(daemon, [FACT, DAILY], hours)
    daemon.catch_up("click_fact")

    succeeded, marked = backfill.run(FACT, first=hours[0], last=hours[-1])
    assert (succeeded, marked) == (
        True,
        hours[:3],
    )  # the third hour is empty and complete; the last one is not complete
    assert backfill.left({FACT: hours[:3]}) == {DAILY: ["2026-01-01", "2026-01-02"]}

    succeeded, marked = backfill.run(DAILY, first="2026-01-01", last="2026-01-02")
    assert (succeeded, marked) == (True, ["2026-01-01"])
    assert backfill.left({FACT: hours[:3], DAILY: ["2026-01-01"]}) == {}


def test_what_reads_hours_that_cannot_be_built_leaves_the_backfill_with_them(catalog: Catalog) -> None:
    hours = [hour_key(START + hour) for hour in (30, 31)]
    with in_process_daemon(DAYS, catalog, lambda: at(9), end=END) as daemon:
        backfill = Backfill(daemon, [STATE, FACT, DAILY], hours)
        graph = daemon.repository.asset_graph
        leave_out(daemon.instance, "open", key(FACT), [*hours[:1], "2020-01-01-00:00"], graph=graph, in_run=[key(FACT)])
        assert backfill.left({}) == {FACT: hours[1:], STATE: hours[1:]}
        leave_out(daemon.instance, "open", key(FACT), hours, graph=graph, in_run=[key(FACT)])
        assert backfill.left({}) == {}


HOURLY = dg.HourlyPartitionsDefinition("2026-01-01-00:00", end_offset=51)


@dg.asset(deps=[key(FACT)], partitions_def=HOURLY)
def exported() -> None: ...


@dg.asset(deps=[exported], partitions_def=HOURLY, backfill_policy=dg.BackfillPolicy.single_run())
def exported_again() -> None: ...


@dg.asset(deps=[key(FACT)], partitions_def=dg.DailyPartitionsDefinition("2026-01-01", end_offset=3))
def exported_daily() -> None: ...


@dg.asset(deps=[key(FACT)])
def reported() -> None: ...


@dg.asset(
    deps=[dg.AssetDep(key(FACT), partition_mapping=dg.AllPartitionMapping())],
    partitions_def=dg.StaticPartitionsDefinition(["red", "blue"]),
)
def reported_of_org() -> None: ...


OWN = (exported, exported_again, exported_daily, reported, reported_of_org)


def test_assets_of_somebody_else_are_not_asked_for_hours_that_cannot_be_built(catalog: Catalog) -> None:
    hours = [hour_key(START + hour) for hour in (23, 24, 25)]
    names = [each.key.path[-1] for each in OWN]
    with in_process_daemon(DAYS, catalog, lambda: at(9), end=END) as daemon:
        own = dg.Definitions(assets=OWN, resources={LAKE: dg.ResourceDefinition.none_resource()})
        tables = incremental_definitions(DAYS, clock=lambda: at(9), end=END)
        repository = dg.Definitions.merge(tables, own).get_repository_def()
        backfill = Backfill(replace(daemon, repository=repository), [FACT, *names], hours)
        graph, in_run = repository.asset_graph, [key(FACT)]
        assert backfill.left({})["exported_daily"] == ["2026-01-01", "2026-01-02"]

        leave_out(daemon.instance, "open", key(FACT), hours[2:], graph=graph, in_run=in_run)
        assert backfill.left({}) == {
            FACT: hours[:2],
            "exported": hours[:2],
            "exported_again": hours[:2],
            "exported_daily": ["2026-01-01"],  # the other day has an hour that is not built
            "reported_of_org": ["blue", "red"],  # it reads whatever is built
        }
        assert backfill.without_partitions() == {"reported"}

        leave_out(daemon.instance, "open", key(FACT), hours, graph=graph, in_run=in_run)
        assert (backfill.left({}), backfill.without_partitions()) == ({}, set())


@pytest.mark.slow
def test_what_was_skipped_in_a_run_that_left_hours_out_is_requested_again(
    daemon: InProcessDaemon, catalog: Catalog
) -> None:
    land_clicks(catalog, [0, 1], landing=1)
    daemon.catch_up("click_fact")
    hours = [hour_key(START + hour) for hour in (0, 1, 2)]
    backfill = Backfill(daemon, [FACT, STATE], hours)
    assert backfill.run(FACT, STATE, first=hours[0], last=hours[2]) == (True, hours[:2])
    requested = backfill.data().requested_subset.partitions_subsets_by_asset_key
    assert requested.keys() == {key(FACT)}
    assert backfill.left({FACT: hours[:2]}) == {STATE: hours[:2]}
    assert backfill.run(STATE, first=hours[0], last=hours[1]) == (True, hours[:2])
    assert backfill.left({FACT: hours[:2], STATE: hours[:2]}) == {}
