"""A stream's turn: take the lock, get the turn from the coordinator, run a micro-batch, record it as done, unlock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lake_assets.base.failpoints import reach_in_batch
from lake_assets.coordination import JobCoordinator
from lake_assets.engagement.model.lake import StreamName
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.model.turn_order import coordinator_of
from lake_assets.engagement.streams.batch import BatchReport, Stream, run_batch
from lake_assets.engagement.streams.ingestion import ingestion
from lake_assets.engagement.streams.mutation import mutation
from lake_assets.engagement.streams.retention import retention
from lake_assets.errors import BatchFailed, CoordinationError, MessagesLost

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

STREAM_FACTORIES: Mapping[StreamName, Callable[[LakeTables, SparkSession, str], Stream]] = {
    "ingestion": ingestion,
    "mutation": mutation,
    "retention": retention,
}


@dataclass(frozen=True)
class TurnReport:
    """The result of a turn.

    Attributes:
        predecessor: Who had the turn before; None if nobody had.
        batch: None if no batch was due.
        waited: Seconds until the turn began.
    """

    predecessor: str | None
    batch: BatchReport | None
    waited: float = field(default=0.0, compare=False)


def open_stream(name: StreamName, tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """Return a stream of a lake.

    Args:
        servers: Kafka's `host:port`, comma-separated.
    """
    return STREAM_FACTORIES[name](tables, spark, servers)


def coordinator(stream: Stream, zk: KazooClient, spark: SparkSession, *, timeout: float) -> JobCoordinator:
    """Return the job coordinator of a stream.

    Args:
        zk: A started client.
        timeout: Seconds to wait for the lock.
    """
    return coordinator_of(stream.name, stream.tables, zk, spark, timeout=timeout)


def take_turn(
    stream: Stream, coordinated: JobCoordinator, *, max_wait: float, clock: Callable[[], float] = time.monotonic
) -> TurnReport:
    """Take a turn with at most one batch.

    If the turn stops before its end, nobody else gets a turn until this stream has continued it. If its messages are
    lost, and nothing is open, the turn ends, and the error comes then: no other stream waits for them.

    Args:
        max_wait: Seconds to wait for the turn.

    Raises:
        CoordinationError: The turn was refused, or the lock was lost.
        StreamError: As for `run_batch`. The coordinator's state then says what is wrong with a batch that failed.
    """
    started_at = clock()
    lost: MessagesLost | None = None
    report: BatchReport | None = None
    with coordinated.turn(max_wait=max_wait) as predecessor:
        waited = clock() - started_at
        try:
            report = run_batch(stream, coordinated)
        except (BatchFailed, MessagesLost) as error:
            last = stream.tables.checkpoints.read(stream.app_name)
            if isinstance(error, BatchFailed) or (last is not None and not last.finished):
                with suppress(CoordinationError):
                    coordinated.explain(error.problem.removesuffix("."))
                raise
            lost = error
        reach_in_batch("before-unlock", stream.commit_names)
    reach_in_batch("after-unlock", stream.commit_names)
    if lost is not None:
        raise lost
    return TurnReport(predecessor, report, waited)
