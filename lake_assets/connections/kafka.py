"""How every stage connects to Kafka: the configuration of clients, and the first and last offsets of partitions."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tenacity import retry, retry_if_exception, stop_after_delay, wait_random_exponential

from lake_assets.connections.clients.kafka_properties import java_properties, librdkafka_properties
from lake_assets.settings import settings

TIMEOUT_SECONDS = 20
LOG_ERRORS = 3
"""Syslog level of the client's own log: it does not log what it retries by itself."""

TRANSIENT_ERRORS = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
"""Answers of brokers about a partition that is new or is being moved. Kafka's own consumers retry, too."""

EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
END = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def client(servers: str) -> dict[str, str | int | float | bool]:
    """Return the configuration that all clients share, with the properties of the settings of this process.

    Args:
        servers: `host:port`, comma-separated.
    """
    passed = librdkafka_properties(settings(), servers)
    return {"log_level": LOG_ERRORS, **passed, "bootstrap.servers": servers}


def spark_options(servers: str) -> dict[str, str]:
    """Return the options with which Spark reads from the same brokers."""
    passed = java_properties(librdkafka_properties(settings(), servers))
    return {f"kafka.{name}": value for name, value in {**passed, "bootstrap.servers": servers}.items()}


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in TRANSIENT_ERRORS


@retry(
    retry=retry_if_exception(_is_transient),
    stop=stop_after_delay(TIMEOUT_SECONDS),
    wait=wait_random_exponential(multiplier=0.05, max=1),
    reraise=True,
)
def offsets(
    admin: AdminClient, partitions: Collection[TopicPartition], which: OffsetSpec
) -> dict[tuple[str, int], int]:
    """Return the first or last offsets of partitions, for readers of committed messages.

    Args:
        admin: A client.
        partitions: Any number.
        which: `EARLIEST`; or `END`, the offset after the last message, or of the first message of an open transaction.

    Returns:
        (topic, partition) → offset.

    Raises:
        KafkaException: Kafka does not answer, or does not have such a partition.
    """
    requests = admin.list_offsets(
        dict.fromkeys(partitions, which),
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=TIMEOUT_SECONDS,
    )
    found = {}
    for partition, request in requests.items():
        found[partition.topic, partition.partition] = request.result().offset
    return found
