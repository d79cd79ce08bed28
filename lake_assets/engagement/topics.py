"""A Kafka topic: its present offsets, the messages of a range of offsets, and what it still retains about a person."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from lake_assets.connections.kafka import (
    EARLIEST,
    END,
    TIMEOUT_SECONDS,
    asking,
    client,
    kafka_error,
    offsets,
    spark_options,
)
from lake_assets.engagement.checkpoint import OffsetRange, Offsets, TopicState, check_readable
from lake_assets.errors import ServiceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class KafkaTopic:
    """A topic of a cluster.

    Attributes:
        servers: `host:port`, comma-separated.
    """

    servers: str
    topic: str

    def state(self) -> TopicState:
        """Return the topic's present offsets.

        An open transaction limits the end offset, so the same range always holds the same messages.

        Raises:
            ServiceError: Kafka does not answer, or has no such topic.
        """
        with asking(self.servers) as admin:
            answers = admin.describe_topics(TopicCollection([self.topic]), request_timeout=TIMEOUT_SECONDS)
            try:
                description = answers[self.topic].result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                raise ServiceError(
                    f"Kafka at {self.servers} has no topic {self.topic}.",
                    remedy="Create it, or correct the lake's topics.",
                ) from error
            partitions = [TopicPartition(self.topic, p.id) for p in description.partitions]
            earliest = _offsets(admin, partitions, EARLIEST)
            end = _offsets(admin, partitions, END)
        return TopicState(self.topic, str(description.topic_id), earliest, end)

    def create(self, partitions: int) -> bool:
        """Create the topic unless it exists, with the brokers' default replication.

        Returns:
            Whether it was created.
        """
        with asking(self.servers) as admin:
            try:
                admin.create_topics([NewTopic(self.topic, partitions)])[self.topic].result(TIMEOUT_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False
        return True

    def read(self, spark: SparkSession, wanted: OffsetRange) -> DataFrame:
        """Return the committed messages of an offset range. Gaps in the offsets are no loss.

        Returns:
            topic string, partition int, offset long, value binary.

        Raises:
            MessagesLost: The topic was deleted and created again, or offsets of the range are gone.
        """
        if not wanted.count:
            return spark.createDataFrame([], "topic string, partition int, offset bigint, value binary")
        check_readable(self.state(), wanted)
        options = {
            **spark_options(self.servers),
            "kafka.isolation.level": "read_committed",
            "assign": json.dumps({wanted.topic: sorted(wanted.start)}),
            "startingOffsets": _as_json(wanted.topic, wanted.start),
            "endingOffsets": _as_json(wanted.topic, wanted.end),
            "failOnDataLoss": "true",
        }
        messages = spark.read.format("kafka").options(**options).load()
        return messages.select("topic", "partition", "offset", "value")


def _offsets(admin: AdminClient, partitions: list[TopicPartition], which: OffsetSpec) -> Offsets:
    found = offsets(admin, partitions, which)
    return {partition: offset for (_, partition), offset in found.items()}


def _as_json(topic: str, offsets: Offsets) -> str:
    by_partition = {str(partition): offset for partition, offset in sorted(offsets.items())}
    return json.dumps({topic: by_partition})


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
