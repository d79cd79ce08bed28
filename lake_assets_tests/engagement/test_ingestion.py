"""The ingestion stream on real Kafka, Spark and Delta: every message once, as a row or a dead letter, and told of."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from confluent_kafka import TopicPartition

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.failpoints import points
from lake_assets.engagement.tables import CHECKPOINT, DEAD_LETTER, ENGAGEMENT, NOTIFICATION
from lake_assets.errors import CheckpointLost, OffsetsMissing
from lake_assets_tests.engagement.scenario import ORGS, PARTITIONS, Alone, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

POISON = [b"{", b'{"org_id": "acme"}', b"\xff"]


@pytest.fixture
def mail(home: Settings, spark: SparkSession, kafka: str) -> Traffic:
    return Traffic(home, spark, kafka)


def test_messages_become_rows_dead_letters_and_notifications(mail: Traffic) -> None:
    mail.send(range(6), POISON[:2])
    report = mail.run()
    mail.assert_true()
    [first] = [row for row in mail.rows(ENGAGEMENT) if row["engagement_id"] == "e4"]
    assert (first["org_id"], first["who_id"]) == ("globex", "lead 4")
    assert first["engagement"] == {"subject": "Subject 4", "opens": 1}
    told = [(row["org_id"], row["inserted"], row["updated"], row["app_name"]) for row in mail.rows(NOTIFICATION)]
    assert told == [(org, 2, 0, "mail.ingestion") for org in ORGS]
    assert {row["reason"] for row in mail.rows(DEAD_LETTER)} == {"not JSON", "missing field engagement_id"}
    assert (report.batch.batch_id, report.batch.messages.count, report.resumed) == (1, 8, False)
    assert run_batch(mail.stream(), Alone()) is None


def test_batches_are_bounded_and_one_may_hold_no_sound_message(mail: Traffic) -> None:
    mail.send(range(4))
    assert [report.batch.messages.count for report in mail.run_all(max_records=3)] == [3, 1]
    mail.send([], POISON[:1])
    mail.run()
    mail.assert_true()


def test_d6_a_stream_stops_where_messages_would_be_passed_over(mail: Traffic) -> None:
    mail.send(range(4))
    mail.run()
    mail.send(range(4, 8))
    cut = [TopicPartition(mail.topic, partition, 3) for partition in range(PARTITIONS)]
    for done in mail.admin.delete_records(cut).values():
        done.result(20)
    with pytest.raises(OffsetsMissing, match="at offset 2 of partition 0, but holds those from 3 to 4"):
        run_batch(mail.stream(), Alone())
    shutil.rmtree(urlsplit(mail.tables.location(CHECKPOINT)).path)
    mail.tables.create(mail.spark)
    with pytest.raises(CheckpointLost, match=r"Batch 1 of mail\.ingestion\.data"):
        run_batch(mail.stream(), Alone())
    assert len(mail.rows(ENGAGEMENT)) == 4


def test_two_lakes_side_by_side(mail: Traffic) -> None:
    other = Traffic(mail.home, mail.spark, mail.servers, name="calls")
    mail.send(range(3))
    other.send(range(3, 8), POISON)
    for lake in (mail, other):
        lake.run()
        lake.assert_true()


def test_d2_killed_at_every_point_each_message_counts_once(mail: Traffic) -> None:
    """Each turn dies at the next point, more messages come, and the next turn goes on, to die further on."""
    last = 0
    for point in points(mail.stream().process_names)[:-2]:
        mail.send(range(last, last + 5), POISON)
        mail.die(point)
        last += 5
    mail.run_all()
    mail.assert_true()
    assert len(mail.sent) == last
