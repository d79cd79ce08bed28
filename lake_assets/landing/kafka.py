"""What landing reads of Kafka and sends to it: messages, ids of topics, heartbeats, and removal of what has landed.

Reading messages of Kafka partitions as records, from given offsets on.

Nothing is committed to Kafka, because the manifest has the offsets. Of transactions, only committed messages are read,
so every reader gets the same messages.

What Kafka says of topics: their ids, and the first and last offsets of their partitions.

Is the topic that Kafka has under a name the one whose files have landed?

An id is recorded when a topic is first seen. A manifest of the version before has files and no id: it takes the id that
Kafka gives, unless Kafka ends before the landed files do, for then the files are of another topic.

A tailer looks at the id after it has read the messages of a file and before it adds the file. Ids never return, so
messages that were read between two looks at the same id are of that topic.

Heartbeats: messages that landing sends into every partition of a topic, each with the present time.

They close files like any message, so the files of an idle partition are closed too. They alone determine how far a raw
table is complete. A heartbeat that is sent twice, or late, does no harm. The clock is passed in.

Removing messages from Kafka that landed long enough ago; see `landing.topics.retention`.

The lag of a zone: how long messages have been in Kafka without being landed. Pure; the caller keeps the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from operator import methodcaller
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.base.hours import milliseconds
from lake_assets.connections.kafka import (
    EARLIEST,
    END,
    LOG_NOTHING,
    TIMEOUT_SECONDS,
    asking,
    client,
    kafka_error,
    offsets,
    remedy_of,
)
from lake_assets.errors import MessagesLost, ServiceError, topic_recreated
from lake_assets.landing.manifest import ALL_STAGES, Manifest, files_of, recorded_ends, recorded_firsts
from lake_assets.landing.messages import HEARTBEAT
from lake_assets.landing.records import Record, next_offsets
from lake_assets.landing.state import UNKNOWN_ID, Epoch, Ledger, Retention, kept_marks, landed_everywhere, removable

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
        """Return whether the partitions that are read have come to their offsets, exclusive, or to their ends.

        Further ones, which were found meanwhile, do not count.
        """
        read = {place for place, end in ends.items() if self._next.get(place, 0) >= end}
        return read | self._at_end | self._left >= self._starts.keys() & ends.keys()

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


_headers_of = methodcaller("headers")
"""Called from C, it raises an error that the client leaves behind. A call of the interpreter that has run often does
not, and the error comes later, wherever one is looked for."""


def _headers(message: Message) -> list[tuple[str, str | bytes | None]]:
    """Return the headers of a message; none if the name of one is no UTF-8, for the client gives none of them then."""
    try:
        found = _headers_of(message)
    except SystemError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):  # such as an interrupt
            raise
        return []
    if isinstance(found, dict):
        return list(found.items())
    return found or []


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


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


@dataclass(frozen=True)
class WatchedTopic:
    """A topic in Kafka, and the epoch that the manifest has recorded of it."""

    state: TopicState
    epoch: Epoch

    @property
    def replaced(self) -> MessagesLost | None:
        """The error if Kafka has another topic now; None if it is the same."""
        return replaced(self.epoch, self.state.topic_id)

    @property
    def earliest(self) -> dict[int, int]:
        """Partition → the landed offset of the first message that Kafka has."""
        return self.epoch.landed_offsets(self.state.earliest)


def replaced(epoch: Epoch, topic_id: str) -> MessagesLost | None:
    """Return the error if a topic has another id than its epoch; None if it is the same."""
    if epoch.topic_id == topic_id:
        return None
    return topic_recreated(epoch.topic, expected=epoch.topic_id, found=topic_id)


def landed_ends(manifest: Manifest, topic: str, *, dead_letters: bool = True) -> dict[int, int]:
    """Return, for each partition, the offset after the last one that any zone has landed or a person has given up.

    Of a partition that zones have begun to read further on, and have not landed yet, it is where they began.

    Args:
        manifest: The manifest.
        topic: The topic.
        dead_letters: Whether those count whose file is not followed by that of the rows, because the process died.
    """
    files = files_of(manifest.entries(topic=topic, stages=ALL_STAGES))
    found = next_offsets(file for file in files if dead_letters or not file.holds_dead_letters)
    for ends in recorded_ends(manifest, topic).values():  # rows of the manifest may be lost
        for partition, end in ends.items():
            found[partition] = max(end, found.get(partition, 0))
    given_up = [(loss.partition, loss.last + 1) for loss in Ledger(manifest).losses(topic)]
    begun = [(partition, first) for partition, first in recorded_firsts(manifest, topic).items() if first]
    for partition, end in (*given_up, *begun):
        found[partition] = max(end, found.get(partition, 0))
    return found


def watch_topics(manifest: Manifest, servers: str, topics: Iterable[str], *, now: datetime) -> dict[str, WatchedTopic]:
    """Return topics as Kafka has them now, and their epochs; record the ids of those that have none.

    Raises:
        ServiceError: Kafka does not answer, or a topic does not exist.
    """
    # The manifest is read first: what lands after that is not beyond the ends that Kafka gives then.
    ends = {topic: landed_ends(manifest, topic) for topic in topics}
    found = {}
    for topic, state in topic_states(servers, ends).items():
        ledger = Ledger(manifest)
        epoch = ledger.epoch(topic) or ledger.learn(topic, _first_id(state, ends[topic]), now=now)
        found[topic] = WatchedTopic(state, epoch)
    return found


def logical_ends(manifest: Manifest, servers: str, topic: str) -> dict[int, int]:
    """Return, for each partition, the offset after Kafka's last message, as it is or would be landed.

    If the topic was deleted and created again, none of its messages has landed. Changes nothing. Raises `ServiceError`.
    """
    ends = landed_ends(manifest, topic)
    state = topic_states(servers, [topic])[topic]
    epoch = Ledger(manifest).epoch(topic) or Epoch(topic, 1, _first_id(state, ends), {})
    if replaced(epoch, state.topic_id):
        return {partition: ends.get(partition, 0) + end for partition, end in state.ends.items()}
    return epoch.landed_offsets(state.ends)


def _first_id(state: TopicState, ends: Mapping[int, int]) -> str:
    for partition, end in ends.items():
        if end > state.ends.get(partition, 0):
            return UNKNOWN_ID
    return state.topic_id


@dataclass
class IdCheck:
    """Looks at the id of a topic, at most once between two reads.

    Attributes:
        servers: Of Kafka, `host:port`, comma-separated.
        epochs: Topic → its recorded epoch.
    """

    servers: str
    epochs: Mapping[str, Epoch]
    _looked: dict[str, MessagesLost | None] = field(default_factory=dict, init=False)

    def forget(self) -> None:
        """Messages are about to be read: look again after that."""
        self._looked.clear()

    def problem(self, topic: str) -> MessagesLost | None:
        """Return the error if the topic is another one now. Raises `ServiceError`."""
        if topic not in self._looked:
            (topic_id,) = topic_ids(self.servers, [topic], self._admin).values()
            self._looked[topic] = replaced(self.epochs[topic], topic_id)
        return self._looked[topic]

    @cached_property
    def _admin(self) -> AdminClient:
        # It may outlive Kafka when the services stop, and would print that. What fails is raised.
        return AdminClient({**client(self.servers), "log_level": 0})


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
    waiting = Counter({topic: len([*numbers]) for topic, numbers in partitions.items()})

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        nonlocal remedy
        if error is None:
            waiting[str(message.topic())] -= 1
        else:
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
    producer.flush(TIMEOUT_SECONDS)
    left = [topic for topic, count in waiting.items() if count]
    with suppress(ServiceError):  # a topic that was deleted meanwhile needs none
        left = [*existing_partitions(servers, left)] if left else []
    if left:
        count = sum(waiting[topic] for topic in left)
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


def remove_landed(
    manifest: Manifest, servers: str, topic: str, *, zones: Collection[str], now: datetime
) -> dict[int, int]:
    """Remove the messages of a topic that all zones had landed before its retention, and record how far it has landed.

    A topic without a recorded retention is left as it is, and so is one that was deleted and created again, until a
    person has accepted that. Safe to repeat.

    Args:
        manifest: The manifest.
        servers: Of Kafka, `host:port`, comma-separated.
        topic: The topic.
        zones: The names of all zones.
        now: The present time.

    Returns:
        Partition → the first offset that Kafka has now, of the partitions of which messages were removed.

    Raises:
        ServiceError: Kafka does not answer, or refuses.
    """
    hours, epoch = Retention(manifest).hours(topic), Ledger(manifest).epoch(topic)
    if hours is None or epoch is None:
        return {}
    state = topic_states(servers, [topic])[topic]
    if state.topic_id != epoch.topic_id:
        return {}
    before = now - timedelta(hours=hours)
    landed = landed_everywhere(manifest, topic, zones)
    marks = Retention(manifest).marks(epoch)
    firsts = {}  # Kafka's offsets of landed ones, where there is something to remove before them
    for partition, end in sorted(removable(marks, landed, before=before).items()):
        first = min(end - epoch.base(partition), state.ends.get(partition, 0))
        if first > state.earliest.get(partition, 0):
            firsts[partition] = first
    wanted = [TopicPartition(topic, partition, first) for partition, first in firsts.items()]
    if wanted:
        with asking(servers) as admin:
            for answer in admin.delete_records(wanted, request_timeout=TIMEOUT_SECONDS).values():
                answer.result()
    Retention(manifest).replace_marks(epoch, kept_marks(marks, landed, before=before, now=now))
    return firsts


Offsets = Mapping[int, int]
"""Partition → an offset, exclusive."""


@dataclass(frozen=True)
class Mark:
    """The ends of Kafka's partitions at a time.

    Attributes:
        ends: The offset after the last message.
        at: When they were read.
    """

    ends: Offsets
    at: datetime


@dataclass(frozen=True)
class Lag:
    """How far a zone is behind.

    Attributes:
        messages: Number of offsets that are not landed.
        age: At least one message has been in Kafka for this long, or longer, and is not landed; zero if all are.
        mark: Pass it to the next call of `lag`.
    """

    messages: int
    age: timedelta
    mark: Mark


def lag(ends: Offsets, landed: Offsets, mark: Mark | None, *, now: datetime) -> Lag:
    """Return the lag of a zone.

    Args:
        ends: Kafka's ends now.
        landed: The offset that the zone lands next; a missing partition has no landed file.
        mark: From the last call; None for the first one.
        now: The present time.
    """
    messages = 0
    for partition, end in ends.items():
        messages += max(0, end - landed.get(partition, 0))
    if mark is None or _has_reached(landed, mark.ends):
        return Lag(messages, timedelta(0), Mark(dict(ends), now))
    return Lag(messages, now - mark.at, mark)


def _has_reached(landed: Offsets, ends: Offsets) -> bool:
    return all(landed.get(partition, 0) >= end for partition, end in ends.items())
