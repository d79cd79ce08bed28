"""The ingestion stream on real Kafka, Spark and Delta: every message once, as a row or a dead letter, and told of."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from confluent_kafka import TopicPartition

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.dead_letters import dead_letters, send_again
from lake_assets.engagement.delta_log import open_table
from lake_assets.engagement.lakes import EMAIL_EVENT, MEETING_EVENT
from lake_assets.engagement.maintenance import TABLES
from lake_assets.engagement.tables import CHECKPOINT, DEAD_LETTER, ENGAGEMENT, NOTIFICATION
from lake_assets.errors import LakeError, MessagesLost
from lake_assets_tests.engagement.scenario import ORGS, Alone, Traffic, email

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

POISON = [b"{", b'{"org_id": "acme"}', b"\xff"]


@pytest.fixture
def mail(home: Settings, spark: SparkSession, kafka: str) -> Traffic:
    return Traffic(home, spark, kafka)


def test_messages_become_rows_dead_letters_and_notifications_in_lakes_side_by_side(
    home: Settings, spark: SparkSession, kafka: str
) -> None:
    """Both have the same orgs, people and ids: what is asked of one does nothing to the other."""
    mail = Traffic(home, spark, kafka, kind=EMAIL_EVENT)
    meetings = Traffic(home, spark, kafka, name="meetings", kind=MEETING_EVENT)
    mail.send(range(6), POISON[:2])
    meetings.send(range(6), POISON, engagement={"title": "Plan", "minutes": 30})
    report = mail.run()
    with untouched(mail):
        meetings.run()
        meetings.ask("globex", "convert", "lead 4", "contact 4")
        meetings.ask("acme", "delete", "lead 0")
    mail.ask("globex", "merge", "lead 4", "lead 1")
    with untouched(meetings):
        mail.run("mutation")
    with untouched(mail):
        meetings.run("mutation")
    mail.assert_true()
    meetings.assert_true()
    first, second = (next(r for r in lake.rows(ENGAGEMENT) if r["engagement_id"] == "e4") for lake in (mail, meetings))
    assert (first["org_id"], first["who_id"], second["who_id"]) == ("globex", "lead 1", "contact 4")
    assert (first["engagement"]["subject"], first["engagement"]["opens"]) == ("Subject 4", 1)
    assert (second["engagement"]["title"], second["engagement"]["minutes"]) == ("Plan", 30)
    told = [(row["org_id"], row["inserted"], row["updated"], row["app_name"]) for row in mail.rows(NOTIFICATION)]
    assert sorted(told) == sorted([*((org, 2, 0, "mail.ingestion") for org in ORGS), ("globex", 0, 1, "mail.mutation")])
    assert {row["reason"] for row in mail.rows(DEAD_LETTER)} == {"not JSON", "missing field engagement_id"}
    assert (report.batch.batch_id, report.batch.messages.count, report.resumed) == (1, 8, False)
    assert run_batch(mail.stream(), Alone()) is None


@contextmanager
def untouched(lake: Traffic) -> Iterator[None]:
    """No table of a lake has another version afterwards."""
    before = {table: lake.tables.version(table) for table in TABLES}
    yield
    assert {table: lake.tables.version(table) for table in TABLES} == before


def test_d6_d7_a_stream_stops_behind_messages_that_are_gone_and_behind_a_checkpoint_that_is(mail: Traffic) -> None:
    """Neither does it go on behind what it has not read, nor with a checkpoint that is older than its data: its tables
    never forget a batch.
    """
    properties = [open_table(mail.tables.location(table)).metadata().configuration for table in TABLES]
    assert not any("delta.setTransactionRetentionDuration" in found for found in properties)
    mail.send(range(5))
    mail.run()
    mail.send(range(1000, 1010))
    ends = mail.stream().topic().end
    for done in mail.admin.delete_records([TopicPartition(mail.topic, p, end) for p, end in ends.items()]).values():
        done.result(20)
    with pytest.raises(MessagesLost, match=f"but Kafka holds offsets {ends[0]} to {ends[0]} "):
        run_batch(mail.stream(), Alone())
    shutil.rmtree(urlsplit(mail.tables.location(CHECKPOINT)).path)
    mail.tables.create(mail.spark)
    mail.send(range(1010, 1012))
    with pytest.raises(LakeError, match=r"Batch 1 of mail\.ingestion\.data"):
        run_batch(mail.stream(), Alone())


def test_dead_letters_are_listed_by_reason_and_come_again_when_what_was_wrong_is_corrected(mail: Traffic) -> None:
    """An org that nobody had registered is; a message that is broken is broken again; a copy is not sent again."""
    mail.send(range(3), POISON[:1], org_id="acme")
    mail.resend(mail.sent[:1])
    unknown = [email(number, org_id="umbrella") for number in range(10, 14)]
    mail.deliver(unknown)
    mail.run()
    assert {(each.reason, each.count, each.can_be_sent) for each in dead_letters(mail.tables)} == {
        ("not JSON", 1, True),
        ("repeated", 1, False),
        ("unknown org", 4, True),
    }
    mail.tables.add_orgs(["umbrella"])
    assert send_again(mail.tables, mail.servers) == 5
    assert [each.reason for each in dead_letters(mail.tables)] == ["repeated"]
    mail.run()
    found = {row["engagement_id"] for row in mail.rows(ENGAGEMENT)}
    assert found == {row["engagement_id"] for row in mail.sent}
    assert [(each.reason, each.count) for each in dead_letters(mail.tables)] == [("not JSON", 1), ("repeated", 1)]
