"""A stream whose messages Kafka has lost: it alone stops, nobody's erasure waits for it, and a person lets it go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from lake_assets.coordination import zookeeper_client
from lake_assets.engagement.dead_letters import Accepted, accept, lost_messages
from lake_assets.engagement.lake import STREAMS
from lake_assets.engagement.monitoring import stream_status
from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT
from lake_assets.errors import MessagesLost
from lake_assets_tests.engagement.scenario import (
    PARTITIONS,
    PATIENCE_SECONDS,
    SESSION_SECONDS,
    START,
    Traffic,
    coordinated_turn,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

Lose = Callable[[Traffic], None]


def removed(mail: Traffic) -> None:
    """Kafka has removed what was not read."""
    ends = mail.stream().topic().end
    for done in mail.admin.delete_records([TopicPartition(mail.topic, p, end) for p, end in ends.items()]).values():
        done.result(20)


def created_again(mail: Traffic) -> None:
    """Somebody deletes the topic, and creates it again."""
    mail.admin.delete_topics([mail.topic])[mail.topic].result(20)
    for _ in range(100):  # Kafka deletes it in the background
        try:
            mail.admin.create_topics([NewTopic(mail.topic, PARTITIONS)])[mail.topic].result(20)
            return
        except KafkaException:
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("lose", "is_begun"), [(removed, True), pytest.param(created_again, False, marks=pytest.mark.faults)]
)
def test_a_stream_that_lost_messages_holds_nobody_up_and_goes_on_when_that_is_accepted(
    home: Settings, spark: SparkSession, kafka: str, zookeeper: str, lose: Lose, *, is_begun: bool
) -> None:
    """is_begun: its batch has begun, and is not done, when the messages are lost."""
    hosts = f"{zookeeper}/{uuid4().hex}"
    with zookeeper_client(zookeeper) as zk:
        zk.ensure_path(hosts.removeprefix(zookeeper))
    mail = Traffic(home.model_copy(update={"zookeeper": hosts}), spark, kafka)

    def turn(name: str) -> None:
        coordinated_turn(mail.stream(name), spark, hosts)  # type: ignore[arg-type]

    def accepted() -> list[Accepted]:
        with zookeeper_client(hosts, session_seconds=SESSION_SECONDS) as zk:
            return accept(mail.tables, spark, zk, kafka, timeout=PATIENCE_SECONDS)

    mail.send(range(6))
    for name in STREAMS:
        turn(name)
    assert accepted() == []
    unread, mail.sent = mail.sent, []
    mail.send(range(6, 10))
    lost, mail.sent = mail.sent, unread
    if is_begun:
        mail.die("after-intent")
    lose(mail)

    with pytest.raises(MessagesLost, match="lake engagement accept"):
        turn("ingestion")
    mail.ask("globex", "convert", "lead 1", "contact 1")
    mail.retain("acme", "gdpr", START + timedelta(days=3), who_id="lead 0")
    mail.erased.add(("acme", "lead 0"))
    turn("mutation")
    with pytest.raises(MessagesLost):
        turn("ingestion")
    turn("mutation")
    turn("retention")
    assert mail.whose() == mail.truth()
    status = stream_status(mail.tables, "ingestion", kafka)
    assert "cannot go on" in (status.problem or "")
    assert "lake engagement accept" in (status.remedy or "")
    assert stream_status(mail.tables, "mutation", kafka).problem is None

    foreseen = lost_messages(mail.tables, spark, kafka)
    (done,) = accepted()
    assert (foreseen, done.stream) == ([done], "ingestion")
    known = [each for each in done.lost if each.end is not None]
    assert sum(each.end - each.first for each in known if each.end) == (len(lost) if lose is removed else 0)
    reasons = [row["reason"] for row in mail.rows(DEAD_LETTER)]
    assert [reason for reason in reasons if not reason.startswith("lost: ")] == []
    assert len(reasons) == PARTITIONS
    assert accepted() == []
    assert stream_status(mail.tables, "ingestion", kafka).problem is None
    assert len(mail.rows(DEAD_LETTER)) == PARTITIONS

    mail.deliver(lost)
    turn("ingestion")
    turn("mutation")
    turn("retention")
    assert mail.whose() == mail.truth()
    assert len(mail.rows(ENGAGEMENT)) == len(mail.truth())
