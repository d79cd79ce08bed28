"""The dead letters of a lake, by reason; and sending them again when what was wrong is corrected.

A message that is sent again is a new message: it makes a row, or another dead letter. So the former letter goes when it
is sent. If the process is killed between the two, the message may come twice, which makes one row.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, Producer

from lake_assets.connections.kafka import client, kafka_error
from lake_assets.engagement.model.delta_log import open_table, read_rows
from lake_assets.engagement.model.lake import STREAMS
from lake_assets.engagement.model.table_schemas import DEAD_LETTER, NO_MISTAKES
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.streams.accept import LOST
from lake_assets.errors import ServiceError

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
