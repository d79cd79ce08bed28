"""Send messages to Kafka, each once and in order, with the timestamps that they have. Reads no clock.

Failure model: the producer is idempotent, so its own retries write nothing twice. If a person sends a simulation again,
its messages are in the topics twice, with the same ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Delivered

from lake_assets.connections.kafka import client, remedy_of
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.errors import ServiceError

DELIVERY_SECONDS = 60
LINGER_MS = 20
MAX_NAMED = 3
"""An error names this many of the messages that were not delivered."""


class KafkaMessage(Protocol):
    """A message to send. timestamp: milliseconds since 1970-01-01 UTC."""

    @property
    def topic(self) -> str: ...
    @property
    def key(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...
    @property
    def timestamp(self) -> int: ...


def send(servers: str, messages: Iterable[KafkaMessage]) -> Counter[str]:
    """Send messages; the key of a message chooses its partition.

    Args:
        servers: Kafka's bootstrap servers: `host:port`, comma-separated.
        messages: Messages of topics that exist.

    Returns:
        The number of messages sent to each topic.

    Raises:
        ServiceError: A topic is missing, or Kafka did not accept a message.
    """
    return _Sender(servers).send_all(messages)


class _Sender:
    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._producer = Producer(
            {
                **client(servers),
                "enable.idempotence": True,
                "linger.ms": LINGER_MS,
                "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
                # Java's clients choose partitions this way, too, so both find an org in the same partition.
                "partitioner": "murmur2_random",
            }
        )
        self._failed: list[str] = []
        self._remedy = "Repair Kafka, then simulate with another seed: the messages that Kafka took stay in the topics."
        self._sent: Counter[str] = Counter()

    def send_all(self, messages: Iterable[KafkaMessage]) -> Counter[str]:
        for message in messages:
            if message.topic not in self._sent:
                KafkaTopic(self._servers, message.topic).state()
            self._send(message)
            self._sent[message.topic] += 1
            if self._failed:
                break
        unanswered = self._producer.flush(DELIVERY_SECONDS)
        self._check(unanswered)
        return self._sent

    def _send(self, message: KafkaMessage) -> None:
        is_queued = False
        while not is_queued:
            is_queued = self._queue(message)
            # Serve delivery reports; if the queue is full, wait for one.
            self._producer.poll(0 if is_queued else 1)

    def _queue(self, message: KafkaMessage) -> bool:
        """Hand a message to the producer. Return False if its queue is full."""
        try:
            self._producer.produce(
                message.topic,
                message.value,
                message.key,
                timestamp=message.timestamp,
                on_delivery=self._record_failure,
            )
        except BufferError:
            return False
        return True

    def _record_failure(self, error: KafkaError | None, message: Delivered) -> None:
        if error is not None:
            key = (message.key() or b"").decode()
            self._failed.append(f"{message.topic()} for {key}: {error.str()}")
            self._remedy = remedy_of(error, self._remedy)

    def _check(self, unanswered: int) -> None:
        missing = len(self._failed) + unanswered
        if not missing:
            return
        reasons = "; ".join(self._failed[:MAX_NAMED]) or "no answer"
        raise ServiceError(
            f"Kafka at {self._servers} did not take {missing} of {self._sent.total()} messages: {reasons}.",
            remedy=self._remedy,
        )
