"""Targets by local day on real tables, over the days on which the clocks of New York change."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import dagster as dg
import pytest

from lake_assets.base.hours import DAY, HOUR, hour_key, hour_of, hour_start
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import (
    Pipeline,
    Sequential,
    SessionContext,
    Source,
    Stateful,
    Stateless,
    incremental_asset,
)
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.audits import unique_key
from lake_assets.incremental.engine.iceberg import check_grain
from lake_assets.incremental.engine.model import NoSession, SessionReport
from lake_assets.incremental.operations import verify
from lake_assets.membership.raw import SIGNUPS
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon, in_process_daemon
from lake_assets_tests.incremental.scenario import START, Lake, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets_tests.membership.oracle import Row

ZONE = "America/New_York"
NEW_YORK = ZoneInfo(ZONE)
SPRING = date(2026, 3, 8)
AUTUMN = date(2026, 11, 1)


@incremental_asset(
    mode=Stateful(load="changed", chunk_hours=72),
    sources=[Source("raw.signups", time_column="event_ts", key="signup_id")],
    grain="day",
    timezone=ZONE,
    key="plan",
    time_column="day",
    columns={"plan": "string", "day": "timestamptz", "signups": "long"},
    audits=[unique_key()],
)
def signups_by_day(session: SessionContext, signups: DataFrame) -> DataFrame:
    """Signups of each plan and day of New York; a day is the moment at which it begins."""
    day = f"to_utc_timestamp(date_trunc('day', from_utc_timestamp(event_ts, '{ZONE}')), '{ZONE}')"
    rows = session.within(signups, "event_ts").selectExpr("plan", f"{day} AS day")
    return rows.groupBy("plan", "day").count().withColumnRenamed("count", "signups")


@incremental_asset(
    mode=Sequential(chunk_hours=72),
    sources=[Source("raw.signups", time_column="event_ts", key="signup_id")],
    grain="day",
    timezone=ZONE,
    key="name",
    time_column="day",
    columns={"name": "string", "day": "timestamptz", "signups": "long"},
)
def signups_so_far(session: SessionContext, signups: DataFrame) -> DataFrame:
    """All signups up to the end of each day of New York: those of the day before, and the day's own."""
    grain = session.grain
    assert session.published is not None
    days = grain.firsts(session.hours)
    before = session.published.where(f"day = timestamp_seconds({grain.first(days[0] - 1) * 3600})").collect()
    total = before[0]["signups"] if before else 0
    counts = Counter(grain.first(hour_of(row["event_ts"])) for row in moments(session.within(signups, "event_ts")))
    rows = []
    for day in days:
        total += counts[day]
        rows.append(("all", day * 3600, total))
    found = signups.sparkSession.createDataFrame(rows, "name string, seconds long, signups long")
    return found.selectExpr("name", "timestamp_seconds(seconds) AS day", "signups")


def moments(rows: DataFrame) -> list[dict[str, datetime]]:
    """The event times of rows, with their time zone."""
    found = rows.selectExpr("unix_micros(event_ts) AS micros").collect()
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return [{"event_ts": epoch + timedelta(microseconds=row["micros"])} for row in found]


def pipeline(change: date) -> Pipeline:
    """Both targets, from the day before the clocks change."""
    first = local_hour(change - timedelta(days=1))
    return Pipeline(raw=(SIGNUPS,), targets=(signups_by_day, signups_so_far), start=hour_key(first))


def local_hour(day: date, hour: int = 0, fold: int = 0) -> int:
    """The hour in which the clocks of New York show an hour of a day; the second time for fold=1."""
    return hour_of(datetime(day.year, day.month, day.day, hour, tzinfo=NEW_YORK, fold=fold))


def at(number: int, day: date, hour: int, fold: int = 0, plan: str = "basic") -> Row:
    """A signup at some minutes past a local hour."""
    return signup(number, local_hour(day, hour, fold) - START, plan=plan)


def truth(rows: list[Row], through: date) -> tuple[dict[tuple[str, datetime], int], dict[datetime, int]]:
    """The rows of both targets up to a local day, in plain Python."""
    by_plan: Counter[tuple[str, datetime]] = Counter()
    by_day: Counter[date] = Counter()
    for row in rows:
        day = row["event_ts"].astimezone(NEW_YORK).date()
        if day <= through:
            by_plan[row["plan"], start_of(day)] += 1
            by_day[day] += 1
    first = min(row["event_ts"].astimezone(NEW_YORK).date() for row in rows)
    days = [first + timedelta(days=number) for number in range((through - first).days + 1)]
    totals = accumulate(by_day[day] for day in days)
    return dict(by_plan), dict(zip(map(start_of, days), totals, strict=True))


def start_of(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=NEW_YORK).astimezone(UTC)


def assert_true(lake: Lake, rows: list[Row], through: date) -> None:
    by_plan, totals = truth(rows, through)
    found = iceberg.load(lake.catalog, signups_by_day.table).scan().to_arrow().to_pylist()
    assert {(row["plan"], row["day"]): row["signups"] for row in found} == by_plan
    found = iceberg.load(lake.catalog, signups_so_far.table).scan().to_arrow().to_pylist()
    assert {row["day"]: row["signups"] for row in found} == totals


@pytest.mark.parametrize(
    ("change", "hours_of_day"),
    [pytest.param(SPRING, 23, id="spring"), pytest.param(AUTUMN, 25, id="autumn", marks=pytest.mark.journey)],
)
def test_days_on_which_clocks_change_are_built_whole_and_late_rows_rebuild_them(
    catalog: Catalog, spark: SparkSession, change: date, hours_of_day: int
) -> None:
    lake = Lake(catalog, spark, pipeline(change))
    eve, after = change - timedelta(days=1), change + timedelta(days=1)
    rows = [
        at(1, eve, 0),
        at(59, eve, 23, plan="vip"),
        at(2, change, 0),
        at(3, change, 1),
        at(4, change, 1, fold=1),  # in autumn an hour later
        at(58, change, 23),
        at(0, after, 0, plan="vip"),
    ]
    whole_day = tuple(range(local_hour(change), local_hour(after)))
    assert len(whole_day) == hours_of_day
    lake.append("raw.signups", rows)
    lake.complete("raw.signups", whole_day[-2])
    built = [report.hours_built for report in lake.catch_up()]
    assert built == [tuple(range(local_hour(eve), local_hour(change)))] * 2
    waits = f"days {change}..{after} ({ZONE}) wait for raw.signups, complete through {hour_key(whole_day[-2])}"
    assert lake.run("signups_by_day") == NoSession("wait", waits)
    assert_true(lake, rows, eve)

    lake.complete("raw.signups", whole_day[-1])
    assert [report.hours_built for report in lake.catch_up()] == [whole_day, whole_day]
    assert lake.complete_through(signups_by_day.table) == whole_day[-1] - START
    assert_true(lake, rows, change)

    # Late rows in the first and in the last hour of the day rebuild it, and no other day of the rollup.
    late = [at(9, change, 0, plan="vip"), at(9, change, 23)]
    lake.append("raw.signups", late)
    lake.complete("raw.signups", local_hour(after, 23))
    by_day, so_far = both(lake, lake.catch_up())
    assert by_day == [*whole_day, *range(local_hour(after), local_hour(after + timedelta(days=1)))]
    assert so_far == by_day
    assert_true(lake, [*rows, *late], after)
    rebuilt = lake.engine.rebuild(signups_by_day, [whole_day[5]])
    assert isinstance(rebuilt, SessionReport)
    assert (rebuilt.plan.hour_numbers, rebuilt.hours_unchanged) == (whole_day, whole_day)
    assert verify.compare(lake.engine, signups_so_far).equal


def both(lake: Lake, reports: list[SessionReport]) -> tuple[list[int], list[int]]:
    """The hours that the sessions of each target built, in order."""
    found: dict[str, set[int]] = {signups_by_day.table: set(), signups_so_far.table: set()}
    for report in reports:
        found[report.plan.process].update(report.hours_built)
    return sorted(found[signups_by_day.table]), sorted(found[signups_so_far.table])


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.signups", time_column="event_ts")],
    grain="day",
    timezone=ZONE,
    key="signup_id",
    time_column="event_ts",
    columns={"signup_id": "string", "event_ts": "timestamptz", "landed_at": "timestamptz"},
)
def signup_log(session: SessionContext, signups: DataFrame) -> DataFrame:
    """Signups, by day of New York."""
    return signups


LOG = "core.signup_log"
BY_DAY = Pipeline(raw=(SIGNUPS,), targets=(signup_log,), start=hour_key(local_hour(SPRING - timedelta(days=1))))


def marked(daemon: InProcessDaemon, tags: dict[str, str]) -> dict[str, object]:
    """The partitions that a run marks, each with its number of rows."""
    result = daemon.execute(LOG, tags=tags)
    assert result.success
    found: dict[str, object] = {}
    for event in result.get_asset_materialization_events():
        found[str(event.partition)] = event.materialization.metadata["dagster/partition_row_count"].value
    return found


def test_dagster_shows_local_days(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark, BY_DAY)
    end = local_hour(SPRING + timedelta(days=2))
    now = hour_start(end)
    with in_process_daemon(BY_DAY, catalog, lambda: now, end=hour_key(end), spark=spark) as daemon:
        eve = SPRING - timedelta(days=1)
        lake.append("raw.signups", [at(1, eve, 23), at(1, SPRING, 0), at(1, SPRING, 12), at(1, SPRING, 23)])
        lake.complete("raw.signups", local_hour(SPRING, 23))
        (request,) = daemon.tick("signup_log_sensor").run_requests or []
        assert marked(daemon, dict(request.tags)) == {"2026-03-07": 1, "2026-03-08": 3}
        assert marked(daemon, {"dagster/partition": "2026-03-08"}) == {"2026-03-08": 3}

        # What was built outside Dagster is marked by the sensor, by local day.
        lake.append("raw.signups", [at(2, SPRING, 23)])
        assert lake.session("signup_log").hours_built == tuple(range(local_hour(SPRING), local_hour(SPRING, 23) + 1))
        events = daemon.tick("signup_log_sensor").asset_events
        assert [e.partition for e in events if isinstance(e, dg.AssetMaterialization)] == ["2026-03-08"]


def test_a_table_is_of_the_time_zone_that_it_was_created_for(catalog: Catalog) -> None:
    iceberg.create_target(catalog, signup_log)
    table = iceberg.load(catalog, LOG)
    check_grain(table, "event_ts", signup_log.grain)
    for other, declared in (
        (HOUR, "grain='hour'"),
        (DAY, "grain='day'"),
        (replace(DAY, timezone="Asia/Tokyo"), "Asia"),
    ):
        with pytest.raises(ConfigurationError, match=declared) as caught:
            check_grain(table, "event_ts", other)
        assert "partitioned by day in America/New_York" in caught.value.problem
        assert "Declare grain='day', timezone='America/New_York'" in caught.value.remedy
