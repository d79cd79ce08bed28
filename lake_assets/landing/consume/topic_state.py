"""What Kafka says of topics: their ids, and the first and last offsets of their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.connections.kafka import EARLIEST, END, TIMEOUT_SECONDS, asking, offsets
from lake_assets.landing.consume.kafka_reader import partitions

_ATTEMPTS = 6


@dataclass(frozen=True)
class TopicState:
    """A topic in Kafka now.

    Attributes:
        topic_id: It differs from that of a topic of the same name that was deleted.
        earliest: Partition → its first offset.
        ends: Partition → the offset after its last readable message.
    """

    topic: str
    topic_id: str
    earliest: Mapping[int, int]
    ends: Mapping[int, int]


def topic_ids(servers: str, topics: Iterable[str], admin: AdminClient | None = None) -> dict[str, str]:
    """Return the ids of topics.

    Args:
        servers: Of Kafka, `host:port`, comma-separated.
        topics: The topics.
        admin: A client of these servers; None opens one.

    Raises:
        ServiceError: Kafka does not answer, or a topic does not exist.
    """
    wanted = list(topics)
    if not wanted:
        return {}
    with asking(servers, admin) as opened:
        try:
            return _described(opened, wanted)
        except KafkaException:
            partitions(servers, wanted)  # names the topic that does not exist
            raise


def topic_states(servers: str, topics: Iterable[str]) -> dict[str, TopicState]:
    """Return the present states of topics. Raises as `topic_ids`."""
    ids = topic_ids(servers, topics)
    numbers = partitions(servers, ids)
    places = [TopicPartition(topic, partition) for topic in ids for partition in numbers[topic]]
    with asking(servers) as admin:
        earliest = offsets(admin, places, EARLIEST)
        ends = offsets(admin, places, END)
    return {topic: TopicState(topic, ids[topic], _of(topic, earliest), _of(topic, ends)) for topic in ids}


@retry(
    retry=retry_if_exception_type(KafkaException),
    stop=stop_after_attempt(_ATTEMPTS),
    wait=wait_random_exponential(multiplier=0.05, max=1),
    reraise=True,
)
def _described(admin: AdminClient, topics: list[str]) -> dict[str, str]:
    answers = admin.describe_topics(TopicCollection(topics), request_timeout=TIMEOUT_SECONDS)
    return {topic: str(answers[topic].result().topic_id) for topic in topics}


def _of(topic: str, found: Mapping[tuple[str, int], int]) -> dict[int, int]:
    return {partition: offset for (name, partition), offset in sorted(found.items()) if name == topic}
