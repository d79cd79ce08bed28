"""A Kafka topic: its present offsets, and the messages of an offset range as a DataFrame."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from lake_assets.connections.kafka import EARLIEST, END, TIMEOUT_SECONDS, asking, offsets, spark_options
from lake_assets.engagement.model.offsets import OffsetRange, Offsets, TopicState, check_readable
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
