"""Which messages of a topic Kafka still retains about a person, and until when. Reads the topic, changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from lake_assets.connections.kafka import TIMEOUT_SECONDS, asking, client, kafka_error
from lake_assets.engagement.model.kafka_topic import KafkaTopic

_FOREVER = -1
MILLISECONDS = 1000


@dataclass(frozen=True)
class RetainedMessages:
    """Messages of a topic that mention a person.

    Kafka removes whole segments. A segment is closed at the latest `segment.ms` after its first message, and removed
    `retention.ms` after its last one.

    Attributes:
        messages: Number of messages.
        until: Latest time at which Kafka removes the last of them; None if it never does.
    """

    topic: str
    messages: int
    until: datetime | None


def retained_messages(topic: KafkaTopic, mentions: Callable[[bytes], bool]) -> RetainedMessages | None:
    """Return the messages of a topic that mention a person; None if there are none.

    Args:
        mentions: Whether the value of a message mentions the person.

    Raises:
        ServiceError: Kafka does not answer.
    """
    sent_at = [message.timestamp()[1] for message in _messages(topic) if mentions(message.value() or b"")]
    if not sent_at:
        return None
    config = _config(topic)
    retention_ms = int(config["retention.ms"])
    if retention_ms == _FOREVER or config["cleanup.policy"] != "delete":
        return RetainedMessages(topic.topic, len(sent_at), None)
    until_ms = max(sent_at) + retention_ms + int(config["segment.ms"])
    until = datetime.fromtimestamp(until_ms / MILLISECONDS, UTC)
    return RetainedMessages(topic.topic, len(sent_at), until)


def _messages(topic: KafkaTopic) -> Iterator[Message]:
    """Yield every message of the topic, up to the present end of each partition."""
    earliest = topic.state().earliest
    consumer = Consumer(
        {
            **client(topic.servers),
            "group.id": f"certificate-{topic.topic}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic.topic, partition, offset) for partition, offset in earliest.items()])
        ended: set[int | None] = set()
        while ended != set(earliest):
            message = _next_message(consumer, topic)
            if message.error() is None:
                yield message
            else:
                ended.add(message.partition())
    finally:
        consumer.close()


def _next_message(consumer: Consumer, topic: KafkaTopic) -> Message:
    """Return the next message, or the event that marks the end of a partition."""
    message = consumer.poll(TIMEOUT_SECONDS)
    error = message.error() if message else None
    if message is None:
        raise kafka_error(topic.servers, TimeoutError())
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise kafka_error(topic.servers, KafkaException(error))
    return message


def _config(topic: KafkaTopic) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic.topic)
    with asking(topic.servers) as admin:
        entries = admin.describe_configs([resource], request_timeout=TIMEOUT_SECONDS)[resource].result()
    return {name: entry.value for name, entry in entries.items()}
