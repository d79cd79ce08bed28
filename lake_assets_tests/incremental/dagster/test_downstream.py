"""What others have downstream of a fact starts once for what changed: assets, sensors and jobs (docs/downstream.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from lake_assets import LakeIOManager, Pipeline, RawTable
from lake_assets.base.hours import hour_key
from lake_assets.incremental.dagster.assets import incremental_definitions
from lake_assets.incremental.dagster.lake_resource import LAKE
from lake_assets.incremental.engine.engine import Engine
from lake_assets_tests.doors.hostile.equality_deletes import delete_by_values
from lake_assets_tests.incremental.clicks import CLICKS, START, at, click_fact, land_clicks, write_clicks
from lake_assets_tests.incremental.clicks import __name__ as CLICKS_MODULE
from lake_assets_tests.incremental.committing import commit
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon, in_process_daemon

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

CLICKS_NAME = f"{CLICKS_MODULE}:CLICKS"
FACT = dg.AssetKey(["core", "click_fact"])
END = hour_key(START + 24)
HOURS = dg.HourlyPartitionsDefinition("2026-01-01-00:00", end_offset=1)
ORGS = dg.StaticPartitionsDefinition(["red", "blue"])
NEW_ORGS = dg.DynamicPartitionsDefinition(name="orgs")
ALL = dg.AssetDep(FACT, partition_mapping=dg.AllPartitionMapping())

EACH_CHANGED = dg.AutomationCondition.eager().without(dg.AutomationCondition.in_latest_time_window())
ALTHOUGH_INCOMPLETE = dg.AutomationCondition.eager().without(~dg.AutomationCondition.any_deps_missing())


@dg.asset(deps=[FACT], partitions_def=HOURS, automation_condition=EACH_CHANGED)
def exported() -> None: ...


@dg.asset(deps=[FACT], partitions_def=HOURS, automation_condition=dg.AutomationCondition.eager())
def newest() -> None: ...


@dg.asset(deps=[ALL], partitions_def=ORGS, automation_condition=ALTHOUGH_INCOMPLETE)
def of_org() -> None: ...


@dg.asset(deps=[ALL], partitions_def=NEW_ORGS, automation_condition=ALTHOUGH_INCOMPLETE)
def of_new_org() -> None: ...


@dg.asset(deps=[FACT], automation_condition=ALTHOUGH_INCOMPLETE)
def report() -> None: ...


OWN = (exported, newest, of_org, of_new_org, report)
export_job = dg.define_asset_job("export_job", [exported])
report_job = dg.define_asset_job("report_job", [report])


@dg.asset_sensor(asset_key=FACT, job=report_job)
def any_change(context: dg.SensorEvaluationContext, event: dg.EventLogEntry) -> dg.RunRequest:
    return dg.RunRequest(context.cursor)


@dg.sensor(job=export_job)
def changed_hours(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    changed = dg.AssetRecordsFilter(FACT, after_storage_id=int(context.cursor or 0))
    found = context.instance.fetch_materializations(changed, limit=500, ascending=True).records
    last = {record.partition_key: record.storage_id for record in found if record.partition_key}
    requests = [dg.RunRequest(f"{key}:{number}", partition_key=key) for key, number in last.items()]
    return dg.SensorResult(requests, cursor=str(found[-1].storage_id) if found else None)


class Downstream:
    """The assets of somebody else in a location with the tables, evaluated after each change."""

    def __init__(self, daemon: InProcessDaemon) -> None:
        self.daemon = daemon
        self.definitions = dg.Definitions.merge(
            incremental_definitions(CLICKS, clock=lambda: at(9), end=END),
            dg.Definitions(
                assets=OWN,
                jobs=[export_job, report_job],
                sensors=[any_change, changed_hours],
                resources={LAKE: dg.ResourceDefinition.none_resource()},
            ),
        )
        self.cursors: dict[str, str | None] = {}
        self.minute = 0
        self.cursor: dg.AssetDaemonCursor | None = None
        self.daemon.instance.add_dynamic_partitions("orgs", ["green"])

    def started(self) -> dict[str, list[str | None]]:
        """What one evaluation of the conditions starts, which then runs."""
        self.minute += 1
        found = dg.evaluate_automation_conditions(
            self.definitions, self.daemon.instance, cursor=self.cursor, evaluation_time=at(9, self.minute)
        )
        self.cursor = found.cursor
        requested = {each.key: sorted(found.get_requested_partitions(each.key), key=str) for each in OWN}
        for key, partitions in requested.items():
            for partition in partitions:
                self.daemon.instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=partition))
        return {key.to_user_string(): [*partitions] for key, partitions in requested.items() if partitions}

    def sensed(self, sensor: dg.SensorDefinition) -> list[str | None]:
        """The partitions that one tick of a sensor requests."""
        repository = self.definitions.get_repository_def()
        context = dg.build_sensor_context(
            self.daemon.instance, self.cursors.get(sensor.name), repository_def=repository, sensor_name=sensor.name
        )
        tick = sensor.evaluate_tick(context)
        self.cursors[sensor.name] = tick.cursor
        return [request.partition_key for request in tick.run_requests or ()]


@pytest.fixture
def daemon(catalog: Catalog) -> Iterator[InProcessDaemon]:
    Engine(catalog, CLICKS, clock=lambda: at(9)).create_tables()
    with in_process_daemon(CLICKS, catalog, lambda: at(9), end=END) as daemon:
        yield daemon


def in_a_terminal(daemon: InProcessDaemon, catalog: Catalog, hours: Sequence[int], *, landing: int) -> None:
    """A session of the fact outside of Dagster, and the tick of the sensor that reports it."""
    land_clicks(catalog, hours, landing=landing)
    commit(Engine(catalog, CLICKS, clock=lambda: at(9)), click_fact)
    daemon.tick("click_fact_sensor")


def keys(*hours: int) -> list[str]:
    return [hour_key(START + hour) for hour in hours]


def test_each_asset_starts_for_what_changed_once(daemon: InProcessDaemon, catalog: Catalog) -> None:
    own = Downstream(daemon)
    assert own.started() == {}
    others = {"of_org": ["blue", "red"], "of_new_org": ["green"], "report": [None]}

    in_a_terminal(daemon, catalog, [0, 1, 3], landing=3)
    assert own.started() == {"exported": keys(0, 1, 2, 3), **others}  # hour 2 is complete and empty
    assert own.started() == {}

    in_a_terminal(daemon, catalog, [2], landing=8)  # a late row
    assert own.started() == {"exported": keys(2, 4, 5, 6, 7, 8), **others}
    assert own.started() == {}

    in_a_terminal(daemon, catalog, [1, 9], landing=9)
    assert own.started() == {"exported": keys(1, 9), "newest": keys(9), **others}
    assert own.started() == {}


def test_sensors_start_for_what_changed_once(daemon: InProcessDaemon, catalog: Catalog) -> None:
    own = Downstream(daemon)
    assert (own.sensed(any_change), own.sensed(changed_hours)) == ([], [])
    in_a_terminal(daemon, catalog, [0, 1], landing=1)
    assert (own.sensed(any_change), own.sensed(changed_hours)) == ([None], keys(0, 1))
    assert (own.sensed(any_change), own.sensed(changed_hours)) == ([], [])
    in_a_terminal(daemon, catalog, [0], landing=1)
    assert (own.sensed(any_change), own.sensed(changed_hours)) == ([None], keys(0))
    assert (own.sensed(any_change), own.sensed(changed_hours)) == ([], [])


@pytest.mark.slow
def test_hours_that_came_out_equal_start_nothing(
    daemon: InProcessDaemon, catalog: Catalog, spark: SparkSession
) -> None:
    engine = Engine(catalog, CLICKS, clock=lambda: at(9), spark=lambda: spark)
    land_clicks(catalog, [0, 1], landing=1)
    own = Downstream(daemon)
    assert own.started() == {}
    engine.run(click_fact)
    daemon.tick("click_fact_sensor")
    assert own.started()["exported"] == keys(0, 1)
    own.sensed(any_change), own.sensed(changed_hours)

    engine.rebuild(click_fact, [START, START + 1])
    daemon.tick("click_fact_sensor")
    assert own.started() == {}
    assert (own.sensed(any_change), own.sensed(changed_hours)) == ([], [])


# Rows of facts as inputs

IN = {"rows": dg.AssetIn(FACT)}
DAYS = dg.DailyPartitionsDefinition("2026-01-01", end_offset=1)
ONE_RUN = dg.BackfillPolicy.single_run()
loaded: dict[str, Any] = {}


@dg.asset(ins=IN, partitions_def=HOURS, backfill_policy=ONE_RUN)
def frame(rows: pd.DataFrame) -> None:
    loaded["frame"] = rows


@dg.asset(ins=IN, partitions_def=DAYS)
def of_day(rows: pa.Table) -> None:
    loaded["of_day"] = rows


@dg.asset(ins={"rows": dg.AssetIn(FACT, metadata={"columns": ["click_id"]})})
def all_rows(rows: pa.Table) -> None:
    loaded["all_rows"] = rows


@dg.asset(ins={"rows": dg.AssetIn(FACT, partition_mapping=dg.AllPartitionMapping())}, partitions_def=ORGS)
def all_of_org(rows) -> None:  # type: ignore[no-untyped-def]  # without an annotation
    loaded["all_of_org"] = rows


@dg.asset(ins={"rows": dg.AssetIn(FACT, partition_mapping=dg.LastPartitionMapping())})
def last_hour(rows: pd.DataFrame) -> None:
    loaded["last_hour"] = rows


@dg.asset(ins={"rows": dg.AssetIn(["raw", "clicks"])}, partitions_def=HOURS)
def landed(rows: pd.DataFrame) -> None:
    loaded["landed"] = rows


@dg.asset(ins=IN, partitions_def=HOURS, backfill_policy=ONE_RUN)
def in_spark(rows: DataFrame) -> None:
    loaded["in_spark"] = [row.click_id for row in rows.orderBy("clicked_at").collect()]


@dg.asset(ins=IN)
def as_list(rows: list[str]) -> None: ...


READERS = (frame, of_day, all_rows, all_of_org, last_hour, landed, in_spark, as_list)


class Reading:
    """Runs of assets of somebody else that take tables as inputs."""

    def __init__(self, daemon: InProcessDaemon, *assets: dg.AssetsDefinition, pipeline: Pipeline = CLICKS) -> None:
        self.daemon = daemon
        resources: dict[str, Any] = daemon.resources
        self.definitions = dg.Definitions.merge(
            incremental_definitions(pipeline, clock=lambda: at(9), end=END),
            dg.Definitions(assets=assets or READERS, resources=resources),
        )

    def __call__(self, *assets: dg.AssetsDefinition | dg.AssetKey, partitions: Sequence[str] = ()) -> Any:
        """What the last asset got in a run of a partition, of a range of partitions, or of none; or the error."""
        keys = [each if isinstance(each, dg.AssetKey) else each.key for each in assets]
        job = self.definitions.resolve_implicit_job_def_def_for_assets(keys)
        assert job is not None
        names = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
        result = job.execute_in_process(
            asset_selection=keys,
            partition_key=partitions[0] if len(partitions) == 1 else None,
            tags=dict(zip(names, partitions, strict=True)) if len(partitions) > 1 else None,
            instance=self.daemon.instance,
            raise_on_error=False,
        )
        failures = [event for event in result.all_events if event.is_step_failure]
        if failures:
            error = failures[-1].step_failure_data.error
            while error is not None and error.cause is not None:
                error = error.cause
            return error.message.strip().partition(": ")[2] if error else ""
        return loaded.pop(keys[-1].path[-1])


def test_an_input_has_the_rows_of_its_partitions(daemon: InProcessDaemon, catalog: Catalog) -> None:
    in_a_terminal(daemon, catalog, [0, 1, 3], landing=3)
    write_clicks(catalog, [0, 1, 3])
    read = Reading(daemon)

    assert list(read(frame, partitions=keys(1)).click_id) == ["c1"]
    assert sorted(read(frame, partitions=keys(0, 3)).click_id) == ["c0", "c1", "c3"]
    empty = read(frame, partitions=keys(2))
    assert (list(empty), len(empty)) == (["click_id", "clicked_at"], 0)
    assert str(empty.clicked_at.dtype) == "datetime64[us, UTC]"
    assert read(all_rows).to_pydict().keys() == {"click_id"}
    assert sorted(read(all_rows)["click_id"].to_pylist()) == ["c0", "c1", "c3"]
    assert isinstance(found := read(all_of_org, partitions=["red"]), pd.DataFrame)
    assert len(found) == 3
    assert sorted(read(landed, partitions=keys(3)).click_id) == ["c3-0", "c3-1", "c3-3"]
    assert read(landed, partitions=keys(2)).empty

    unbuilt = "core.click_fact is not built yet for {}.\n  → `lake plan click_fact` says what it waits for;"
    assert read(frame, partitions=keys(4)).startswith(unbuilt.format(*keys(4)))
    assert read(of_day, partitions=["2026-01-01"]).startswith(unbuilt.format("..".join(keys(4, 23))))
    assert read(last_hour).startswith(unbuilt.format(*keys(23)))
    assert read(as_list).startswith("The input 'rows' is annotated with")
    in_a_terminal(daemon, catalog, range(4, 24), landing=23)
    write_clicks(catalog, [23])
    assert len(read(of_day, partitions=["2026-01-01"])) == 4
    assert list(read(last_hour).click_id) == ["c23"]


@dg.asset(ins={"rows": dg.AssetIn(["other", "visits"])})
def visits(rows: pd.DataFrame) -> None:
    loaded["visits"] = rows


def test_an_input_whose_rows_others_delete_by_values_is_refused(daemon: InProcessDaemon, catalog: Catalog) -> None:
    schema = pa.schema({"visit_id": pa.string(), "at": pa.timestamp("us", "UTC")})
    catalog.create_namespace("other")
    table = catalog.create_table("other.visits", schema)
    table.append(pa.Table.from_pylist([{"visit_id": name, "at": at(1)} for name in ("v1", "v2")], schema=schema))
    raw = RawTable("other.visits", time_column="at")
    read = Reading(daemon, visits, pipeline=Pipeline(raw=(raw,), targets=(), start="2026-01-01-00:00"))
    assert sorted(read(visits).visit_id) == ["v1", "v2"]
    delete_by_values(catalog.load_table("other.visits"), "visit_id", ["v1"])
    assert read(visits).startswith("Rows of other.visits are deleted by their values")


def test_another_code_location_reads_the_lake_that_it_names(
    catalog: Catalog, bare_home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Engine(catalog, CLICKS, clock=lambda: at(9)).create_tables()
    land_clicks(catalog, [0, 1], landing=1)
    commit(Engine(catalog, CLICKS, clock=lambda: at(9)), click_fact)
    write_clicks(catalog, [0, 1])
    (bare_home.home / "lake.env").write_text(f"LAKE_PIPELINES={CLICKS_NAME}\n")
    monkeypatch.setenv("SHOP_LAKE", str(bare_home.home))
    elsewhere = dg.AssetSpec(FACT, partitions_def=HOURS).with_io_manager_key("lake")
    resources = {"lake": LakeIOManager(home=dg.EnvVar("SHOP_LAKE")), "io_manager": dg.mem_io_manager}
    assert dg.materialize([frame, elsewhere], partition_key=keys(1)[0], resources=resources).success
    assert list(loaded.pop("frame").click_id) == ["c1"]


@pytest.mark.slow
def test_an_input_in_spark_also_in_the_run_that_builds_it(catalog: Catalog, spark: SparkSession) -> None:
    Engine(catalog, CLICKS, clock=lambda: at(9)).create_tables()
    land_clicks(catalog, [0, 1, 2], landing=3)
    with in_process_daemon(CLICKS, catalog, lambda: at(9), end=END, spark=spark) as daemon:
        read = Reading(daemon)
        assert read(FACT, in_spark, partitions=keys(0, 1)) == ["c3-0", "c3-1"]
        assert read(in_spark, partitions=keys(1)) == ["c3-1"]
