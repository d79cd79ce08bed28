"""Heartbeats: a message into every partition of a topic, which says that the time has come so far.

They close files like any message, so that those of an idle partition close too; and they alone tell how far a raw table
is complete. Sent twice, or late, they do no harm. No clock is read here: it is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from confluent_kafka import KafkaError, Message, Producer

from lake_assets.connections.kafka import TIMEOUT_SECONDS, client
from lake_assets.errors import ServiceError
from lake_assets.landing.consume.kafka_reader import partitions
from lake_assets.landing.consume.messages import HEARTBEAT
from lake_assets.landing.manifest.schema import milliseconds


def beat(servers: str, times: Mapping[str, datetime]) -> None:
    """Send a heartbeat with its topic's time into every partition of each topic. Raises `ServiceError`."""
    failed: list[str] = []

    def told(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(f"{message.topic()} partition {message.partition()}: {error.str()}")

    producer = Producer({**client(servers), "enable.idempotence": True})
    for topic, found in partitions(servers, times).items():
        at = times[topic]
        headers: list[tuple[str, str | bytes | None]] = [(HEARTBEAT, at.isoformat().encode())]
        for partition in found:
            producer.produce(
                topic, b"", partition=partition, timestamp=milliseconds(at), headers=headers, on_delivery=told
            )
    left = producer.flush(TIMEOUT_SECONDS)
    if failed or left:
        raise ServiceError(
            f"Kafka at {servers} did not take {len(failed) + left} heartbeats: {'; '.join(failed) or 'no answer'}.",
            remedy="See to Kafka; heartbeats are sent again with the next interval.",
        )


@dataclass
class Heart:
    """Beats into topics whenever an interval has passed by the clock, and at once at first."""

    servers: str
    topics: tuple[str, ...]
    interval: timedelta
    clock: Callable[[], datetime]
    _last: datetime | None = field(default=None, init=False)

    def beat(self) -> bool:
        """Send heartbeats if they are due; whether they were."""
        now = self.clock()
        if self._last is not None and now < self._last + self.interval:
            return False
        beat(self.servers, dict.fromkeys(self.topics, now))
        self._last = now
        return True
