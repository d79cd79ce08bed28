"""A simulation on a real broker: every message once, an org's in order, with the moments that it was given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lake_assets.demo.engagement_simulator import Message, Simulation, generate, send
from lake_assets.engagement.lake import STREAMS, EngagementLake
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.errors import ServiceError

SIMULATION = Simulation(touches=300, requests=0.3, retention=0.1, poison=0.05)


def received(servers: str, topic: str) -> Iterator[Message]:
    """All messages of a topic, one partition after the other."""
    state = KafkaTopic(servers, topic).state()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic})
    for partition, end in state.end.items():
        consumer.assign([TopicPartition(topic, partition, 0)])
        for message in consumer.consume(end, timeout=60):
            yield Message(topic, message.key() or b"", message.value() or b"", message.timestamp()[1])
    consumer.close()


def by_org(messages: Iterator[Message]) -> dict[tuple[str, bytes], list[Message]]:
    found = defaultdict(list)
    for message in messages:
        found[message.topic, message.key].append(message)
    return dict(found)


def test_every_message_arrives_once_and_in_order(kafka: str, lake: EngagementLake) -> None:
    sent = send(kafka, generate(SIMULATION, lake))
    arrived = [message for stream in STREAMS for message in received(kafka, lake.topic(stream))]
    assert sent.total() == len(arrived)
    assert by_org(iter(arrived)) == by_org(generate(SIMULATION, lake))


def test_what_was_not_delivered_is_named(kafka: str) -> None:
    narrow = f"narrow-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(narrow, 1, config={"max.message.bytes": "100"})])[narrow].result(20)
    with pytest.raises(ServiceError, match=f"did not take 1 of 1 messages: {narrow} for acme: .*too large"):
        send(kafka, [Message(narrow, b"acme", bytes(1_000), 0)])
    with pytest.raises(ServiceError, match="has no topic nowhere"):
        send(kafka, [Message("nowhere", b"acme", b"{}", 0)])
