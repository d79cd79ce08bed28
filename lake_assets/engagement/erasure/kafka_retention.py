"""Which messages of a topic Kafka still holds of somebody, and until when. Reads the topic, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from lake_assets.connections.kafka import TIMEOUT_SECONDS, client
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.errors import ServiceError

_FOREVER = -1


@dataclass(frozen=True)
class Held:
    """So many messages of a topic. until: when the last of them is gone at the latest; None: they stay.

    Kafka removes whole segments: one is closed `segment.ms` after its first message at the latest, and goes
    `retention.ms` after its last.
    """

    topic: str
    messages: int
    until: datetime | None


def held(topic: KafkaTopic, tells: Callable[[bytes], bool]) -> Held | None:
    """The messages of a topic that tell of somebody; None if there are none. Raises `ServiceError`."""
    sent = [message.timestamp()[1] for message in _messages(topic) if tells(message.value() or b"")]
    if not sent:
        return None
    config = _config(topic)
    lasting = int(config["retention.ms"])
    if lasting == _FOREVER or config["cleanup.policy"] != "delete":
        return Held(topic.topic, len(sent), None)
    until = max(sent) + lasting + int(config["segment.ms"])
    return Held(topic.topic, len(sent), datetime.fromtimestamp(until / 1000, UTC))


def _messages(topic: KafkaTopic) -> Iterator[Message]:
    """Every message, from the first one of each partition to where reading catches up."""
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
        consumer.assign([TopicPartition(topic.topic, partition, start) for partition, start in earliest.items()])
        ended: set[int | None] = set()
        while ended != set(earliest):
            message = _next(consumer, topic)
            if message.error() is None:
                yield message
            else:
                ended.add(message.partition())
    finally:
        consumer.close()


def _next(consumer: Consumer, topic: KafkaTopic) -> Message:
    """The next message, or the note that a partition has no more. `ServiceError` if neither comes."""
    message = consumer.poll(TIMEOUT_SECONDS)
    error = message.error() if message else "no answer"
    if message is None or (isinstance(error, KafkaError) and error.code() != KafkaError._PARTITION_EOF):
        raise ServiceError(
            f"Kafka at {topic.servers} does not give the messages of {topic.topic}: {error}.",
            remedy="See whether its brokers are up, and certify again.",
        )
    return message


def _config(topic: KafkaTopic) -> dict[str, str]:
    admin = AdminClient(client(topic.servers))
    resource = ConfigResource(ResourceType.TOPIC, topic.topic)
    try:
        entries = admin.describe_configs([resource], request_timeout=TIMEOUT_SECONDS)[resource].result()
    except KafkaException as error:
        raise ServiceError(
            f"Kafka at {topic.servers} does not tell how {topic.topic} is kept: {error}.", remedy="Certify again."
        ) from error
    return {name: entry.value for name, entry in entries.items()}
