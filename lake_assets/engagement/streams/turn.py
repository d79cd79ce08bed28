"""A stream's turn: take the lock, get the turn from the coordinator, run a micro-batch, record it as done, unlock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lake_assets.base.failpoints import reach_in_batch
from lake_assets.coordination import JobCoordinator
from lake_assets.coordination.rules import Refused, decide
from lake_assets.coordination.turn_requests import read_lock_state
from lake_assets.engagement.model.lake import STREAMS, StreamName
from lake_assets.engagement.model.offsets import Offsets
from lake_assets.engagement.model.table_schemas import ENGAGEMENT
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.model.turn_order import coordinator_of, turn_order
from lake_assets.engagement.notifications.change_reader import BatchEffect, batch_effect
from lake_assets.engagement.notifications.notify import DATA_COMMIT
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
        seconds: Step → the time that it took: wait, each commit of the batch, and the rest.
        effect: What the batch has done, in all its turns; None without a batch.
    """

    predecessor: str | None
    batch: BatchReport | None
    waited: float = field(default=0.0, compare=False)
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    effect: BatchEffect | None = field(default=None, compare=False)


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
    stream: Stream,
    coordinated: JobCoordinator,
    *,
    max_wait: float,
    until: Offsets | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> TurnReport:
    """Take a turn with at most one batch.

    If the turn stops before its end, nobody else gets a turn until this stream has continued it. If its messages are
    lost, and nothing is open, the turn ends, and the error comes then: no other stream waits for them.

    Args:
        max_wait: Seconds to wait for the turn.
        until: Ends beyond which the batch reads nothing, as for `next_range`.
        sleep: Waits between two tries to get the turn.

    Raises:
        UsageError: The lake is paused.
        CoordinationError: The turn was refused, or the lock was lost.
        StreamError: As for `run_batch`. The coordinator's state then says what is wrong with a batch that failed.
    """
    started_at = clock()
    lost: MessagesLost | None = None
    report: BatchReport | None = None
    with coordinated.turn(max_wait=max_wait, sleep=sleep) as predecessor:
        waited = clock() - started_at
        try:
            report = run_batch(stream, coordinated, until=until)
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
    if report is None:
        return TurnReport(predecessor, report, waited)
    rest = clock() - started_at - waited - sum(report.seconds.values())
    seconds = {"wait": waited, **report.seconds, "rest": rest}
    commit = report.commits.get(DATA_COMMIT)
    if commit is None and report.resumed:
        app_id = stream.tables.lake.app_id(stream.name, DATA_COMMIT)
        batch = report.batch
        since = batch.reads[ENGAGEMENT]
        commit = stream.tables.commit_of(ENGAGEMENT, app_id=app_id, batch_id=batch.batch_id, since=since)
    return TurnReport(
        predecessor,
        report,
        waited,
        {step: round(took, 3) for step, took in seconds.items()},
        batch_effect(stream.tables, stream.name, report.batch, commit),
    )


def take_due_turns(
    tables: LakeTables,
    names: Collection[StreamName],
    spark: SparkSession,
    zk: KazooClient,
    servers: str,
    *,
    max_wait: float,
) -> Iterator[tuple[Stream, TurnReport]]:
    """Take turns of streams, in an order that the coordinator grants, until all messages that are there now are read.

    Each stream has a turn at least once: without a message, too, because the next one waits for it.

    Args:
        names: Whose turns are taken.
        zk: A started client.
        servers: Kafka's `host:port`, comma-separated.
        max_wait: Seconds to wait for each turn.

    Yields:
        Each stream after its turn.

    Raises:
        MessagesLost: After the turns of the others.
        LakeError: As for `take_turn`.
    """
    streams = {name: open_stream(name, tables, spark, servers) for name in STREAMS if name in names}
    ends = {name: stream.topic().end for name, stream in streams.items()}
    lost: dict[StreamName, MessagesLost] = {}
    order = turn_order(tables.lake)
    behind = dict(streams)
    while behind:
        waiting = dict(streams)
        while waiting:
            last = read_lock_state(zk, tables.lake.lock).last
            granted = [name for name in waiting if not isinstance(decide(order[name], last, {}), Refused)]
            stream = waiting.pop(granted[0] if granted else next(iter(waiting)))
            try:
                report = take_turn(stream, coordinator(stream, zk, spark, timeout=max_wait), max_wait=max_wait)
            except MessagesLost as error:
                lost[stream.name] = error
            else:
                yield stream, report
        behind = {
            name: stream for name, stream in streams.items() if name not in lost and _is_behind(stream, ends[name])
        }
    for loss in lost.values():
        raise loss


def _is_behind(stream: Stream, ends: Offsets) -> bool:
    """Return whether a stream has not read all messages up to some ends, exclusive."""
    last = stream.tables.checkpoints.read(stream.app_name)
    read = {} if last is None else last.batch.messages.end
    return any(read.get(partition, 0) < end for partition, end in ends.items())
