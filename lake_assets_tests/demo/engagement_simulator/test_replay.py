"""A simulation through Kafka, Spark and Delta leaves what its sequential replay leaves."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from lake_assets.demo.engagement_simulator import Simulation, generate, org_names, send
from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT, open_tables
from lake_assets.engagement.turn import open_stream
from lake_assets_tests.engagement.oracle import truth
from lake_assets_tests.engagement.scenario import Alone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.engagement.lake import EngagementLake, StreamName
    from lake_assets.settings import Settings

SIMULATION = Simulation(orgs=3, people=60, touches=600, requests=0.4, late=0.1, poison=0.1)
BOTH: tuple[StreamName, ...] = ("ingestion", "mutation")


@pytest.mark.faults
def test_spark_leaves_the_rows_and_dead_letters_of_a_sequential_replay(
    home: Settings, spark: SparkSession, kafka: str, lake: EngagementLake
) -> None:
    tables, orgs = open_tables(home, lake), org_names(SIMULATION)
    tables.create(spark)
    tables.register_orgs(dict.fromkeys(orgs))
    send(kafka, generate(SIMULATION, lake))
    for name in BOTH:
        assert run_batch(open_stream(name, tables, spark, kafka), Alone()) is not None
    expected = truth(generate(SIMULATION, lake), lake, orgs)
    rows = tables.read(spark, ENGAGEMENT).select("engagement_id", "org_id", "who_id").collect()
    assert len(rows) == len(expected.rows) > 100
    assert {row["engagement_id"]: (row["org_id"], row["who_id"]) for row in rows} == expected.rows
    dead = tables.read(spark, DEAD_LETTER).select("topic", "message", "reason").collect()
    assert Counter(map(tuple, dead)) == Counter(
        (topic, value.decode(errors="replace"), why) for topic, value, why in expected.dead.elements()
    )
    assert len({why for _, _, why in expected.dead}) > 8
