"""What a topic holds, asked of Kafka; and the messages of a range of offsets, as Spark reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from lake_assets.connections.kafka import EARLIEST, END, TIMEOUT_SECONDS, client, offsets
from lake_assets.engagement.model.offsets import OffsetRange, Offsets, TopicState, check_readable
from lake_assets.errors import ServiceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class KafkaTopic:
    """A topic of a cluster. servers: `host:port`, comma-separated."""

    servers: str
    topic: str

    def state(self) -> TopicState:
        """The topic as it stands. `ServiceError` if Kafka or the topic is not there.

        An open transaction ends what can be read: so the same range always holds the same messages.
        """
        admin = AdminClient(client(self.servers))
        try:
            asked = admin.describe_topics(TopicCollection([self.topic]), request_timeout=TIMEOUT_SECONDS)
            described = asked[self.topic].result()
            partitions = [TopicPartition(self.topic, p.id) for p in described.partitions]
            earliest, end = _offsets(admin, partitions, EARLIEST), _offsets(admin, partitions, END)
        except KafkaException as error:
            raise self._unreachable(error.args[0]) from error
        return TopicState(self.topic, str(described.topic_id), earliest, end)

    def create(self, partitions: int) -> bool:
        """Create the topic unless it is there, replicated as the brokers say by default; whether it was created."""
        admin = AdminClient(client(self.servers))
        try:
            admin.create_topics([NewTopic(self.topic, partitions)])[self.topic].result(TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise self._unreachable(error.args[0]) from error
        return True

    def read(self, spark: SparkSession, wanted: OffsetRange) -> DataFrame:
        """The committed messages of a range: topic string, partition int, offset long, value binary.

        Raises `TopicReplaced` and `OffsetsMissing` if they are not there any more; gaps are no loss.
        """
        check_readable(self.state(), wanted)
        options = {
            "kafka.bootstrap.servers": self.servers,
            "kafka.isolation.level": "read_committed",
            "assign": json.dumps({wanted.topic: sorted(wanted.start)}),
            "startingOffsets": _as_json(wanted.topic, wanted.start),
            "endingOffsets": _as_json(wanted.topic, wanted.end),
            "failOnDataLoss": "true",
        }
        return spark.read.format("kafka").options(**options).load().select("topic", "partition", "offset", "value")

    def _unreachable(self, error: KafkaError) -> ServiceError:
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return ServiceError(
                f"Kafka at {self.servers} has no topic {self.topic}.", remedy="Create it, or correct the lake's topics."
            )
        return ServiceError(
            f"Kafka at {self.servers} does not tell of topic {self.topic}: {error.str()}.",
            remedy="Start it with `lake up`, or correct LAKE_KAFKA.",
        )


def _offsets(admin: AdminClient, partitions: list[TopicPartition], which: OffsetSpec) -> Offsets:
    return {partition: offset for (_, partition), offset in offsets(admin, partitions, which).items()}


def _as_json(topic: str, offsets: Offsets) -> str:
    return json.dumps({topic: {str(p): at for p, at in sorted(offsets.items())}})
