"""What no stream could take: messages that are lost, which is accepted, and dead letters, which are sent again.

Messages are lost when Kafka has removed messages before a stream has read them, when a topic was deleted and created
again, and when a lake names another topic than before. What is lost stands in the table `dead_letter`, a row for each
partition. If the process is killed anywhere, the command can be given again.

A message that is sent again is a new message: it makes a row, or another dead letter. So the former letter goes when
it is sent. If the process is killed between the two, the message may come twice, which makes one row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer

from lake_assets.connections.kafka import client, kafka_error
from lake_assets.engagement.batch import Stream, ended, versions_left_by
from lake_assets.engagement.checkpoint import Checkpoint, Lost, TopicState, go_on, problem_of
from lake_assets.engagement.delta_log import open_table, read_rows
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.tables import DEAD_LETTER, NO_MISTAKES, LakeTables
from lake_assets.engagement.turn import open_stream
from lake_assets.engagement.turn_order import coordinator_of
from lake_assets.errors import ServiceError

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

COMMIT = "lost"
"""The last part of the app id under which lost messages are recorded."""

LOST = "lost: "
"""Beginning of the reason of a dead letter that stands for messages that were never read."""


@dataclass(frozen=True)
class Accepted:
    """What a stream has lost. Nothing is lost of a partition that Kafka has from the start again."""

    stream: StreamName
    problem: str
    lost: Sequence[Lost]


def lost_messages(tables: LakeTables, spark: SparkSession, servers: str) -> list[Accepted]:
    """Return what `accept` would accept. Changes nothing.

    Args:
        servers: Kafka's `host:port`, comma-separated.
    """
    streams = [open_stream(name, tables, spark, servers) for name in STREAMS]
    return [found for found, *_ in map(_lost_of, streams) if found is not None]


def accept(tables: LakeTables, spark: SparkSession, zk: KazooClient, servers: str, *, timeout: float) -> list[Accepted]:
    """Record what is lost of each stream, and let it go on.

    Args:
        zk: A started client.
        servers: Kafka's `host:port`, comma-separated.
        timeout: Seconds to wait for the lock.

    Raises:
        LockNotFree: The lock was not free in time.
        LockLost: The lock was lost meanwhile.
    """
    accepted = []
    coordinated = coordinator_of(STREAMS[0], tables, zk, spark, timeout=timeout)
    with coordinated.locked():
        for name in STREAMS:
            stream = open_stream(name, tables, spark, servers)
            found, state, last = _lost_of(stream)
            if found is None or last is None or state is None:
                continue
            coordinated.confirm()
            _go_on(stream, state, last, found)
            accepted.append(found)
    return accepted


def _lost_of(stream: Stream) -> tuple[Accepted | None, TopicState | None, Checkpoint | None]:
    last = stream.tables.checkpoints.read(stream.app_name)
    if last is None:
        return None, None, None
    state = stream.topic()
    problem = problem_of(state, last.batch.messages, is_read=last.finished)
    if problem is None:
        return None, state, last
    lost = go_on(state, last.batch.messages)[1]
    if not last.finished:  # its rows are written; of its messages that make none, nothing is known
        messages = last.batch.messages
        lost = [Lost(messages.topic, each, first, messages.end[each]) for each, first in sorted(messages.start.items())]
    return Accepted(stream.name, problem.problem, lost), state, last


def _go_on(stream: Stream, state: TopicState, last: Checkpoint, found: Accepted) -> None:
    tables, batch = stream.tables, last.batch
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "offset": each.first,
            "reason": f"{LOST}{_until(each)}",
            "batch_id": batch.batch_id + 1,
        }
        for each in found.lost
        if each.end is None or each.end > each.first
    ]
    if rows:
        app_id = tables.lake.app_id(stream.name, COMMIT)
        tables.append_few(DEAD_LETTER, rows, app_id=app_id, batch_id=batch.batch_id + 1)
    if last.finished:
        after = ended(stream, batch, go_on(state, batch.messages)[0], versions_left_by(stream, last))
    else:  # its other commits are made without messages
        after = replace(last, batch=replace(batch, messages=replace(batch.messages, start=batch.messages.end)))
    tables.checkpoints.move(stream.app_name, last, after)


def _until(lost: Lost) -> str:
    return "this offset and all later ones" if lost.end is None else f"all offsets before {lost.end}"


SEND_SECONDS = 60.0
LETTERS_AT_ONCE = 1_000


@dataclass(frozen=True)
class Letters:
    """The dead letters of a topic for one reason.

    Attributes:
        first: Partition and offset of the first one.
        last: Partition and offset of the last one.
        example: The text of the last one that has a text; None if an erasure has removed them all, or there never was.
        can_be_sent: Whether they can be sent again.
    """

    topic: str
    reason: str
    count: int
    first: tuple[int, int]
    last: tuple[int, int]
    example: str | None
    can_be_sent: bool


def dead_letters(tables: LakeTables) -> list[Letters]:
    """Return the dead letters of a lake, by topic and reason. Starts no Spark."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in _rows(tables):
        found[row["topic"], row["reason"]].append(row)
    letters = []
    for (topic, reason), rows in sorted(found.items()):
        places = sorted((row["partition"], row["offset"]) for row in rows)
        texts = [row["message"] for row in rows if row["message"] is not None]
        can_be_sent = bool(texts) and _is_mistake(reason)
        example = texts[-1] if texts else None
        letters.append(Letters(topic, reason, len(rows), places[0], places[-1], example, can_be_sent))
    return letters


def send_again(tables: LakeTables, servers: str) -> int:
    """Send the dead letters of messages that were wrong to their topics again; return how many.

    Args:
        servers: Kafka's `host:port`, comma-separated.

    Raises:
        ServiceError: Kafka does not take them. Those that it has not confirmed stay dead letters.
    """
    rows = [row for row in _rows(tables) if row["message"] is not None and _is_mistake(row["reason"])]
    topics = {tables.lake.topic(name) for name in STREAMS}
    rows = [row for row in rows if row["topic"] in topics]
    refused: list[object] = []

    def on_delivery(error: object, _: object) -> None:
        refused.extend([error] if error else [])

    producer = Producer({**client(servers), "enable.idempotence": True})
    for start in range(0, len(rows), LETTERS_AT_ONCE):
        part = rows[start : start + LETTERS_AT_ONCE]
        try:
            for row in part:
                # The same partition, so that requests keep their order.
                producer.produce(
                    row["topic"], row["message"].encode(), partition=row["partition"], on_delivery=on_delivery
                )
        except KafkaException as error:
            raise kafka_error(servers, error) from error
        if producer.flush(SEND_SECONDS) or refused:
            raise ServiceError(
                f"Kafka at {servers} has not taken all messages within {SEND_SECONDS:.0f} s.",
                remedy="Look at its log, then run the command again: a message that comes twice makes one row.",
            )
        places: dict[tuple[str, int], list[int]] = defaultdict(list)
        for row in part:
            places[row["topic"], int(row["partition"])].append(int(row["offset"]))
        for (topic, partition), offsets in places.items():
            of_partition = f"topic = '{topic}' and partition = {partition}"
            numbers = ", ".join(map(str, sorted(offsets)))
            open_table(tables.location(DEAD_LETTER)).delete(f"{of_partition} and offset in ({numbers})")
    return len(rows)


def _is_mistake(reason: str) -> bool:
    return reason not in NO_MISTAKES and not reason.startswith(LOST)


def _rows(tables: LakeTables) -> list[dict[str, Any]]:
    columns = ["topic", "partition", "offset", "reason", "message"]
    rows: list[dict[str, Any]] = read_rows(open_table(tables.location(DEAD_LETTER)), columns).to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))
