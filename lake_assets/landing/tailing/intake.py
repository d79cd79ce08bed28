"""Conservation at intake: a closed file must hold every message that Kafka gave for its offsets.

Comparing zones cannot see a fault that both have. So the records and dead letters that were written, as they are read
from the drafts, are counted against the offsets of the file. Kafka numbers its messages without a gap, except for
control records of transactions, aborted messages, and messages that compaction or retention removed. If the file has
fewer messages than offsets, another consumer, which shares no code with `kafka_reader`, reads the offsets again and
counts what Kafka gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from confluent_kafka import Consumer, KafkaError, TopicPartition

from lake_assets.connections.kafka import TIMEOUT_SECONDS, client
from lake_assets.errors import IntakeIncomplete, ServiceError
from lake_assets.landing.consume.kafka_reader import Place
from lake_assets.landing.tailing.tailer import Closed

CountGiven = Callable[[Place, int, int], int]
"""Returns how many messages Kafka gives of a partition from one landed offset to another one, both inclusive."""

_READ_SECONDS = 1


def count_offsets(_: Place, first: int, last: int) -> int:
    """Return the number of offsets: each of them has a message unless Kafka is asked."""
    return last - first + 1


def require_conserved(closed: Closed, kept: int, count_given: CountGiven) -> None:
    """Check that the drafts of a closed file hold every message of its offsets, and each of them once.

    Args:
        closed: The file.
        kept: Number of records and dead letters in its drafts.
        count_given: Called only if there are fewer of them than offsets.

    Raises:
        IntakeIncomplete: Messages are missing or doubled.
    """
    place, span = closed.place, (closed.first, closed.last)
    kept += closed.dead_landed
    numbers = {record.offset for record in (*closed.records, *closed.dead)}
    different = len(numbers) + closed.dead_landed
    given = count_offsets(place, *span)
    if kept < given:
        given = count_given(place, *span)
    if kept < given or different != kept:
        raise IntakeIncomplete(place.topic, place.partition, span, given=given, kept=min(kept, different))


class IntakeCounter:
    """Counts what Kafka gives, with a consumer of its own that is opened when it is first needed."""

    def __init__(self, servers: str, bases: Mapping[Place, int]) -> None:
        """Prepare to count.

        Args:
            servers: Of Kafka, `host:port`, comma-separated.
            bases: Partition → the landed offset of Kafka's offset 0; a missing partition has 0.
        """
        self._servers = servers
        self._bases = bases

    def __call__(self, place: Place, first: int, last: int) -> int:
        """Return the number of messages from one landed offset to another. Raises `ServiceError`."""
        base = self._bases.get(place, 0)
        self._consumer.assign([TopicPartition(place.topic, place.partition, first - base)])
        count = 0
        for offset in iter(lambda: self._next_offset(place), None):
            if offset > last - base:
                break
            count += 1
            if offset == last - base:
                break
        self._consumer.unassign()
        return count

    def close(self) -> None:
        """Close the consumer, if it was opened."""
        if "_consumer" in vars(self):
            self._consumer.close()

    def _next_offset(self, place: Place) -> int | None:
        """Return the offset of the next message; None at the end of the partition."""
        for _ in range(TIMEOUT_SECONDS):
            message = self._consumer.poll(_READ_SECONDS)
            if message is None:
                continue
            error = message.error()
            if error is None:
                return message.offset()
            if error.code() == KafkaError._PARTITION_EOF:
                return None
            if not error.retriable():
                raise _not_counted(self._servers, place, error.str())
        raise _not_counted(self._servers, place, "no answer")

    @cached_property
    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **client(self._servers),
                "group.id": "landing-count",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )


def _not_counted(servers: str, place: Place, reason: str) -> ServiceError:
    return ServiceError(
        f"The messages of partition {place.partition} of {place.topic} cannot be counted at Kafka at {servers}: "
        f"{reason}.",
        remedy="Check Kafka, then start the zone again: it continues with the same file.",
    )
