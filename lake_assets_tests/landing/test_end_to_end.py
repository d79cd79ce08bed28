"""Simulator → Kafka → two zones → raw tables → facts and dimension, against raw tables that were written directly."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lake_assets.incremental.catch_up import catch_up
from lake_assets.incremental.engine import Engine
from lake_assets.incremental.hours import hour_of
from lake_assets.incremental.tables import complete_through, load
from lake_assets.local.catalog import open_catalog
from lake_assets.local.spark import open_spark
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import RAW
from lake_assets.membership.simulator import Arrival, Population, Simulation, generate, land
from lake_assets_tests.landing.kafka_scenario import NOW, Landings

if TYPE_CHECKING:
    from pathlib import Path

    from lake_assets.settings import Settings

FACTS = [target for target in PIPELINE.targets if target.table.endswith("_fact")]
SIMULATION = Simulation(Population(accounts=300, hours=4, opening=0.5), Arrival(tail=0.2, tail_hours=0.5))


def facts(home: Settings) -> dict[str, list[dict[str, Any]]]:
    """The facts of a home, brought up to date: table → rows, sorted. Their batch ids tell the ways apart, and go."""
    engine = Engine(open_catalog(home), PIPELINE, clock=lambda: NOW, spark=lambda: open_spark(home))
    assert not [outcome.failure for outcome in catch_up(engine, FACTS) if outcome.failure]
    open_spark(home).stop()
    found = {target.table: load(engine.catalog, target.table).scan().to_arrow().to_pylist() for target in FACTS}
    return {table: sorted(({**row, "batch_id": None} for row in rows), key=repr) for table, rows in found.items()}


def test_facts_from_kafka_are_those_of_raw_tables_written_directly(home: Settings, kafka: str, tmp_path: Path) -> None:
    landings, direct = list(generate(SIMULATION)), home.model_copy(update={"home": tmp_path / "direct"})
    for one in (home, direct):
        Engine(open_catalog(one), PIPELINE, clock=lambda: NOW).create_tables()
    for landing in landings:
        land(open_spark(direct), open_catalog(direct), landing)

    zones, half = Landings(home, kafka), len(landings) // 2
    zones.create()
    zones.send(landings[:half])
    zones.tail("a", read_at_once=5)
    zones.tail("b")
    zones.load()
    zones.send(landings[half:])
    zones.settle(landings[-1].landed_at + timedelta(minutes=30))
    for zone, most in (("b", 11), ("a", 1000)):
        zones.tail(zone, read_at_once=most)
    zones.load()

    assert facts(direct) == facts(home)
    for raw in RAW:
        assert complete_through(load(zones.catalog, raw.table), raw.table) == hour_of(landings[-1].landed_at) - 1
