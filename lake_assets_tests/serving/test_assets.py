"""Pushes through Dagster: an asset with checks, what its sensor requests, and the job that takes a push back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData
from deltalake import write_deltalake

from lake_assets.base.hours import DAY, hour_key, hour_start, parse_hour
from lake_assets.errors import ConfigurationError, UsageError
from lake_assets.incremental.dagster.lake_resource import LAKE
from lake_assets.incremental.dagster.session_runs import RETRY_AFTER_SECONDS
from lake_assets.incremental.declaration import (
    Pipeline,
    Sequential,
    Served,
    SessionContext,
    Stateless,
    incremental_asset,
)
from lake_assets.incremental.declaration import Source as DeclaredSource
from lake_assets.incremental.engine import iceberg
from lake_assets.membership import PIPELINE
from lake_assets.serving.dagster import revert_push, serving_asset, serving_definitions
from lake_assets.serving.push import PushReport
from lake_assets.serving.query import query
from lake_assets.serving.served_tables import Serving, serving_at
from lake_assets.serving.sources import (
    NewestHour,
    PushGroup,
    Source,
    WholeIceberg,
    metrics_sources,
    pipeline_sources,
    push_groups,
)
from lake_assets.serving.store import table_status
from lake_assets_tests.membership.in_memory import ARROW
from lake_assets_tests.object_store import on_s3
from lake_assets_tests.serving.scenario import now

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.settings import Settings


FIRST = parse_hour("2026-01-01-00:00")
DIM = "core.account_state_dim"
ACCOUNT_STATE = NewestHour("account_state", DIM, "state_hour")


@dataclass
class Lake:
    """The dimension, written without Spark, and what is served of it."""

    catalog: Catalog
    home: Settings
    hosts: str

    def publish(self, hour: int, states: Sequence[str], *, complete: int) -> None:
        """Adds an hour of accounts, and moves complete-through."""
        target = PIPELINE.target(DIM)
        iceberg.create_target(self.catalog, target)
        schema = pa.schema([(name, ARROW[kind]) for name, kind in target.columns.items()])
        at = hour_start(FIRST + hour)
        rows = [
            {"state_hour": at, "account_id": f"a{n}", "state": state, "last_event_ts": at - timedelta(hours=1)}
            for n, state in enumerate(states)
        ]
        table = iceberg.load(self.catalog, DIM)
        table.append(pa.Table.from_pylist(rows, schema=schema))
        self.complete(complete)

    def complete(self, hour: int) -> None:
        """Moves complete-through alone, as a session does that found no row."""
        with iceberg.load(self.catalog, DIM).transaction() as transaction:
            transaction.set_properties({iceberg.COMPLETE_THROUGH: hour_key(FIRST + hour)})

    @property
    def resources(self) -> dict[str, Any]:
        handed = {
            LAKE: SimpleNamespace(catalog=lambda: self.catalog),
            "lake_assets_serving": SimpleNamespace(tables=self.open),
        }
        return {name: dg.ResourceDefinition.hardcoded_resource(value) for name, value in handed.items()}

    def open(self) -> Any:
        return serving_at(self.hosts, self.home, clock=now)

    def push(self, source: Source = ACCOUNT_STATE) -> dict[str, Any]:
        """The metadata of a run of a source's asset, whose checks have passed."""
        return self.push_group(PushGroup(source.name, (source,)))[source.name]

    def push_group(self, group: PushGroup) -> dict[str, dict[str, Any]]:
        """The same for each table of a group, which one step pushes."""
        asset = serving_asset(group, now)
        result = dg.materialize([asset], resources=self.resources)
        assert [(c.asset_key.path[-1], c.check_name, c.passed) for c in result.get_asset_check_evaluations()] == [
            (source.name, name, True) for source in group.sources for name in ("row_count", "served_checksum")
        ]
        return {
            event.asset_key.path[-1]: {name: value.value for name, value in event.metadata.items()}
            for event in result.asset_materializations_for_node(asset.op.name)
        }

    def revert(self, config: dict[str, Any]) -> dg.ExecuteInProcessResult:
        return revert_push.execute_in_process(
            {"ops": {"revert_entry": {"config": config}}}, resources=self.resources, raise_on_error=False
        )

    def asked(self, sql: str) -> list[tuple[Any, ...]]:
        with self.open() as serving:
            found: Serving = serving
            return query(found.broker, sql, found.limits).rows

    def served(self) -> list[tuple[Any, ...]]:
        return self.asked("select account_id, state from account_state order by account_id")


@pytest.fixture
def lake(catalog: Catalog, bare_home: Settings, zookeeper: str) -> Lake:
    return Lake(catalog, bare_home, zookeeper)


def test_the_newest_complete_hour_is_pushed_and_taken_back(lake: Lake) -> None:
    lake.publish(0, ["Active", "Active"], complete=0)
    first = lake.push()
    assert (first["rows"], first["segments"], first["of"]) == (2, 1, "2026-01-01-00:00")
    assert first["to go back"].startswith("There is no earlier snapshot to go back to")
    lake.publish(1, ["Active", "Canceled", "Active"], complete=1)
    lake.publish(2, ["Active"], complete=1)
    second = lake.push()
    assert (second["rows"], second["of"]) == (3, "2026-01-01-01:00")
    assert second["lineage"].count("COMPLETED") == 1
    assert second["lineage id"] in second["to go back"]
    assert lake.served() == [("a0", "Active"), ("a1", "Canceled"), ("a2", "Active")]
    with lake.open() as serving:
        assert table_status(serving.registry, "account_state").head == ACCOUNT_STATE.head(lake.catalog)

    config = {"table": "account_state", "entry_id": second["lineage id"]}
    assert lake.revert(config).success
    assert lake.served() == [("a0", "Active"), ("a1", "Active")]
    again = lake.revert(config)
    assert "was reverted" in str(again.get_step_failure_events()[0].event_specific_data)


def test_the_metrics_of_a_lake_are_pushed_whole_from_their_delta_table(lake: Lake, tmp_path: Path) -> None:
    (source,) = metrics_sources({"mail": str(tmp_path / "metrics")})
    assert source.head(lake.catalog) is None
    with pytest.raises(UsageError, match="engagement_metrics does not exist"):
        source.read(lake.catalog)
    for org, sent in [("acme", 1), ("globex", 2)]:
        rows = pa.table({"org_id": [org], "sent": pa.array([sent], pa.int64())})
        write_deltalake(tmp_path / "metrics", rows, mode="append", partition_by=["org_id"])
    pushed = lake.push(source)
    assert (pushed["rows"], pushed["of"], source.head(lake.catalog)) == (2, "version 1", "1")
    assert source.read(lake.catalog).head == "1"
    assert lake.asked("select org_id, sent from mail_metrics order by sent") == [("acme", 1), ("globex", 2)]


def test_a_group_is_pushed_in_one_switch_and_taken_back_in_one(lake: Lake, tmp_path: Path) -> None:
    (mail,) = metrics_sources({"mail": str(tmp_path / "metrics")})
    (group,) = push_groups([ACCOUNT_STATE, mail], {"members": ["account_state", "mail_metrics"]})
    lake.publish(0, ["Active"], complete=0)
    assert group.head(lake.catalog) is None
    write_deltalake(tmp_path / "metrics", pa.table({"sent": [1]}))
    first = group.head(lake.catalog)
    lake.push_group(group)
    lake.publish(1, ["Canceled"], complete=1)
    write_deltalake(tmp_path / "metrics", pa.table({"sent": [2]}), mode="overwrite")
    assert group.head(lake.catalog) != first
    pushed = lake.push_group(group)
    members, metrics = pushed["account_state"], pushed["mail_metrics"]
    assert (members["switched with"], metrics["switched with"]) == ("mail_metrics", "account_state")
    assert members["to go back"] == (
        f"lake serving revert account_state {members['lineage id']} --with mail_metrics={metrics['lineage id']}"
    )
    both = "select state, sent from account_state, mail_metrics"
    assert lake.asked(both) == [("Canceled", 2)]
    others = {"mail_metrics": metrics["lineage id"]}
    assert lake.revert({"table": "account_state", "entry_id": members["lineage id"], "others": others}).success
    assert lake.asked(both) == [("Active", 1)]


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"mem bers": ["account_state"]}, "'mem bers' does not have a valid name"),
        ({"account_state": ["mail_metrics"]}, "'account_state' does not have a valid name"),
        ({"members": []}, "'members' has no table"),
        ({"members": ["accounts"]}, "'members' names 'accounts', which is not served"),
        ({"members": ["mail_metrics"], "other": ["mail_metrics"]}, "names mail_metrics, which is named twice"),
    ],
)
def test_groups_that_cannot_be_are_refused(declared: dict[str, list[str]], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        push_groups([ACCOUNT_STATE, *metrics_sources({"mail": "nowhere"})], declared)


def test_a_group_is_one_asset_in_one_pool_and_the_others_stay_alone() -> None:
    sources = [ACCOUNT_STATE, *metrics_sources({"mail": "nowhere", "sms": "nowhere"})]
    defs = serving_definitions(sources, clock=now, groups={"members": ["account_state", "sms_metrics"]})
    found = {}
    for assets in defs.assets or ():
        assert isinstance(assets, dg.AssetsDefinition)
        found[assets.op.name] = ({key.path[-1] for key in assets.keys}, assets.op.pool)
    assert found == {
        "serving__members": ({"account_state", "sms_metrics"}, "serving.members"),
        "serving__mail_metrics": ({"mail_metrics"}, "serving.mail_metrics"),
    }


@dataclass
class Sensor:
    """The sensor of pushes, on an instance that keeps runs."""

    lake: Lake
    sources: Sequence[Source]
    instance: dg.DagsterInstance
    later: timedelta = timedelta(0)

    def tick(self) -> SensorExecutionData:
        defs = serving_definitions(self.sources, clock=lambda: now() + self.later)
        merged = dg.Definitions.merge(defs, dg.Definitions(resources=self.lake.resources))
        repository, handed = merged.get_repository_def(), {LAKE: self.lake.resources[LAKE]}
        context = dg.build_sensor_context(self.instance, resources=handed, repository_def=repository)
        return repository.get_sensor_def("serving_sensor").evaluate_tick(context)

    def requested(self) -> list[str | None]:
        return [request.run_key for request in self.tick().run_requests or ()]

    def end(self, status: dg.DagsterRunStatus) -> None:
        """The runs that it requests now end like that."""
        for request in self.tick().run_requests or ():
            nothing = dg.GraphDefinition("nothing").to_job()
            self.instance.create_run_for_job(nothing, tags=dict(request.tags), status=status)


@incremental_asset(
    mode=Stateless(),
    sources=[DeclaredSource("raw.signups", time_column="event_ts")],
    key="signup_id",
    time_column="at",
    columns={"signup_id": "string", "at": "timestamptz"},
    served=True,
)
def own_fact(_session: SessionContext, signups: DataFrame) -> DataFrame:
    """Is only declared."""
    return signups


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, WholeIceberg("own_fact", "core.own_fact", "at")),
        ({"mode": Sequential()}, NewestHour("own_fact", "core.own_fact", "at")),
        (
            {"served": Served(name="facts", rows="newest"), "grain": DAY},
            NewestHour("facts", "core.own_fact", "at", DAY),
        ),
        ({"mode": Sequential(), "served": Served(rows="all")}, WholeIceberg("own_fact", "core.own_fact", "at")),
    ],
)
def test_a_target_is_served_as_it_is_declared(changes: dict[str, Any], expected: Source) -> None:
    target = replace(own_fact, **changes)
    assert pipeline_sources(Pipeline((), (target,), start="2026-01-01-00:00")) == [expected]


def test_only_what_is_declared_is_served() -> None:
    assert pipeline_sources(PIPELINE) == [ACCOUNT_STATE]
    assert pipeline_sources(Pipeline((), (replace(own_fact, served=None),), start="2026-01-01-00:00")) == []


def test_all_published_rows_or_the_newest_complete_day(lake: Lake) -> None:
    whole, day = WholeIceberg("whole", "core.own_fact", "at"), NewestHour("day", "core.own_fact", "at", DAY)
    assert [whole.head(lake.catalog), day.head(lake.catalog)] == [None, None]
    iceberg.create_target(lake.catalog, replace(own_fact, grain=DAY))
    assert whole.head(lake.catalog) is None
    with pytest.raises(UsageError, match=r"core\.own_fact has no rows yet"):
        whole.read(lake.catalog)
    table = iceberg.load(lake.catalog, "core.own_fact")
    hours = (0, 1, 23, 24, 25)
    rows = [{"signup_id": f"s{hour}", "at": hour_start(FIRST + hour)} for hour in hours]
    schema = pa.schema([("signup_id", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    table.append(pa.Table.from_pylist(rows, schema=schema))
    for complete in (23, 30):  # the second day is not complete
        with iceberg.load(lake.catalog, "core.own_fact").transaction() as transaction:
            transaction.set_properties({iceberg.COMPLETE_THROUGH: hour_key(FIRST + complete)})
        pushed = [lake.push(whole)["rows"], lake.push(day)["rows"]]
        assert pushed == [5, 3]
    assert lake.asked("select signup_id from day order by 1") == [("s0",), ("s1",), ("s23",)]
    assert lake.asked("select count(*) from whole") == [(5,)]


@pytest.mark.parametrize("store", ["folder", "S3"])
def test_spark_writes_the_segments_that_this_process_writes(
    store: str,
    lake: Lake,
    tmp_path: Path,
    spark: SparkSession,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the number of rows on that a setting says, into a folder and into an object store. The files of two hours
    have more rows together than a segment.
    """
    monkeypatch.setattr("lake_assets.serving.sources.SEGMENT_ROWS", 25_000)
    if store == "S3":
        on = on_s3(lake.home, request.getfixturevalue("s3"))
        lake.home = on.model_copy(update={"serving_folder": "s3://lake/serving"})
    for hour, states in enumerate([["Active"] * 15_000, ["Canceled"] * 15_000, ["Active", "Upgraded"]]):
        lake.publish(hour, states, complete=hour)
    iceberg.load(lake.catalog, DIM).delete("account_id = 'a7'")
    write_deltalake(
        tmp_path / "metrics", pa.table({"org_id": ["acme", "globex"], "sent": [1, 2]}), partition_by=["org_id"]
    )
    sources = (WholeIceberg("states", DIM, "state_hour"), *metrics_sources({"mail": str(tmp_path / "metrics")}))
    contents, opened = [], list[int]()
    for spark_rows in (30_003, 30_002):
        lake.home = lake.home.model_copy(update={"serving_spark_rows": spark_rows})
        with lake.open() as serving:

            def session(rows: int = spark_rows) -> SparkSession:
                opened.append(rows)
                return spark

            found = PushGroup("both", sources).push(serving.writer, lake.catalog, as_of=now(), spark=session)
            assert [(reading.expected, report.rows) for _, reading, report in found] == [(30_000, 30_000), (2, 2)]
            assert not any(serving.files.drafts(report.table) for _, _, report in found)
            contents.append([contents_of(serving, report) for _, _, report in found])
        assert lake.asked("select state, count(*) from states group by 1 order by 2") == [
            ("Upgraded", 1),
            ("Canceled", 14_999),
            ("Active", 15_000),
        ]
    assert opened == [30_002]
    assert contents[0] == contents[1]
    assert sorted(len(of_table) for of_table in contents[0]) == [1, 2]


def contents_of(serving: Serving, report: PushReport) -> dict[str, tuple[int, str]]:
    """Number of each segment → its rows, and the checksum of their values."""
    found = {}
    for segment in report.segments:
        with serving.files.open(report.table, segment) as file:
            rows = pq.read_table(file)
        values = hashlib.sha256("\n".join(map(str, rows.to_pylist())).encode())
        found[segment.rpartition("_")[2]] = rows.num_rows, values.hexdigest()
    return found


def test_two_tables_of_one_name_are_refused() -> None:
    sources: list[Source] = [ACCOUNT_STATE, WholeIceberg("account_state", "core.own_fact", "at")]
    with pytest.raises(ConfigurationError, match=r"dim and core\.own_fact are both served as 'account_state'\.\n  → "):
        push_groups(sources, {})
    similar: list[Source] = [ACCOUNT_STATE, WholeIceberg("Account_State", "core.own_fact", "at")]
    with pytest.raises(ConfigurationError, match=r"both served as 'Account_State' \(and 'account_state': SQL ignores"):
        push_groups(similar, {})


def test_a_target_is_served_under_a_name_as_pinot_has_it() -> None:
    assert Served(name="airlineStats").name == "airlineStats"
    (group,) = push_groups([WholeIceberg("airlineStats", "core.own_fact", "at")], {})
    assert serving_asset(group, now).keys == {dg.AssetKey(["serving", "airlineStats"])}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Served(name="a b"), "A served table is called 'a b'"),
        (lambda: Served(rows="last"), r"rows='last'\.\n  → Use 'newest' or 'all'"),  # type: ignore[arg-type]
        (lambda: declared_as_served("yes"), r"served= of core\.own_fact is 'yes'\.\n  → Write served=True"),
    ],
)
def test_a_served_target_that_cannot_be_is_refused(wrong: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        wrong()


def declared_as_served(served: Any) -> object:
    declare = incremental_asset(
        mode=Stateless(),
        sources=own_fact.sources,
        key="signup_id",
        time_column="at",
        columns=own_fact.columns,
        served=served,
    )
    return declare(own_fact.transform)


def test_the_sensor_requests_a_push_for_each_state_once_there_is_a_complete_hour(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    sensor = Sensor(lake, [ACCOUNT_STATE], instance)
    assert sensor.requested() == []
    iceberg.create_target(lake.catalog, PIPELINE.target(DIM))
    assert sensor.requested() == []
    lake.publish(0, ["Active"], complete=0)
    first = sensor.requested()
    assert sensor.requested() == first
    lake.publish(1, ["Active"], complete=0)
    second = sensor.requested()
    lake.complete(1)
    assert len({*first, *second, *sensor.requested()}) == 3
    sensor.end(dg.DagsterRunStatus.SUCCESS)
    assert sensor.requested() == []


def test_a_declared_frequency_bounds_pushes_by_the_sensor_and_no_others(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    hourly = replace(ACCOUNT_STATE, frequency="HOURLY")
    sensor = Sensor(lake, [hourly], instance)
    lake.publish(0, ["Active"], complete=0)
    asset = serving_asset(PushGroup("account_state", (hourly,)), now)
    assert dg.materialize([asset], resources=lake.resources, instance=instance).success
    lake.publish(1, ["Active"], complete=1)
    assert "it is pushed every 3600 s at most" in (sensor.tick().skip_message or "")
    sensor.later = timedelta(minutes=59)
    assert sensor.requested() == []
    sensor.later = timedelta(minutes=61)
    assert len(sensor.requested()) == 1


def test_a_push_of_other_columns_fails_is_noted_and_goes_through_when_it_is_told_to(
    lake: Lake, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    (mail,) = metrics_sources({"mail": str(tmp_path / "metrics")})
    write_deltalake(tmp_path / "metrics", pa.table({"sent": [1]}))
    lake.push(mail)
    write_deltalake(tmp_path / "metrics", pa.table({"opened": [2]}), mode="overwrite", schema_mode="overwrite")
    asset = serving_asset(PushGroup(mail.name, (mail,)), now)

    def push(**config: bool) -> bool:
        run_config = {"ops": {asset.op.name: {"config": config}}}
        return dg.materialize(
            [asset], resources=lake.resources, instance=instance, run_config=run_config, raise_on_error=False
        ).success

    def problems() -> list[tuple[str, str]]:
        with lake.open() as serving:
            found: Serving = serving
            return [(table, text.problem) for table, text in found.registry.failures().items() if table == mail.name]

    assert not push()
    assert lake.asked("select sent from mail_metrics") == [(1,)]
    ((_, problem),) = problems()
    assert problem == "The push of mail_metrics has other columns than readers see: sent is gone, opened is new."
    assert push(new_schema=True)
    assert (lake.asked("select opened from mail_metrics"), problems()) == ([(2,)], [])
    rmtree(tmp_path / "metrics")
    with lake.open() as serving, pytest.raises(UsageError):  # as `lake serving push` does it
        PushGroup(mail.name, (mail,)).push(serving.writer, lake.catalog, as_of=now())
    assert problems() == [(mail.name, "engagement.mail.engagement_metrics does not exist.")]


def test_the_steps_of_tables_with_other_names_have_names_of_dagster() -> None:
    sources = [WholeIceberg(name, f"core.t{n}", "at") for n, name in enumerate(("orders-eu", "orders.eu", "orders_eu"))]
    defs = serving_definitions(sources, clock=now)
    names = {assets.op.name: assets.key for assets in defs.assets or () if isinstance(assets, dg.AssetsDefinition)}
    assert len(names) == 3
    assert names["serving__orders_eu"] == dg.AssetKey(["serving", "orders_eu"])


class Unreadable(NewestHour):
    """A source whose catalog fails as no error of ours."""

    def head(self, catalog: Catalog) -> str | None:
        raise ConnectionError("the catalog is away")


def test_g7_a_push_that_failed_is_requested_again_after_a_rest_and_whatever_another_source_does(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.publish(0, ["Active"], complete=0)
    away = Unreadable("away", "core.away", "hour")
    sensor = Sensor(lake, [away, ACCOUNT_STATE], instance)
    keys = []
    for seconds in RETRY_AFTER_SECONDS:
        keys += sensor.requested()
        sensor.end(dg.DagsterRunStatus.FAILURE)
        assert "next attempt in" in (sensor.tick().skip_message or "")
        sensor.later += timedelta(seconds=seconds)
    keys += sensor.requested()
    assert [key.rsplit(":", 1)[1] for key in keys if key] == ["1", "2", "3", "4"]
    sensor.end(dg.DagsterRunStatus.FAILURE)
    sensor.later += timedelta(days=1)
    told = sensor.tick().skip_message or ""
    assert "the catalog is away" in told
    assert "4 pushes" in told
