"""What a topic holds, asked of Kafka; and the messages of a range of offsets, as Spark reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from lake_assets.engagement.offsets import OffsetRange, Offsets, TopicState
from lake_assets.errors import ServiceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMEOUT_SECONDS = 20
EARLIEST, END = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]


def topic_state(servers: str, topic: str) -> TopicState:
    """The topic as it stands. servers: `host:port`, comma-separated. `ServiceError` if Kafka or the topic is not there.

    Uncommitted transactions end what can be read: the same range always holds the same messages.
    """
    admin = AdminClient({"bootstrap.servers": servers})
    try:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_SECONDS)[topic].result()
        partitions = [TopicPartition(topic, p.id) for p in described.partitions]
        return TopicState(
            topic,
            str(described.topic_id),
            earliest=_offsets(admin, partitions, EARLIEST),
            end=_offsets(admin, partitions, END),
        )
    except KafkaException as error:
        raise _unreachable(servers, topic, error.args[0]) from error


def read(spark: SparkSession, servers: str, wanted: OffsetRange) -> DataFrame:
    """The committed messages of a range: topic string, partition int, offset long, value binary. Gaps are no loss."""
    options = {
        "kafka.bootstrap.servers": servers,
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({wanted.topic: sorted(wanted.start)}),
        "startingOffsets": _as_json(wanted.topic, wanted.start),
        "endingOffsets": _as_json(wanted.topic, wanted.end),
        "failOnDataLoss": "true",
    }
    return spark.read.format("kafka").options(**options).load().select("topic", "partition", "offset", "value")


def _offsets(admin: AdminClient, partitions: list[TopicPartition], which: OffsetSpec) -> Offsets:
    asked = admin.list_offsets(
        dict.fromkeys(partitions, which),
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=TIMEOUT_SECONDS,
    )
    return {partition.partition: found.result().offset for partition, found in asked.items()}


def _as_json(topic: str, offsets: Offsets) -> str:
    return json.dumps({topic: {str(p): at for p, at in sorted(offsets.items())}})


def _unreachable(servers: str, topic: str, error: KafkaError) -> ServiceError:
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return ServiceError(
            f"Kafka at {servers} has no topic {topic}.", remedy="Create it, or correct the lake's topics."
        )
    return ServiceError(
        f"Kafka at {servers} does not tell of topic {topic}: {error.str()}.",
        remedy="Start it with `lake up`, or correct LAKE_KAFKA.",
    )
