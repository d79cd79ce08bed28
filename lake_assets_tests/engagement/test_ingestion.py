"""The ingestion stream on real Kafka, Spark and Delta: every message once, as a row or a dead letter, and told of."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from confluent_kafka import TopicPartition

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.tables import CHECKPOINT, DEAD_LETTER, ENGAGEMENT, NOTIFICATION
from lake_assets.errors import CheckpointLost, OffsetsMissing
from lake_assets_tests.engagement.scenario import ORGS, Alone, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

POISON = [b"{", b'{"org_id": "acme"}', b"\xff"]


@pytest.fixture
def mail(home: Settings, spark: SparkSession, kafka: str) -> Traffic:
    return Traffic(home, spark, kafka)


def test_messages_become_rows_dead_letters_and_notifications_in_lakes_side_by_side(mail: Traffic) -> None:
    other = Traffic(mail.home, mail.spark, mail.servers, name="calls")
    mail.send(range(6), POISON[:2])
    other.send([], POISON)
    report = mail.run()
    other.run()
    mail.assert_true()
    other.assert_true()
    [first] = [row for row in mail.rows(ENGAGEMENT) if row["engagement_id"] == "e4"]
    assert (first["org_id"], first["who_id"]) == ("globex", "lead 4")
    assert first["engagement"] == {"subject": "Subject 4", "opens": 1}
    told = [(row["org_id"], row["inserted"], row["updated"], row["app_name"]) for row in mail.rows(NOTIFICATION)]
    assert told == [(org, 2, 0, "mail.ingestion") for org in ORGS]
    assert {row["reason"] for row in mail.rows(DEAD_LETTER)} == {"not JSON", "missing field engagement_id"}
    assert (report.batch.batch_id, report.batch.messages.count, report.resumed) == (1, 8, False)
    assert run_batch(mail.stream(), Alone()) is None


def test_d6_a_stream_stops_behind_messages_that_are_gone_and_behind_a_checkpoint_that_is(mail: Traffic) -> None:
    """Neither does it go on behind what it has not read, nor with a checkpoint that is older than its data."""
    mail.send(range(5))
    mail.run()
    mail.send(range(1000, 1010))
    ends = mail.stream().topic().end
    for done in mail.admin.delete_records([TopicPartition(mail.topic, p, end) for p, end in ends.items()]).values():
        done.result(20)
    with pytest.raises(OffsetsMissing, match=f"but holds those from {ends[0]} to {ends[0]}, the end"):
        run_batch(mail.stream(), Alone())
    shutil.rmtree(urlsplit(mail.tables.location(CHECKPOINT)).path)
    mail.tables.create(mail.spark)
    mail.send(range(1010, 1012))
    with pytest.raises(CheckpointLost, match=r"Batch 1 of mail\.ingestion\.data"):
        run_batch(mail.stream(), Alone())
