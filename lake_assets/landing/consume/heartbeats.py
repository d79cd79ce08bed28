"""Heartbeats: messages that landing sends into every partition of a topic, each with the present time.

They close files like any message, so the files of an idle partition are closed too. They alone determine how far a raw
table is complete. A heartbeat that is sent twice, or late, does no harm. The clock is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from confluent_kafka import KafkaError, Message, Producer

from lake_assets.base.hours import milliseconds
from lake_assets.connections.kafka import TIMEOUT_SECONDS, client, remedy_of
from lake_assets.errors import ServiceError
from lake_assets.landing.consume.kafka_reader import existing_partitions, partitions
from lake_assets.landing.consume.messages import HEARTBEAT


def beat(servers: str, times: Mapping[str, datetime]) -> None:
    """Send a heartbeat into every partition of topics.

    Args:
        servers: Of Kafka, `host:port`, comma-separated.
        times: Topic → the time of its heartbeats.

    Raises:
        ServiceError: Kafka did not accept all of them.
    """
    _send(servers, times, partitions(servers, times))


def _send(servers: str, times: Mapping[str, datetime], partitions: Mapping[str, Iterable[int]]) -> None:
    failed: list[str] = []
    remedy = "Check Kafka; heartbeats are sent again after the next interval."

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        nonlocal remedy
        if error is not None:
            failed.append(f"{message.topic()} partition {message.partition()}: {error.str()}")
            remedy = remedy_of(error, remedy)

    producer = Producer({**client(servers), "enable.idempotence": True})
    for topic, numbers in partitions.items():
        at = times[topic]
        headers: list[tuple[str, str | bytes | None]] = [(HEARTBEAT, at.isoformat().encode())]
        for partition in numbers:
            producer.produce(
                topic,
                b"",
                partition=partition,
                timestamp=milliseconds(at),
                headers=headers,
                on_delivery=on_delivery,
            )
    unanswered = producer.flush(TIMEOUT_SECONDS)
    if failed or unanswered:
        count = len(failed) + unanswered
        raise ServiceError(
            f"Kafka at {servers} did not take {count} heartbeats: {'; '.join(failed) or 'no answer'}.",
            remedy=remedy,
        )


@dataclass
class HeartbeatSender:
    """Sends heartbeats into the topics that exist: at the first call, and then whenever an interval has passed.

    Attributes:
        servers: Of Kafka, `host:port`, comma-separated.
        topics: The topics.
        interval: The least time between two heartbeats.
        clock: Returns the present time, in UTC.
    """

    servers: str
    topics: tuple[str, ...]
    interval: timedelta
    clock: Callable[[], datetime]
    _last: datetime | None = field(default=None, init=False)

    def send_if_due(self) -> bool:
        """Send heartbeats if they are due; return whether they were. Raises `ServiceError`."""
        now = self.clock()
        if self._last is not None and now < self._last + self.interval:
            return False
        _send(self.servers, dict.fromkeys(self.topics, now), existing_partitions(self.servers, self.topics))
        self._last = now
        return True
