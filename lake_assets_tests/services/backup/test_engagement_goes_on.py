"""An engagement lake is lost and restored: streams go on with the batch that was open, and with what Kafka has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lake_assets.connections.spark import open_spark
from lake_assets.engagement.checkpoint import Checkpoint
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT, NOTIFICATION
from lake_assets.engagement.turn import TurnReport
from lake_assets.services.servers import zookeeper as zookeeper_service
from lake_assets.services.service import free_port, running
from lake_assets_tests.conftest import spark_running
from lake_assets_tests.engagement.interrupted import ASKED, POISON, opened
from lake_assets_tests.engagement.scenario import ORGS, Traffic, coordinated_turn
from lake_assets_tests.services.backup.moving_lake import MovingLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

TABLES = (ENGAGEMENT, DEAD_LETTER, NOTIFICATION)
POINT = "written-data"
"""Rows are in the table, and neither the checkpoint nor the notification tells of them."""

LATER: tuple[StreamName, ...] = ("retention", "ingestion")
"""Who follows mutation."""


@contextmanager
def in_turn(mail: Traffic) -> Iterator[Traffic]:
    """The lake with the ZooKeeper of its data directory, which ends with the block."""
    port = free_port()
    with running(zookeeper_service(mail.home.home, port)):
        mail.home = mail.home.model_copy(update={"zookeeper": f"127.0.0.1:{port}"})
        yield mail


@contextmanager
def on_another_spark(mail: Traffic, folder: Path) -> Iterator[None]:
    """The lake with a new server of Spark, as after `lake down`, which ends with the block."""
    with spark_running(folder) as remote:
        mail.home = mail.home.model_copy(update={"spark_remote": remote})
        mail.spark = open_spark(mail.home)
        try:
            yield
        finally:
            mail.spark.stop()


def arrive(mail: Traffic, name: StreamName) -> None:
    """Messages of a stream: somebody's emails to each org; their conversion in one org; their erasure in another."""
    emails = len(mail.sent)
    if name == "ingestion":
        mail.send(range(emails, emails + len(ORGS)), POISON, who_id=f"person {emails}")
        return
    who = mail.sent[-1]["who_id"]
    mail.spoil(name, POISON[:1])
    if name == "mutation":
        mail.ask(ORGS[0], "convert", who, f"converted {who}")
    else:
        mail.retain(ORGS[1], "gdpr", ASKED, who_id=who)
        mail.erased.add((ORGS[1], who))


def turn(mail: Traffic, name: StreamName) -> TurnReport:
    """A turn of a stream, coordinated by ZooKeeper."""
    return coordinated_turn(mail.stream(name), mail.spark, str(mail.home.zookeeper))


def state(mail: Traffic) -> tuple[object, ...]:
    """All rows, and where each stream is."""
    checkpoints: list[Checkpoint | None] = [mail.tables.checkpoints.read(mail.lake.app_name(name)) for name in STREAMS]
    return tuple(map(mail.rows, TABLES)), checkpoints


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_an_engagement_lake_goes_on(home: Settings, spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    moved = MovingLake(home, kafka, "", {}, None, tmp_path / "backups")
    mail = Traffic(home, spark, kafka)
    with in_turn(mail):
        arrive(mail, "ingestion")
        assert turn(mail, "ingestion").batch
        mail.assert_true()
        arrive(mail, "mutation")
        mail.die(POINT, "mutation")
        then = state(mail)
        assert opened(mail, "mutation")
    moved.back_up()
    with in_turn(mail):
        resumed = turn(mail, "mutation").batch
        assert resumed
        assert resumed.resumed
        for name in LATER:
            arrive(mail, name)
            assert turn(mail, name).batch
        mail.assert_true()
        after = state(mail)

    moved.lose()
    moved.restore()
    with on_another_spark(mail, tmp_path / "spark"), in_turn(mail):
        assert state(mail) == then
        assert state(mail) != after
        again = turn(mail, "mutation").batch
        assert again
        assert again.batch == resumed.batch
        for name in LATER:  # what came after the backup
            assert turn(mail, name).batch
        mail.assert_true()
