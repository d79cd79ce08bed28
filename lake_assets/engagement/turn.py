"""A stream's turn: take the lock, get the turn from the coordinator, run a micro-batch, record it as done, unlock.

Streams that run on are queries of Spark Structured Streaming in a driver of their own. Spark says when a batch comes,
and up to which offsets it may reach. What it reads follows from the lake's checkpoint, as in every other turn: a batch
that a turn has read already is offered in vain, and without Spark's own checkpoint nothing is lost or read twice.
Without messages Spark has no batch; then the driver takes a turn when the stream's interval is over, or when another
stream waits for it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kazoo.exceptions import KazooException
from kazoo.protocol.states import KazooState

from lake_assets.base.failpoints import reach_in_batch
from lake_assets.connections.kafka import spark_options
from lake_assets.connections.spark import open_spark
from lake_assets.connections.zookeeper import zookeeper_client
from lake_assets.coordination import JobCoordinator
from lake_assets.coordination.registry import LockState, read_lock_state
from lake_assets.coordination.rules import Refused, decide
from lake_assets.engagement.batch import BatchReport, Stream, run_batch
from lake_assets.engagement.checkpoint import Offsets
from lake_assets.engagement.ingestion import ingestion
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.mutation import mutation
from lake_assets.engagement.notifications import DATA_COMMIT, BatchEffect, batch_effect
from lake_assets.engagement.retention import retention
from lake_assets.engagement.tables import ENGAGEMENT, LakeTables
from lake_assets.engagement.turn_order import coordinator_of, turn_order
from lake_assets.errors import (
    BatchFailed,
    CoordinationError,
    LakeError,
    MessagesLost,
    ServiceError,
    UsageError,
    chain_text,
    first_line,
)

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lake_assets.settings import Settings

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
        LakeError: As for `run_batch`. The coordinator's state then says what is wrong with a batch that failed.
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


LOOK_SECONDS = 1.0
"""Between two looks at the queries and at who waits."""

RETRY_SECONDS = 10.0
"""After a failure, the query is started again."""

LOCK_SECONDS = 10.0
"""How long one attempt to get the lock lasts; then the stream looks whether it is to stop."""

OnTurn = Callable[[StreamName, TurnReport], None]
OnError = Callable[[StreamName, str], None]


class _Stopping(Exception):
    """The driver ends while a stream waits for its turn."""


def run_streams(
    settings: Settings,
    tables: LakeTables,
    seconds: Mapping[StreamName, float],
    *,
    servers: str,
    hosts: str,
    stop: threading.Event,
    started: Callable[[], None],
    on_turn: OnTurn,
    on_error: OnError,
) -> None:
    """Run streams of a lake until `stop` is set. A turn that has begun is ended.

    A stream that fails is tried again every `RETRY_SECONDS`, and hinders no other one.

    Args:
        settings: Of the data directory, in which Spark keeps its checkpoints.
        seconds: The streams, each with the interval between its turns.
        servers: Kafka's `host:port`, comma-separated.
        hosts: Of the ZooKeeper ensemble.
        started: Called once when Spark has started.
        on_turn: Called after each turn.
        on_error: Called with what is wrong when a stream fails for another reason than before.

    Raises:
        ServiceError: Spark does not start, or ZooKeeper does not answer at the start.
    """
    logging.getLogger("py4j.clientserver").disabled = True  # it logs what a batch raises, which is reported below
    spark = open_spark(settings, in_process=True)
    with ExitStack() as opened:
        opened.callback(spark.stop)
        looking = opened.enter_context(zookeeper_client(hosts))
        streams = []
        for name, interval in seconds.items():
            session = spark.newSession()  # the ids of a commit stand in a session's configuration
            stream = open_stream(name, tables, session, servers)
            zk = opened.enter_context(zookeeper_client(hosts))
            coordinated = coordinator(stream, zk, session, timeout=LOCK_SECONDS)
            folder = settings.home / "streams" / tables.lake.name
            running = _ContinuousStream(
                stream, session, coordinated, servers, folder, interval, settings.turn_seconds, stop, on_turn, on_error
            )
            opened.callback(running.end)
            streams.append(running)
        started()
        while not stop.wait(LOOK_SECONDS):
            seen = _look(looking, tables.lake.lock)
            for running in streams:
                running.look(seen)


def _look(zk: KazooClient, lock: str) -> LockState | None:
    """Return what the coordinator's registry shows; None while it cannot be read: turns that are taken say why."""
    try:
        return read_lock_state(zk, lock) if zk.state == KazooState.CONNECTED else None
    except (LakeError, KazooException):
        return None


@dataclass
class _ContinuousStream:
    """A stream's query. All of its turns are taken by one thread.

    Attributes:
        session: A session of Spark of its own.
        folder: Of Spark's checkpoints, one for each generation of the topic.
        interval: Seconds between two turns.
        max_wait: Seconds to wait for a turn; then the query fails, and is started again.
    """

    stream: Stream
    session: SparkSession
    coordinated: JobCoordinator
    servers: str
    folder: Path
    interval: float
    max_wait: float
    stop: threading.Event
    on_turn: OnTurn
    on_error: OnError
    _turns: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1), init=False)
    _query: StreamingQuery | None = field(default=None, init=False)
    _offered: bool = field(default=False, init=False)
    _idle: Future[TurnReport] | None = field(default=None, init=False)
    _turn_at: float = field(default_factory=time.monotonic, init=False)
    _retry_at: float = field(default=0.0, init=False)
    _topic_id: str | None = field(default=None, init=False)
    _read_topic_id: str | None = field(default=None, init=False)
    _error: Exception | None = field(default=None, init=False)
    _told: str = field(default="", init=False)

    def look(self, seen: LockState | None) -> None:
        """Start the query if it has ended, and take a turn without messages if one is needed."""
        if self._query is not None and not self._query.isActive:
            self._fail(self._error or self._query.exception())
            self._query, self._error = None, None
        if self._idle is not None and self._idle.done():
            error, self._idle = self._idle.exception(), None
            if error is not None:
                self._fail(error)
        if self._offered or self._idle is not None or time.monotonic() < self._retry_at:
            return
        if self._query is not None and self._read_topic_id not in (None, self._topic_id):
            self._query.stop()
            self._query = None
        if self._query is None:
            try:
                self._start()
            except Exception as error:  # of Kafka, the store or Spark: the other streams go on
                self._fail(error)
        elif self._is_due or self._is_awaited(seen):
            self._idle = self._turns.submit(self._take, None)

    def end(self) -> None:
        """Wait for the turn that has begun, and stop the query."""
        self._turns.shutdown(wait=True)
        if self._query is not None:
            self._query.stop()

    def _fail(self, error: BaseException | None) -> None:
        """Report a failure, and wait a while."""
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._report(error or ServiceError("Spark has ended its query.", remedy="It is started again."))

    def _report(self, error: BaseException) -> None:
        """Report what is wrong, if it is something else than before."""
        text = str(error) if isinstance(error, LakeError) else first_line(chain_text(error))
        if text != self._told:
            self._told = text
            self.on_error(self.stream.name, text)

    def _start(self) -> None:
        lake = self.stream.tables.lake
        if not self.stream.tables.exist():
            raise ServiceError(f"{lake.name} is not initialised.", remedy=f"Run `lake engagement init {lake.name}`.")
        topic = self.stream.topic()
        self._topic_id = self._read_topic_id = topic.topic_id
        generation = topic.topic_id.translate({ord("/"): "_", ord("+"): "-"})
        state = (self.folder / f"{self.stream.name}-{generation}").absolute()
        options = {
            **spark_options(self.servers),
            "kafka.isolation.level": "read_committed",
            "subscribe": topic.topic,
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",  # the lake's checkpoint knows what is lost
        }

        def batch(_: DataFrame, batch_id: int) -> None:
            self._offered = True
            try:
                self._turns.submit(self._take_all, _ends(state, batch_id, topic.topic)).result()
            except Exception as error:
                self._error = error
                raise
            finally:
                self._offered = False

        messages = self.session.readStream.format("kafka").options(**options).load()
        writer = messages.writeStream.foreachBatch(batch).queryName(self.stream.app_name)
        paced = writer.option("checkpointLocation", f"file:{state}").trigger(
            processingTime=f"{self.interval:g} seconds"
        )
        self._query = paced.start()

    @property
    def _is_due(self) -> bool:
        return time.monotonic() - self._turn_at >= self.interval

    def _is_awaited(self, seen: LockState | None) -> bool:
        """Return whether a stream waits for a turn of this one, as nothing else that it may follow ran last."""
        if seen is None:
            return False
        name = self.coordinated.stream.name
        last = seen.last.name if seen.last is not None else None
        waiting = [accepts for other, accepts in seen.waiting.items() if other != name]
        return any(name in accepts and last not in accepts for accepts in waiting)

    def _take_all(self, ends: Offsets) -> None:
        """Take turns until the lake's checkpoint has come to some ends; one turn, if it has already."""
        while (report := self._take(ends)).batch is not None:
            read = report.batch.batch.messages.end
            if all(read.get(partition, 0) >= end for partition, end in ends.items()):
                return

    def _take(self, until: Offsets | None) -> TurnReport:
        while True:
            if self.stop.is_set():
                raise _Stopping(self.stream.app_name)
            try:
                self.stream.tables.refuse_if_paused()
                break
            except UsageError as paused:  # the query waits, for Spark logs each failure of a query
                self._report(paused)
                self._sleep_unless_stopping(RETRY_SECONDS)
        report = take_turn(
            self.stream, self.coordinated, max_wait=self.max_wait, until=until, sleep=self._sleep_unless_stopping
        )
        self._turn_at = time.monotonic()
        self._told = ""
        if report.batch is not None:
            self._read_topic_id = report.batch.batch.messages.topic_id  # another one after the loss of the former topic
        self.on_turn(self.stream.name, report)
        return report

    def _sleep_unless_stopping(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise _Stopping(self.stream.app_name)


def _ends(state: Path, batch_id: int, topic: str) -> Offsets:
    """Return the end offsets of a batch, exclusive, from the log that Spark writes before it."""
    written = (state / "offsets" / str(batch_id)).read_text().splitlines()[-1]
    return {int(partition): end for partition, end in json.loads(written)[topic].items()}
