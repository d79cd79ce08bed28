"""A stream's turn: the lock, the turn granted by the coordinator, a micro-batch, done, unlock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
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

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

OPEN: Mapping[StreamName, Callable[[LakeTables, SparkSession, str], Stream]] = {
    "ingestion": ingestion,
    "mutation": mutation,
    "retention": retention,
}


@dataclass(frozen=True)
class TurnReport:
    """predecessor: who ran before; None if nobody had. batch: None if none was due: then the turn alone was taken.

    waited: seconds until the turn was had.
    """

    predecessor: str | None
    batch: BatchReport | None
    waited: float = field(default=0.0, compare=False)


def open_stream(name: StreamName, tables: LakeTables, spark: SparkSession, servers: str) -> Stream:
    """A stream of a lake, on a Kafka cluster: servers is `host:port`, comma-separated."""
    return OPEN[name](tables, spark, servers)


def coordinator(stream: Stream, zk: KazooClient, spark: SparkSession, *, timeout: float) -> JobCoordinator:
    """The stream's side of the lock of its lake. zk: started. timeout: seconds that it waits for the lock."""
    return coordinator_of(stream.name, stream.tables, zk, spark, timeout=timeout)


def take_turn(
    stream: Stream, coordinated: JobCoordinator, *, max_wait: float, clock: Callable[[], float] = time.monotonic
) -> TurnReport:
    """Take a turn, with one batch at most; max_wait: seconds. Raises what `run_batch` and the coordinator raise.

    A turn that stopped is the stream's to go on with: nobody else gets one before.
    """
    begun = clock()
    with coordinated.turn(max_wait=max_wait) as predecessor:
        waited = clock() - begun
        report = run_batch(stream, coordinated)
        reach_in_batch("before-unlock", stream.process_names)
    reach_in_batch("after-unlock", stream.process_names)
    return TurnReport(predecessor, report, waited)
