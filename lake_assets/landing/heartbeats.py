"""Heartbeats: a message into every partition of a topic, which says that the time has come so far.

They close files like any message, so that those of an idle partition close too; and they alone tell how far a raw table
is complete. Sent twice, or late, they do no harm. No clock is read here: it is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from lake_assets.errors import ServiceError
from lake_assets.landing.messages import HEARTBEAT

TIMEOUT_SECONDS = 20
LOG_ERRORS = 3
"""Of the client's own log, by syslog's levels: what it tries again by itself is nobody's business."""


def partitions(servers: str, topics: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Topic → its partitions, ascending. servers: `host:port`, comma-separated. `ServiceError` if one is not there."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": LOG_ERRORS})
    wanted = list(topics)
    try:
        known = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
    except KafkaException as error:
        raise ServiceError(
            f"Kafka at {servers} does not answer: {error.args[0].str()}.",
            remedy="Start it with `lake up`, or correct LAKE_KAFKA.",
        ) from error
    if absent := [topic for topic in wanted if topic not in known]:
        raise ServiceError(
            f"Kafka at {servers} has no topic {', '.join(absent)}.",
            remedy="Create it with `lake landing init`, or correct LAKE_LANDING_PREFIX.",
        )
    return {topic: tuple(sorted(known[topic].partitions)) for topic in wanted}


def beat(servers: str, times: Mapping[str, datetime]) -> None:
    """Send a heartbeat with its topic's time into every partition of each topic. Raises `ServiceError`."""
    failed: list[str] = []

    def told(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(f"{message.topic()} partition {message.partition()}: {error.str()}")

    producer = Producer({"bootstrap.servers": servers, "log_level": LOG_ERRORS, "enable.idempotence": True})
    for topic, found in partitions(servers, times).items():
        at = times[topic]
        headers: list[tuple[str, str | bytes | None]] = [(HEARTBEAT, at.isoformat().encode())]
        for partition in found:
            producer.produce(
                topic, b"", partition=partition, timestamp=_milliseconds(at), headers=headers, on_delivery=told
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


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
