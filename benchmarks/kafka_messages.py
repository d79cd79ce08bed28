"""Sending many messages to a topic of Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from confluent_kafka import Producer

if TYPE_CHECKING:
    from lake_assets.engagement.topics import KafkaTopic

FLUSHED = 100_000
"""Messages after which the producer waits until all have arrived, so that its queue cannot fill."""


def send(topic: KafkaTopic, messages: Iterable[Mapping[str, str | None]]) -> None:
    """Send messages as JSON, and wait until all have arrived."""
    producer = Producer({"bootstrap.servers": topic.servers, "queue.buffering.max.messages": 2 * FLUSHED})
    for number, message in enumerate(messages, start=1):
        producer.produce(topic.topic, json.dumps(message).encode())
        if number % FLUSHED == 0:
            producer.flush()
    producer.flush()
