"""The flights example: times come out in UTC, late flights reach their hours, and pandas agrees with every table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.flights import PIPELINE
from examples.flights.data import Observations, arrived_at, observe, package
from examples.flights.definitions import defs
from examples.flights.landing import batches, land, landed_until
from examples.flights.replay import verdict
from lake_assets.base.hours import hour_start
from lake_assets.incremental.engine.engine import Engine, catch_up
from lake_assets.incremental.engine.iceberg import load

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

START = PIPELINE.start_hour
NEW_YORK = "America/New_York"


@cache
def year() -> pd.DataFrame:
    """The package's rows, with the observations made of them beside."""
    flights, zones = package()
    seen = observe(flights, zones)
    day = pd.to_datetime(flights[["year", "month", "day"]])
    key = (
        day.dt.strftime("%Y-%m-%d") + "-" + flights["carrier"] + flights["flight"].astype(str) + "-" + flights["origin"]
    )
    left = seen.departures[["flight_id", "scheduled_at", "departed_at"]]
    landed = seen.arrivals[["flight_id", "arrived_at", "air_minutes"]]
    rows = flights.assign(flight_id=key, zone=flights["dest"].map(zones), day=day)
    return rows.merge(left, on="flight_id", validate="1:1").merge(landed, on="flight_id", how="left", validate="1:1")


def clock(moments: pd.Series) -> pd.Series:
    """What a clock shows, as the package writes it; midnight is 0 here and 2400 there."""
    return moments.dt.hour * 100 + moments.dt.minute


def test_every_departure_is_when_the_clock_in_new_york_says() -> None:
    rows = year()
    due, left = (rows[name].dt.tz_convert(NEW_YORK) for name in ("scheduled_at", "departed_at"))
    assert len(rows) == 336_776
    assert (clock(due) == rows["sched_dep_time"]).all()
    assert (due.dt.tz_localize(None).dt.normalize() == rows["day"]).all()
    flew = rows["dep_time"].notna()
    assert (clock(left)[flew] == rows["dep_time"][flew] % 2400).all()


def test_every_arrival_is_when_the_clock_at_the_destination_says() -> None:
    rows = year().dropna(subset=["arrived_at", "zone"])
    odd = [
        there[clock(there["arrived_at"].dt.tz_convert(str(zone))) != there["arr_time"] % 2400]
        for zone, there in rows.groupby("zone")
    ]
    # One plane of that evening landed at an hour that the clocks of the night left out.
    assert [str(day.date()) for there in odd for day in there["day"]] == ["2013-03-09"]
    in_the_air = rows["air_minutes"].notna()
    taken = (rows["arrived_at"] - rows["departed_at"])[in_the_air].dt.total_seconds() // 60
    assert (taken > rows["air_minutes"][in_the_air]).all()


def test_a_plane_that_lands_after_midnight_landed_the_day_after() -> None:
    left = pd.Series(pd.to_datetime(["2013-01-02T03:30Z", "2013-01-02T03:30Z"])).dt.as_unit("us")
    landed = arrived_at(left, pd.Series([2400.0, None]), pd.Series([NEW_YORK, NEW_YORK]))
    assert list(landed) == [pd.Timestamp("2013-01-02T05:00Z"), pd.NaT]


def first_days(number: int) -> Observations:
    """The flights of the first days of January."""
    flights, zones = package()
    return observe(flights[(flights["month"] == 1) & (flights["day"] <= number)], zones)


def status_counts(catalog: Catalog, before: int) -> dict[str, int]:
    """How many flights due before an hour have which status, by flight_fact."""
    rows = load(catalog, "flights.flight_fact").scan(f"scheduled_at < '{hour_start(before).isoformat()}'").to_arrow()
    return dict(Counter(rows["status"].to_pylist()))


def corrected_departure(spark: SparkSession, observations: Observations, flight_id: str, minutes: int) -> Observations:
    """The raw table and the observations, with another time at which one flight left."""
    moved = f"departed_at + INTERVAL '{minutes}' MINUTE"
    spark.sql(f"UPDATE lake.flights_raw.departures SET departed_at = {moved} WHERE flight_id = '{flight_id}'")
    rows = observations.departures.copy()
    rows.loc[rows.flight_id == flight_id, "departed_at"] += timedelta(minutes=minutes)
    return replace(observations, departures=rows)


@pytest.mark.journey
def test_each_day_every_table_is_as_pandas_has_it(catalog: Catalog, spark: SparkSession) -> None:
    observations, seen = first_days(3), []
    engine = Engine(catalog, PIPELINE, clock=lambda: hour_start(START), spark=lambda: spark)
    engine.create_tables()
    for day in batches(START, START + 3 * 24):
        assert min(land(catalog, observations, day).values()) > 0
        assert not [o.failure for o in catch_up(engine, PIPELINE.in_order()) if o.failure]
        assert [c.table for c in verdict(engine, observations) if not c.equal] == []
        seen.append(status_counts(catalog, START + 24))
    # Of the first day's flights, those in the air at midnight landed a day later; the rest stays as it was.
    assert seen[0]["departed"] > 0
    assert "departed" not in seen[1]
    assert seen[1] == seen[2]
    # It left 14 hours after it was due: what changes then is beyond the hours that are done at once elsewhere.
    corrected = corrected_departure(spark, observations, "2013-01-01-MQ3944-JFK", minutes=-30)
    assert not [o.failure for o in catch_up(engine, PIPELINE.in_order()) if o.failure]
    assert [c.table for c in verdict(engine, corrected) if not c.equal] == []


def test_a_batch_is_landed_once(catalog: Catalog) -> None:
    Engine(catalog, PIPELINE, clock=lambda: hour_start(START)).create_tables()
    observations, day = first_days(1), next(batches(START, START + 24))
    assert landed_until(catalog) is None
    flights = package()[0].query("month == 1 and day == 1")
    # The day ends at seven in the evening in New York. A cancellation is known three hours after the flight was due.
    left = flights["dep_time"].between(500, 1859) & (flights["dep_delay"] < 12 * 60)  # or it left the next morning
    known = left | (flights["dep_time"].isna() & (flights["sched_dep_time"] < 1600))
    assert land(catalog, observations, day)["flights_raw.departures"] == known.sum()
    assert load(catalog, "flights_raw.departures").scan().to_arrow().num_rows == known.sum()
    assert land(catalog, observations, day) == {"flights_raw.departures": 0, "flights_raw.arrivals": 0}
    assert landed_until(catalog) == day.end


def test_the_verdict_finds_rows_that_are_missing_wrong_or_there_twice(catalog: Catalog) -> None:
    engine = Engine(catalog, PIPELINE, clock=lambda: hour_start(START))
    engine.create_tables()
    observations = first_days(1)
    day = next(batches(START, START + 24))
    landed = land(catalog, observations, day)["flights_raw.departures"]
    assert next((c.rows, len(c.missing)) for c in verdict(engine, observations)) == (0, landed)

    table = load(catalog, "flights.departure_fact")
    raw = load(catalog, "flights_raw.departures").scan().to_arrow()
    rows = raw.append_column("is_cancelled", pc.is_null(raw["departed_at"])).select(table.schema().column_names)
    table.append(rows)
    assert verdict(engine, observations)[0].equal
    table.append(rows.slice(0, 1))
    assert not verdict(engine, observations)[0].equal
    table.overwrite(rows.set_column(rows.column_names.index("origin"), "origin", pa.array(["EWR"] * len(rows))))
    found = verdict(engine, observations)[0]
    assert len(found.missing) == len(found.unexpected) == sum(origin != "EWR" for origin in rows["origin"].to_pylist())


def test_a_dagster_code_location_of_its_own_has_every_table() -> None:
    nodes = defs.resolve_asset_graph().asset_nodes
    assert sorted(node.key.to_user_string() for node in nodes) == [
        "flights/airport_hour_dim",
        "flights/departure_fact",
        "flights/flight_fact",
        "flights_raw/arrivals",
        "flights_raw/departures",
    ]
