"""Accepting that messages of a lake are lost: what is lost is recorded, and its streams go on with what Kafka has.

So it is when Kafka has removed messages before a stream has read them, when a topic was deleted and created again, and
when a lake names another topic than before. What is lost stands in the table `dead_letter`, a row for each partition.
If the process is killed anywhere, the command can be given again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Checkpoint
from lake_assets.engagement.model.lake import STREAMS, StreamName
from lake_assets.engagement.model.offsets import Lost, TopicState, go_on, problem_of
from lake_assets.engagement.model.table_schemas import DEAD_LETTER, DEAD_LETTER_COLUMNS
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.model.turn_order import coordinator_of
from lake_assets.engagement.streams.batch import Stream, ended, versions_left_by
from lake_assets.engagement.streams.turn import open_stream

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
            _go_on(stream, spark, state, last, found)
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


def _go_on(stream: Stream, spark: SparkSession, state: TopicState, last: Checkpoint, found: Accepted) -> None:
    tables, batch = stream.tables, last.batch
    rows = [
        (each.topic, each.partition, each.first, f"{LOST}{_until(each)}", None, batch.batch_id + 1)
        for each in found.lost
        if each.end is None or each.end > each.first
    ]
    if rows:
        schema = ", ".join(f"{name} {kind}" for name, kind in DEAD_LETTER_COLUMNS.items())
        app_id = tables.lake.app_id(stream.name, COMMIT)
        tables.append(DEAD_LETTER, spark.createDataFrame(rows, schema), app_id=app_id, batch_id=batch.batch_id + 1)
    if last.finished:
        after = ended(stream, batch, go_on(state, batch.messages)[0], versions_left_by(stream, last))
    else:  # its other commits are made without messages
        after = replace(last, batch=replace(batch, messages=replace(batch.messages, start=batch.messages.end)))
    tables.checkpoints.move(stream.app_name, last, after)


def _until(lost: Lost) -> str:
    return "this offset and all later ones" if lost.end is None else f"all offsets before {lost.end}"
