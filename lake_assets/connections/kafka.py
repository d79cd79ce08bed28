"""How every stage asks Kafka: what a client is configured with, and where partitions begin and end."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from tenacity import retry, retry_if_exception, stop_after_delay, wait_random_exponential

TIMEOUT_SECONDS = 20
LOG_ERRORS = 3
"""Of the client's own log, by syslog's levels: what it tries again by itself is nobody's business."""

PASSING = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
"""What brokers answer about a partition that is new or moves: Kafka's own consumers ask again."""

EARLIEST, END = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]


def client(servers: str) -> dict[str, str | int | float | bool]:
    """What every client is configured with. servers: `host:port`, comma-separated."""
    return {"bootstrap.servers": servers, "log_level": LOG_ERRORS}


def _passes(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in PASSING


@retry(
    retry=retry_if_exception(_passes),
    stop=stop_after_delay(TIMEOUT_SECONDS),
    wait=wait_random_exponential(multiplier=0.05, max=1),
    reraise=True,
)
def offsets(
    admin: AdminClient, partitions: Collection[TopicPartition], which: OffsetSpec
) -> dict[tuple[str, int], int]:
    """(topic, partition) → its offset, for readers of committed messages: an open transaction ends what they read.

    which: `EARLIEST`, or `END`, behind the last message. Raises `KafkaException`.
    """
    asked = admin.list_offsets(
        dict.fromkeys(partitions, which),
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=TIMEOUT_SECONDS,
    )
    return {(place.topic, place.partition): found.result().offset for place, found in asked.items()}
