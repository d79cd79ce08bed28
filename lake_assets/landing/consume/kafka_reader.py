"""Messages of Kafka partitions, from given offsets on, as records. Nothing is committed to Kafka: the manifest tells.

Only committed messages of transactions are read, so every reader sees the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from lake_assets.connections.kafka import END, TIMEOUT_SECONDS, client, offsets
from lake_assets.errors import ServiceError
from lake_assets.landing.files.records import Record

QUEUED_KILOBYTES, QUEUED_MESSAGES = 1 << 10, 2000
"""What a reader fetches ahead of each partition, about; a message takes half a kilobyte more than its bytes."""

FULL_MS = 10
"""Before a reader with so much ahead looks whether there is room again. The client's default is a second."""


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


Starts = Mapping[Place, int | None]
"""Partition → the first offset to read; None: the earliest that is there."""


def partitions(servers: str, topics: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Topic → its partitions, ascending. `ServiceError` if Kafka or one of them is not there."""
    wanted = list(topics)
    try:
        known = AdminClient(client(servers)).list_topics(timeout=TIMEOUT_SECONDS).topics
    except KafkaException as error:
        raise _silent(servers, error) from error
    if absent := [topic for topic in wanted if topic not in known]:
        raise ServiceError(
            f"Kafka at {servers} has no topic {', '.join(absent)}.",
            remedy="Create it with `lake landing init`, or correct LAKE_LANDING_PREFIX.",
        )
    return {topic: tuple(sorted(known[topic].partitions)) for topic in wanted}


def ends(servers: str, topic: str) -> dict[int, int]:
    """Partition → the offset behind the last message of a topic that can be read. Raises `ServiceError`."""
    places = [Place(topic, partition) for partition in partitions(servers, [topic])[topic]]
    return {place.partition: offset for place, offset in ends_of(servers, places).items()}


def ends_of(servers: str, places: Iterable[Place]) -> dict[Place, int]:
    """The same of partitions of any topics."""
    admin = AdminClient(client(servers))  # kept until all have answered: its end would leave them waiting for ever
    try:
        found = offsets(admin, [TopicPartition(*place) for place in places], END)
    except KafkaException as error:
        raise _silent(servers, error) from error
    return {Place(*place): offset for place, offset in found.items()}


def _silent(servers: str, error: KafkaException) -> ServiceError:
    return ServiceError(
        f"Kafka at {servers} does not answer: {error.args[0].str()}.",
        remedy="Start it with `lake up`, or correct LAKE_KAFKA.",
    )


class Reader:
    """Reads partitions together, each in order; a context manager. Memory: what is fetched ahead, and one batch.

    unreadable: told of a partition that Kafka does not give; default: that is raised.
    """

    def __init__(
        self, servers: str, starts: Starts, *, unreadable: Callable[[Place, ServiceError], None] | None = None
    ) -> None:
        self._servers, self._starts, self._unreadable = servers, starts, unreadable or _raise
        self._consumer = Consumer(
            {
                **client(servers),
                "group.id": "landing",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                # An offset that is gone is told, never skipped.
                "auto.offset.reset": "error",
                "queued.max.messages.kbytes": QUEUED_KILOBYTES,
                "queued.min.messages": QUEUED_MESSAGES,
                "fetch.queue.backoff.ms": FULL_MS,
            }
        )
        self._at_end: set[Place] = set()
        self._left: set[Place] = set()
        self._next: dict[Place, int] = {}

    def __enter__(self) -> Self:
        begin = ((place, OFFSET_BEGINNING if at is None else at) for place, at in self._starts.items())
        self._consumer.assign([TopicPartition(place.topic, place.partition, at) for place, at in begin])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    @property
    def at_end(self) -> bool:
        """Whether each partition has been read to what was its end then."""
        return self._at_end | self._left == set(self._starts)

    def reached(self, ends: Mapping[Place, int]) -> bool:
        """Whether each partition has been read to an offset, exclusive, or to what was its end then."""
        read = {place for place, following in self._next.items() if following >= ends[place]}
        return read | self._at_end | self._left >= set(self._starts)

    def leave(self, place: Place) -> None:
        """Read no further in a partition."""
        self._consumer.pause([TopicPartition(place.topic, place.partition)])
        self._left.add(place)

    def read(self, most: int, *, seconds: float) -> list[tuple[str, Record]]:
        """The next messages with their topics, so many at most, waiting so long for them. Raises `ServiceError`."""
        found = []
        for message in self._consumer.consume(most, timeout=seconds):
            place = Place(message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is None:
                self._at_end.discard(place)
                found.append((place.topic, _record(message)))
                self._next[place] = found[-1][1].offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add(place)
            elif not error.retriable():
                self._tell(place, self._not_given(place, error))
        return found

    def _tell(self, place: Place, error: ServiceError) -> None:
        """Of one partition whoever wants to know; what is wrong with all of Kafka is raised."""
        if place not in self._starts:
            raise error
        self._unreadable(place, error)

    def _not_given(self, place: Place, error: KafkaError) -> ServiceError:
        return ServiceError(
            f"Kafka at {self._servers} does not give partition {place.partition} of {place.topic} "
            f"from offset {self._starts.get(place)} on: {error.str()}.",
            remedy="Restore what is missing, or send it again to a topic of another name; lengthen its retention.",
        )


def _raise(_: Place, error: ServiceError) -> None:
    raise error


def _record(message: Message) -> Record:
    kind, timestamp = message.timestamp()
    return Record(
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp=0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, _bytes(value)) for name, value in _headers(message)),
    )


def _headers(message: Message) -> list[tuple[str, str | bytes | None]]:
    found = message.headers()
    return list(found.items()) if isinstance(found, dict) else found or []


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
