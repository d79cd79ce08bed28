"""What somebody does who begins with nothing: three pipelines, declared, created, landed, published and reported.

They are the pipeline of README.md, the files that `lake new` writes, and `examples.flights`, in one data directory, on
the services that `lake up` starts. Nobody requests a session: the sensors do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from examples.flights.data import observe, package
from examples.flights.expected import compare
from examples.flights.landing import batches
from examples.flights.landing import land as land_flights
from lake_assets.base.hours import hour_key, hour_start, parse_hour
from lake_assets.connections import addresses
from lake_assets.connections.catalog import open_catalog
from lake_assets.incremental.engine.iceberg import load
from lake_assets.services import lifecycle
from lake_assets.services.service import free_port
from lake_assets.settings import Settings
from lake_assets_tests import dagster_api
from lake_assets_tests.test_own_pipelines import OWN, Own, lake, variables_of

FIRST_HOUR = "2013-01-01-00:00"
"""Pipelines that are named together share the earliest start, which is that of the flights."""
LAKE_END = "2013-01-03-00:00"
"""With every hour since, Dagster would list 100,000 partitions, and most of the time would go into that."""

MIDNIGHT = hour_start(parse_hour(FIRST_HOUR))
SERVICES = ("spark", "code", "webserver", "daemon")
WATCHED = {"quarantine", "quarantine_limit", "pending_hours", "intact", "equals_rebuild"}
"""Checks of a target that are no audits."""


def payment(payment_id: str, amount: str, minutes: int) -> dict[str, Any]:
    moment = MIDNIGHT + timedelta(minutes=minutes)
    return {"payment_id": payment_id, "account_id": "a1", "amount": Decimal(amount), "event_ts": moment}


def click(click_id: str, amount: int, minutes: int) -> dict[str, Any]:
    return {"click_id": click_id, "amount": amount, "clicked_at": MIDNIGHT + timedelta(minutes=minutes)}


@dataclass(frozen=True)
class Work:
    """Where somebody works: commands are called in the folder, with the variables."""

    folder: Path
    variables: dict[str, str]
    home: Settings
    pipelines: Sequence[Own]

    @property
    def raw(self) -> set[str]:
        return {asset for own in self.pipelines for asset in own.raw}

    @property
    def checks(self) -> dict[str, set[str]]:
        return {asset: checks for own in self.pipelines for asset, checks in own.checks.items()}

    def lake(self, *arguments: str) -> str:
        return lake(self.folder, self.variables, *arguments)


@pytest.fixture
def work(tmp_path: Path, bare_home: Settings) -> Iterator[Work]:
    """Nothing is left running in the home."""
    folder = tmp_path / "work"
    folder.mkdir()
    pipelines = [declare(folder) for declare in OWN.values()]
    variables = variables_of(pipelines, bare_home)
    chosen = {"LAKE_WEBSERVER_PORT": str(free_port()), "LAKE_END": LAKE_END}
    yield Work(folder, {**variables, **chosen}, bare_home, pipelines)
    lifecycle.down(bare_home, report=print)


@pytest.mark.journey
@pytest.mark.timeout(1800)
def test_rows_that_a_stranger_lands_are_published_by_sensors(work: Work) -> None:
    assert_everything_is_created_and_started(work)
    catalog = open_catalog(work.home)

    land(catalog, "raw.payments", [payment("p1", "10.00", 5), payment("p2", "-1.00", 6), payment("p3", "7.50", 125)], 2)
    land(catalog, "raw.clicks", [click("c1", 3, 5), click("c2", 4, 65)], 1)
    first_of_january = land_a_day_of_flights(catalog)
    until(lambda: amounts(catalog, "core.payment_fact") == {"p1": Decimal("10.00"), "p3": Decimal("7.50")})
    until(lambda: amounts(catalog, "core.click_fact") == {"c1": 3, "c2": 4})
    until(lambda: load(catalog, "flights.airport_hour_dim").current_snapshot() is not None)
    assert [table.table for table in first_of_january() if not table.equal] == []

    land(catalog, "raw.payments", [payment("late", "2.25", 7)], 3)
    late = {"late": Decimal("2.25"), "p1": Decimal("10.00"), "p3": Decimal("7.50")}
    until(lambda: amounts(catalog, "core.payment_fact") == late)

    assert_dagster_shows_it(work)
    page = work.home.home / "report.html"
    assert work.lake("report") == f"The report is in {page}\n"
    assert all(asset.replace("/", ".") in page.read_text() for asset in work.raw | set(work.checks))
    assert_down_leaves_nothing(work)


def assert_everything_is_created_and_started(work: Work) -> None:
    created = work.lake("init").splitlines()
    tables = {asset.replace("/", ".") for asset in work.raw | set(work.checks)}
    assert {f"created {table}" for table in tables} <= set(created)
    assert "Dagster's UI: http://" in work.lake("up")
    found = {service["name"]: service["state"] for service in json.loads(work.lake("status", "--json"))}
    assert found == dict.fromkeys(SERVICES, "ready")


def assert_dagster_shows_it(work: Work) -> None:
    """Every asset, check and sensor is there; each run was requested by the sensor; audits passed."""
    sensor_of = dict.fromkeys(work.checks, "sessions_sensor")
    until(lambda: {run.status for run in dagster_api.runs(work.home)} <= {"SUCCESS", "FAILURE"})
    found = dagster_api.runs(work.home)
    # On a machine that is loaded, a run may die of it; its sensor then requests another one.
    assert {(run.asset, run.sensor) for run in found} == set(sensor_of.items())
    assert {run.asset for run in found if run.status == "SUCCESS"} == set(sensor_of)

    # The sensor marks hours that are complete without a row, and repeats the evaluations after them, one at a time.
    until(lambda: "" not in audits_of(work, dagster_api.checks_of(dagster_api.loaded(work.home))).values())
    repository = dagster_api.loaded(work.home)
    checks = dagster_api.checks_of(repository)
    assert set(checks) == {asset for own in work.pipelines for asset in own.assets}
    assert {asset: set(checks[asset]) for asset in work.checks} == work.checks
    audits = audits_of(work, checks)
    assert audits == dict.fromkeys(audits, "SUCCEEDED")

    sensors = repository["sensors"]
    states = {sensor["name"]: sensor["sensorState"]["status"] for sensor in sensors}
    assert states == dict.fromkeys({sensor for own in work.pipelines for sensor in own.sensors}, "RUNNING")
    assert [(sensor["name"], tick) for sensor in sensors for tick in dagster_api.failed_ticks(sensor)] == []


def audits_of(work: Work, checks: dict[str, dict[str, str]]) -> dict[tuple[str, str], str]:
    """How each audit ended for the newest materialization of its target; empty before it was evaluated."""
    return {(asset, name): checks[asset][name] for asset in work.checks for name in work.checks[asset] - WATCHED}


def assert_down_leaves_nothing(work: Work) -> None:
    processes = addresses.processes_of(work.home.home)
    assert len(processes) >= len(SERVICES)
    assert "All stopped." in work.lake("down")
    assert not any(process.is_running() for process in processes)
    assert addresses.processes_of(work.home.home) == []


def land(catalog: Catalog, table: str, rows: list[dict[str, Any]], through: int) -> None:
    """Commit rows and complete-through: what any program does that writes Iceberg."""
    landed_at = MIDNIGHT + timedelta(hours=through + 1)
    landing = {
        "landed_at": landed_at,
        "landing_date": landed_at.date(),
        "landing_hour": landed_at.hour,
        "batch_id": str(through),
    }
    found = load(catalog, table)
    landed = pa.Table.from_pylist([{**row, **landing} for row in rows], schema=found.schema().as_arrow())
    with found.transaction() as transaction:
        transaction.append(landed)
        transaction.set_properties({"lake.complete-through": hour_key(parse_hour(FIRST_HOUR) + through)})


def land_a_day_of_flights(catalog: Catalog) -> Callable[[], list[Any]]:
    """Land the first day of January, and return what compares the three tables with pandas."""
    flights, zones = package()
    observations = observe(flights[(flights["month"] == 1) & (flights["day"] == 1)], zones)
    (day,) = batches(parse_hour(FIRST_HOUR), parse_hour(FIRST_HOUR) + 24)
    land_flights(catalog, observations, day)
    known = observations.known(pd.Timestamp(hour_start(day.first)), pd.Timestamp(day.landed_at))
    return lambda: compare(catalog, known, pd.Timestamp(day.landed_at))


def amounts(catalog: Catalog, table: str) -> dict[str, Any]:
    """Amount by id; a row that is there twice raises."""
    rows = load(catalog, table).scan().to_arrow()
    ids = rows[0].to_pylist()
    assert len(ids) == len(set(ids))
    return dict(zip(ids, rows["amount"].to_pylist(), strict=True))


def until(condition: Callable[[], bool]) -> None:
    """Wait as long as the whole test may take: a loaded machine must not fail it."""
    while not condition():
        time.sleep(1)
