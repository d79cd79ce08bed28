"""Two homes on one catalog and one manifest: two loaders, two daemons' sensors and two `lake catch-up` at once."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tenacity import Retrying, stop_after_delay, wait_fixed

from lake_assets.demo.membership_simulator import Arrival, Population, Simulation, generate
from lake_assets.incremental.engine.iceberg import load
from lake_assets_tests.incremental.scenario import START, Lake, hour_start
from lake_assets_tests.landing.kafka_scenario import Landings, sent
from lake_assets_tests.landing.rival import SIGNUPS, work
from lake_assets_tests.membership import oracle
from lake_assets_tests.processes import Child, environment

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

SIMULATION = Simulation(Population(accounts=40, hours=2, opening=0.5), Arrival(tail=0.2, tail_hours=0.5))
PARTS = 3
PATIENCE_SECONDS = 600
"""Until both have done all: each runs several sessions, on a machine that may be busy."""


@pytest.mark.timeout(900)
@pytest.mark.journey
def test_two_homes_at_work_on_one_catalog_do_everything_once(
    home: Settings, spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    zones, stop = Landings(home, kafka), tmp_path / "stop"
    zones.create()
    lake = Lake(zones.catalog, spark, SIGNUPS)
    rivals = [Child(work, f"{zones.prefix} {stop}", variables(home, tmp_path / name, kafka)) for name in "xy"]
    landings = list(generate(SIMULATION))
    size = -(-len(landings) // PARTS)
    for first in range(0, len(landings), size):
        part = landings[first : first + size]
        zones.send(part)
        zones.settle(part[-1].landed_at + timedelta(minutes=30))
        for zone in ("a", "b"):
            zones.tail(zone)
    stop.touch()
    done = [json.loads(said(rival)) for rival in rivals]

    assert [one["failures"] for one in done] == [[], []]
    expected = sent(landings)
    assert sum(one["loaded"] for one in done) == sum(map(len, expected.values()))
    found = zones.rows()
    assert found == expected
    sound = oracle.sound("raw.signups", found["raw.signups"], hour_start(START))
    built = load(zones.catalog, "core.signup_fact").scan().to_arrow()["signup_id"].to_pylist()
    assert sorted(built) == sorted({row["signup_id"] for row in sound})
    published = lake.published("core.signup_fact")
    assert len(published) == len(set(published))
    assert not lake.catch_up()


def said(rival: Child) -> str:
    """Wait until a rival has ended; what it returned."""
    for attempt in Retrying(stop=stop_after_delay(PATIENCE_SECONDS), wait=wait_fixed(0.2)):
        with attempt:
            assert not rival.runs
    return rival.said()


def variables(home: Settings, own: Path, kafka: str) -> dict[str, str]:
    """The environment of another home on the same catalog, tables, manifest and landed files."""
    shared = {
        "LAKE_CATALOG_URI": home.catalog_address,
        "LAKE_WAREHOUSE": home.warehouse_address,
        "LAKE_LANDING_MANIFEST_URI": home.landing_manifest_address("a"),
        "LAKE_LANDING": str(home.landing_folder),
        "LAKE_KAFKA": kafka,
    }
    return {**environment(home), **shared, "LAKE_HOME": str(own)}
