"""An engagement lake and a served table of an earlier version go on with this one.

They are of revision f1c2f99, packed with the data of Kafka and ZooKeeper. A turn of ingestion had died.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lake_assets.coordination import zookeeper_client
from lake_assets.demo.engagement_simulator import Simulation, generate, org_names, send
from lake_assets.engagement import maintenance
from lake_assets.engagement.batch import BatchReport
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT, open_tables
from lake_assets.engagement.turn import open_stream
from lake_assets.services.servers import kafka as kafka_service
from lake_assets.services.servers import zookeeper as zookeeper_service
from lake_assets.services.service import free_port, running
from lake_assets_tests.demo.engagement_simulator.test_producer import received
from lake_assets_tests.engagement.oracle import Truth, truth
from lake_assets_tests.engagement.scenario import PATIENCE_SECONDS, SESSION_SECONDS, coordinated_turn, rows_of
from lake_assets_tests.serving.scenario import world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

PACKED = Path(__file__).with_name("home_before.tar.xz")
TABLE = "numbers"
SEEDS = (1, 2, 3)
"""Of the simulations that were processed, that were sent, and that come after the upgrade."""


def simulation(seed: int) -> Simulation:
    return Simulation(seed=seed, orgs=2, people=12, touches=40, hours=4, retention=0, requests=0.2)


@pytest.fixture
def upgraded(home: Settings, tmp_path: Path) -> Iterator[Settings]:
    """The data directory at another path than it was made at, with its own servers on other ports."""
    with tarfile.open(PACKED) as packed:
        packed.extractall(tmp_path, filter="data")
    kafka, zookeeper = free_port(), free_port()
    with running(kafka_service(home, kafka, free_port())), running(zookeeper_service(home.home, zookeeper)):
        yield home.model_copy(update={"kafka": f"127.0.0.1:{kafka}", "zookeeper": f"127.0.0.1:{zookeeper}"})


def turn(found: Settings, spark: SparkSession, name: StreamName) -> BatchReport | None:
    """What a turn of a stream has done."""
    stream = open_stream(name, open_tables(found, EMAIL_EVENT), spark, str(found.kafka))
    return coordinated_turn(stream, spark, str(found.zookeeper)).batch


def expected(found: Settings) -> Truth:
    """What is right for all messages that Kafka has."""
    orgs = [org for seed in SEEDS for org in org_names(simulation(seed))]
    messages = [message for name in STREAMS for message in received(str(found.kafka), EMAIL_EVENT.topic(name))]
    return truth(messages, EMAIL_EVENT, orgs)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_an_engagement_lake_of_an_earlier_version_goes_on(upgraded: Settings, spark: SparkSession) -> None:
    tables = open_tables(upgraded, EMAIL_EVENT)
    open_batch = tables.checkpoints.read(EMAIL_EVENT.app_name("ingestion"))
    assert open_batch
    assert not open_batch.finished
    resumed = turn(upgraded, spark, "ingestion")
    assert resumed
    assert resumed.resumed
    assert resumed.batch == open_batch.batch
    tables.add_orgs(org_names(simulation(SEEDS[-1])))
    send(str(upgraded.kafka), generate(simulation(SEEDS[-1]), EMAIL_EVENT))
    assert turn(upgraded, spark, "ingestion")
    assert turn(upgraded, spark, "mutation")
    assert not turn(upgraded, spark, "retention")
    with zookeeper_client(str(upgraded.zookeeper), session_seconds=SESSION_SECONDS) as zk:
        maintenance.take_turn(tables, spark, zk, max_wait=PATIENCE_SECONDS, retain_hours=0)

    right = expected(upgraded)
    assert {org for org, _ in right.rows.values()} == {org for seed in SEEDS for org in org_names(simulation(seed))}
    rows = [(row["engagement_id"], row["org_id"], row["who_id"]) for row in rows_of(tables, ENGAGEMENT)]
    assert sorted(rows) == sorted((row, org, who) for row, (org, who) in right.rows.items())
    reasons = Counter(reason for _, _, reason in right.dead.elements())
    assert Counter(row["reason"] for row in rows_of(tables, DEAD_LETTER)) == reasons

    with world(str(upgraded.zookeeper), upgraded.home / "serving", TABLE) as served:
        assert served.seen() == [2]
        served.writer.revert_all({TABLE: served.entries[-1]})
        assert served.seen() == [1]
        served.push(3)
        assert served.seen() == [3]
