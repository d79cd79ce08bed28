"""Streams of a lake that run on, each as a query of Spark Structured Streaming in a driver of their own.

Spark says when a batch comes, and up to which offsets it may reach. What it reads follows from the lake's checkpoint,
as in every other turn: a batch that a turn has read already is offered in vain, and without Spark's own checkpoint
nothing is lost or read twice. Without messages Spark has no batch; then the driver takes a turn when the stream's
interval is over, or when another stream waits for it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kazoo.exceptions import KazooException
from kazoo.protocol.states import KazooState

from lake_assets.connections.kafka import spark_options
from lake_assets.connections.spark import open_spark
from lake_assets.connections.zookeeper import zookeeper_client
from lake_assets.coordination import JobCoordinator
from lake_assets.coordination.turn_requests import LockState, read_lock_state
from lake_assets.engagement.model.lake import StreamName
from lake_assets.engagement.model.offsets import Offsets
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.streams.batch import Stream
from lake_assets.engagement.streams.turn import TurnReport, coordinator, open_stream, take_turn
from lake_assets.errors import LakeError, ServiceError, UsageError, chain_text, first_line

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lake_assets.settings import Settings

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
