"""Simulator → Kafka → two zones → raw tables → facts, against what was sent and one full rebuild from it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lake_assets.base.hours import hour_of
from lake_assets.demo.membership_simulator import Arrival, Population, Simulation, generate
from lake_assets.incremental.engine.engine import Engine, catch_up
from lake_assets.incremental.engine.iceberg import complete_through, load
from lake_assets.incremental.operations import verify
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import RAW
from lake_assets_tests.landing.kafka_scenario import NOW, Landings, sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

FACTS = [target for target in PIPELINE.targets if target.table.endswith("_fact")]
SIMULATION = Simulation(Population(accounts=300, hours=4, opening=0.5), Arrival(tail=0.2, tail_hours=0.5))


@pytest.mark.journey
def test_facts_from_kafka_are_those_of_the_rows_that_were_sent(home: Settings, spark: SparkSession, kafka: str) -> None:
    landings, zones = list(generate(SIMULATION)), Landings(home, kafka)
    engine = Engine(zones.catalog, PIPELINE, clock=lambda: NOW, spark=lambda: spark)
    zones.create()
    engine.create_tables()
    half = len(landings) // 2
    zones.send(landings[:half])
    zones.tail("a", read_at_once=5)
    zones.tail("b")
    zones.load()
    catch_up(engine, FACTS)
    zones.send(landings[half:])
    zones.settle(landings[-1].landed_at + timedelta(minutes=30))
    for zone, most in (("b", 11), ("a", 1000)):
        zones.tail(zone, read_at_once=most)
    zones.load()

    assert zones.rows() == sent(landings)
    last = landings[-1]
    for raw in RAW:  # the heartbeat that settles may have closed its own file, or wait in an open one
        found = complete_through(load(zones.catalog, raw.table), raw.table)
        told = last.complete_through[raw.table]
        assert told is not None
        assert told <= (found or 0) <= hour_of(last.landed_at) - 1
    assert not [outcome.failure for outcome in catch_up(engine, FACTS) if outcome.failure]
    for target in FACTS:
        compared = verify.compare(engine, target)
        assert compared.equal
        assert compared.rows
