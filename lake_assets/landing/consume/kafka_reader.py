"""Reading messages of Kafka partitions as records, from given offsets on.

Nothing is committed to Kafka, because the manifest has the offsets. Of transactions, only committed messages are read,
so every reader gets the same messages.
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
    TopicCollection,
    TopicPartition,
)

from lake_assets.connections.kafka import (
    END,
    LOG_NOTHING,
    TIMEOUT_SECONDS,
    asking,
    client,
    kafka_error,
    offsets,
    remedy_of,
)
from lake_assets.errors import ServiceError
from lake_assets.landing.files.records import Record

QUEUED_KILOBYTES = 1 << 10
"""About how much a reader fetches ahead of each partition."""

QUEUED_MESSAGES = 2000
"""The same in messages; each of them takes half a kilobyte more than its own bytes."""

FULL_MS = 10
"""How long a reader with full queues waits before it fetches again. The client's default is a second."""


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


Starts = Mapping[Place, int | None]
"""Partition → the first offset to read; None: the earliest one that Kafka has."""

OnUnreadable = Callable[[Place, ServiceError], None]
"""Is called with a partition that Kafka does not give, and the reason."""


def partitions(servers: str, topics: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the partitions of topics, in ascending order.

    Raises:
        ServiceError: Kafka does not answer, refuses access to a topic, or a topic does not exist.
    """
    wanted = list(topics)
    found = existing_partitions(servers, wanted)
    absent = [topic for topic in wanted if topic not in found]
    if absent:
        _require_visible(servers, absent)
        raise ServiceError(
            f"Kafka at {servers} has no topic {', '.join(absent)}.",
            remedy="Create it with `lake landing init`, or correct LAKE_LANDING_PREFIX.",
        )
    return found


def _require_visible(servers: str, topics: list[str]) -> None:
    """Raise `ServiceError` if Kafka has not listed topics because it refuses access to them."""
    with asking(servers) as admin:
        for answer in admin.describe_topics(TopicCollection(topics), request_timeout=TIMEOUT_SECONDS).values():
            try:
                answer.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise


def existing_partitions(servers: str, topics: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Do the same for those of the topics that exist. Raises `ServiceError` if Kafka does not answer."""
    with asking(servers) as admin:
        known = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
    return {topic: tuple(sorted(known[topic].partitions)) for topic in topics if topic in known}


def ends(servers: str, topic: str) -> dict[int, int]:
    """Return, for each partition of a topic, the offset after the last readable message. Raises `ServiceError`."""
    places = [Place(topic, partition) for partition in partitions(servers, [topic])[topic]]
    return {place.partition: offset for place, offset in ends_of(servers, places).items()}


def ends_of(servers: str, places: Iterable[Place]) -> dict[Place, int]:
    """Do the same for partitions of any topics."""
    with asking(servers) as admin:
        found = offsets(admin, [TopicPartition(*place) for place in places], END)
    return {Place(*place): offset for place, offset in found.items()}


class Reader:
    """Reads partitions together, each of them in order. A context manager.

    Memory: the messages fetched ahead, and one batch.
    """

    def __init__(
        self,
        servers: str,
        starts: Starts,
        *,
        bases: Mapping[Place, int] | None = None,
        on_unreadable: OnUnreadable | None = None,
    ) -> None:
        """Prepare to read.

        Args:
            servers: Of Kafka, `host:port`, comma-separated.
            starts: The partitions and their first offsets, as landed.
            bases: Partition → the landed offset of Kafka's offset 0; a missing partition has 0.
            on_unreadable: Default: `read` raises the error.
        """
        self._servers = servers
        self._starts = dict(starts)
        self._bases = {} if bases is None else bases  # the same mapping: `add` follows additions to it
        self._on_unreadable = on_unreadable or _raise
        self._consumer = Consumer(
            {
                **client(servers),
                "log_level": LOG_NOTHING,  # it tries again by itself, and what it cannot is raised
                "group.id": "landing",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                # An offset that Kafka does not have is an error; it is never skipped.
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
        self._consumer.assign(self._assignment(self._starts))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._consumer.close()

    @property
    def at_end(self) -> bool:
        """Whether each partition has been read to its end at that time."""
        return self._at_end | self._left == set(self._starts)

    def reached(self, ends: Mapping[Place, int]) -> bool:
        """Return whether each partition has been read to an offset, exclusive, or to its end at that time."""
        read = {place for place, following in self._next.items() if following >= ends[place]}
        return read | self._at_end | self._left >= set(self._starts)

    def add(self, starts: Starts) -> None:
        """Read further partitions, too."""
        self._starts.update(starts)
        self._consumer.incremental_assign(self._assignment(starts))

    def remove(self, places: Iterable[Place]) -> None:
        """Forget partitions, so that they can be added again at another offset."""
        assigned = [place for place in places if place in self._starts]
        wanted = [TopicPartition(place.topic, place.partition) for place in assigned]
        if wanted:
            self._consumer.resume(wanted)
            self._consumer.incremental_unassign(wanted)
        for place in assigned:
            del self._starts[place]
            self._next.pop(place, None)
        self._left.difference_update(assigned)
        self._at_end.difference_update(assigned)

    def leave(self, place: Place) -> None:
        """Stop reading a partition."""
        self._consumer.pause([TopicPartition(place.topic, place.partition)])
        self._left.add(place)

    def read(self, max_messages: int, *, seconds: float) -> list[tuple[str, Record]]:
        """Return the next messages with their topics.

        Args:
            max_messages: The most messages to return.
            seconds: How long to wait for them.

        Raises:
            ServiceError: Kafka does not give a partition, and there is no `on_unreadable`; or Kafka has failed.
        """
        found = []
        for message in self._consumer.consume(max_messages, timeout=seconds):
            place = Place(message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is None:
                record = _record(message, self._bases.get(place, 0))
                found.append((place.topic, record))
                self._at_end.discard(place)
                self._next[place] = record.offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add(place)
            elif not error.retriable():
                self._report(place, self._not_given(place, error))
        return found

    def _assignment(self, starts: Starts) -> list[TopicPartition]:
        assignment = []
        for place, start in starts.items():
            offset = OFFSET_BEGINNING if start is None else start - self._bases.get(place, 0)
            assignment.append(TopicPartition(place.topic, place.partition, offset))
        return assignment

    def _report(self, place: Place, error: ServiceError) -> None:
        if place not in self._starts:  # an error of Kafka as a whole
            raise error
        self._on_unreadable(place, error)

    def _not_given(self, place: Place, error: KafkaError) -> ServiceError:
        if place not in self._starts:  # an error of Kafka as a whole
            return kafka_error(self._servers, KafkaException(error))
        missing = "Restore what is missing, or send it again to a topic of another name; lengthen its retention."
        return ServiceError(
            f"Kafka at {self._servers} does not give partition {place.partition} of {place.topic} "
            f"from offset {self._starts.get(place)} on: {error.str()}.",
            remedy=remedy_of(error, missing),
        )


def _raise(_: Place, error: ServiceError) -> None:
    raise error


def _record(message: Message, base: int) -> Record:
    kind, timestamp = message.timestamp()
    return Record(
        partition=message.partition() or 0,
        offset=(message.offset() or 0) + base,
        timestamp=0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, _bytes(value)) for name, value in _headers(message)),
    )


def _headers(message: Message) -> list[tuple[str, str | bytes | None]]:
    found = message.headers()
    if isinstance(found, dict):
        return list(found.items())
    return found or []


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
