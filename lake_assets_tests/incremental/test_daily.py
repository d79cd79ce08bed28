"""Targets by day on real tables: which days are built, which wait, and which partitions Dagster shows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa
import pytest

from lake_assets.base.hours import HOUR, hour_key, hour_start
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import Pipeline, SessionContext, Source, Stateless, incremental_asset
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import hours_present, rows_between, rows_by_hour, written_hours
from lake_assets.incremental.engine.model import NoSession, SessionReport
from lake_assets.incremental.operations import verify
from lake_assets.membership.raw import RAW, SIGNUPS
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon, in_process_daemon
from lake_assets_tests.incremental.scenario import NOW, START, Lake, signup

if TYPE_CHECKING:
    from datetime import date

    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets_tests.membership.oracle import Row

DAILY = "account_state_daily"
DAYS = [tuple(range(START + 24 * day, START + 24 * (day + 1))) for day in range(2)]


def change(hour: int, **values: object) -> Row:
    row = signup(0, hour, plan="standard", monthly_price=Decimal("12.99"), **values)
    return {**row, "change_id": row["signup_id"]}


def cancel(hour: int) -> Row:
    row = signup(0, hour)
    return {**row, "cancel_id": row["signup_id"], "processing_ts": row["event_ts"]}


def complete(lake: Lake, hour: int) -> list[SessionReport]:
    """All raw tables reach an hour; the sessions of the daily table that follow."""
    for raw in RAW:
        lake.complete(raw.table, START + hour)
    return [r for r in lake.catch_up() if r.plan.process == f"core.{DAILY}"]


def files(lake: Lake) -> dict[date, set[str]]:
    """Day → the data files of the daily table."""
    found: dict[date, set[str]] = {}
    for row in iceberg.load(lake.catalog, f"core.{DAILY}").inspect.files().to_pylist():
        found.setdefault(row["partition"]["state_day_day"], set()).add(row["file_path"])
    return found


@pytest.mark.journey
def test_a_late_hour_rebuilds_its_day_and_a_day_waits_until_it_is_complete(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    lake.append("raw.signups", [signup(1, 2), signup(2, 20, account_id="b"), signup(3, 30)])
    lake.append("raw.cancels", [cancel(26)])

    (first,) = complete(lake, 46)
    assert (first.hours_built, first.plan.pending) == (DAYS[0], DAYS[1])
    waits = "days 2026-01-02 wait for core.account_state_dim, complete through 2026-01-02-22:00"
    assert lake.run(DAILY) == NoSession("wait", waits)
    (second,) = complete(lake, 47)
    assert (second.hours_built, lake.complete_through(f"core.{DAILY}")) == (DAYS[1], 47)
    lake.assert_true()

    # Until it signs up again in hour 30, the account is another one than before: both days are planned, one changes.
    before = files(lake)
    lake.append("raw.plan_changes", [change(22, landed_at=hour_start(START + 48))])
    (late,) = complete(lake, 47)
    assert (late.plan.hour_numbers, late.hours_built, late.hours_unchanged) == ((*DAYS[0], *DAYS[1]), *DAYS)
    day_1, day_2 = sorted(before)
    assert files(lake)[day_2] == before[day_2]
    assert not files(lake)[day_1] & before[day_1]
    lake.assert_true()
    assert verify.compare(lake.engine, lake.target(DAILY)).equal

    asked_for = lake.engine.rebuild(lake.target(DAILY), [START + 5])
    assert isinstance(asked_for, SessionReport)
    assert (asked_for.plan.hour_numbers, asked_for.hours_unchanged) == (DAYS[0], DAYS[0])


def test_a_table_is_partitioned_as_it_is_declared(catalog: Catalog) -> None:
    engine = Engine(catalog, BY_DAY, clock=lambda: NOW)
    engine.create_tables()
    with pytest.raises(ConfigurationError, match="grain='hour', and partitioned by day"):
        engine.decide(replace(signup_log, grain=HOUR))


def test_manifests_tell_the_rows_of_a_day(catalog: Catalog) -> None:
    Engine(catalog, BY_DAY, clock=lambda: NOW).create_tables()
    table = catalog.load_table(LOG)
    rows = [{"signup_id": str(hour), "event_ts": hour_start(START + hour)} for hour in (0, 23, 24, 80)]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert written_hours(table, snapshot, "event_ts")[0] == {*DAYS[0], *DAYS[1], *range(START + 72, START + 96)}
    assert rows_by_hour(table, "event_ts") == {START: 2, START + 24: 1, START + 72: 1}
    found = [rows_between(table, "event_ts", START + a, START + b) for a, b in ((-9, -1), (5, 6), (20, 30), (48, 71))]
    assert found == [0, 2, 3, 0]
    assert hours_present(table, "event_ts") == {START, START + 24, START + 72}


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.signups", time_column="event_ts")],
    grain="day",
    key="signup_id",
    time_column="event_ts",
    columns={"signup_id": "string", "event_ts": "timestamptz", "landed_at": "timestamptz"},
)
def signup_log(session: SessionContext, signups: DataFrame) -> DataFrame:
    """Signups, by day."""
    return signups


BY_DAY = Pipeline(raw=(SIGNUPS,), targets=(signup_log,), start=hour_key(START))
LOG = "core.signup_log"


def marked(daemon: InProcessDaemon, tags: dict[str, str]) -> list[str]:
    """The partitions that a run marks."""
    result = daemon.execute(LOG, tags=tags)
    assert result.success
    return sorted({str(e.partition) for e in result.get_asset_materialization_events()})


def session(daemon: InProcessDaemon) -> list[str]:
    """The partitions that the run marks which the sensor requests."""
    (request,) = daemon.tick("signup_log_sensor").run_requests or []
    return marked(daemon, dict(request.tags))


@pytest.mark.journey
def test_dagster_shows_days_and_backfills_those_that_are_complete(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark, BY_DAY)
    rows = [signup(1, 2), signup(2, 20), signup(3, 26)]
    with in_process_daemon(BY_DAY, catalog, lambda: NOW, end=hour_key(START + 48), spark=spark) as daemon:
        lake.append("raw.signups", rows)
        lake.complete("raw.signups", START + 30)
        assert session(daemon) == ["2026-01-01", "2026-01-02"]
        assert lake.complete_through(LOG) == 30

        # A delivery that landed earlier takes the place of the stored one: its whole day is overwritten.
        lake.append("raw.signups", [{**rows[0], "landed_at": rows[0]["landed_at"] - timedelta(minutes=1)}])
        assert session(daemon) == ["2026-01-01"]
        ids = iceberg.load(catalog, LOG).scan().to_arrow()["signup_id"].to_pylist()
        assert sorted(ids) == ["s01-2", "s02-20", "s03-26"]

        both = {"dagster/asset_partition_range_start": "2026-01-01", "dagster/asset_partition_range_end": "2026-01-02"}
        assert marked(daemon, both) == ["2026-01-01"]
        assert marked(daemon, {"dagster/partition": "2026-01-01"}) == ["2026-01-01"]

        # What was built outside Dagster is marked by the sensor, by day.
        lake.append("raw.signups", [signup(4, 27)])
        lake.session("signup_log")
        events = daemon.tick("signup_log_sensor").asset_events
        assert [e.partition for e in events if isinstance(e, dg.AssetMaterialization)] == ["2026-01-02"]
