"""Messages to Kafka, each once and in order, with the timestamps that they carry: no clock is read.

Failure model: the producer is idempotent, so what it sends again by itself is there once. Sent again by a person, a
simulation is there twice, with the same ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Delivered

from lake_assets.connections.kafka import client
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.errors import ServiceError

DELIVERY_SECONDS = 60
SHOWN = 3


class Message(Protocol):
    """What is sent, of this simulator or of another. timestamp: ms since 1970."""

    @property
    def topic(self) -> str: ...
    @property
    def key(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...
    @property
    def timestamp(self) -> int: ...


def send(servers: str, messages: Iterable[Message]) -> Counter[str]:
    """Send them, by key to the partitions of their topics; how many each topic got.

    servers: of Kafka, `host:port`, comma-separated. Raises `ServiceError`, naming what was not delivered.
    """
    return _Sending(servers).all(messages)


class _Sending:
    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._producer = Producer(
            {
                **client(servers),
                "enable.idempotence": True,
                "linger.ms": 20,
                "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
                # By key, as Java's clients do it: so both find an org in the same partition.
                "partitioner": "murmur2_random",
            }
        )
        self._failed: list[str] = []
        self._sent: Counter[str] = Counter()

    def all(self, messages: Iterable[Message]) -> Counter[str]:
        for message in messages:
            if message.topic not in self._sent:
                KafkaTopic(self._servers, message.topic).state()
            self._send(message)
            self._sent[message.topic] += 1
            if self._failed:
                break
        self._check(left=self._producer.flush(DELIVERY_SECONDS))
        return self._sent

    def _send(self, message: Message) -> None:
        while True:
            try:
                self._producer.produce(
                    message.topic, message.value, message.key, timestamp=message.timestamp, on_delivery=self._told
                )
            except BufferError:
                self._producer.poll(1)
            else:
                self._producer.poll(0)
                return

    def _told(self, error: KafkaError | None, message: Delivered) -> None:
        if error is not None:
            key = (message.key() or b"").decode()
            self._failed.append(f"{message.topic()} for {key}: {error.str()}")

    def _check(self, *, left: int) -> None:
        if not self._failed and not left:
            return
        named, missing = "; ".join(self._failed[:SHOWN]) or "no answer", len(self._failed) + left
        raise ServiceError(
            f"Kafka at {self._servers} did not take {missing} of {self._sent.total()} messages: {named}.",
            remedy="See to Kafka, then simulate with another seed: what was taken stays in the topics.",
        )
