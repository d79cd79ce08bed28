"""Queries over served tables: one SELECT, by DuckDB on the routed segments, in a process of its own.

The query's process (`query_worker.py`) says which tables the query reads; all but served ones are refused before
anything is read. A query uses one version of the lineage from start to end, under a lease. A file is compared with its
registered checksum before this process reads it the first time, and again when its inode, its size or its times of
change differ. The query's process can read only the files that its lease covers: no other file, no network, no
extension, no setting, no variable of Python. The operating system limits the process. This side reads the answer within
limits of time, rows and memory, and then kills the process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa

from lake_assets.connections.storage import sha256_of
from lake_assets.errors import (
    SegmentDamaged,
    ServingError,
    lineage_busy,
    not_served,
    query_refused,
    query_stopped,
    segment_damaged,
)
from lake_assets.serving.query_worker import ERROR, REFUSED, STREAM, TO_QUERY, Question
from lake_assets.serving.registry import MAX_TRIES, Registry, States, is_table
from lake_assets.serving.store import Lease, Leases, SegmentFiles
from lake_assets.serving.store import QueryLimits as QueryLimits

Identity = tuple[int, int, int, int, int]
Identities = dict[str, Identity | None]


class CheckedFiles:
    """The segment files that this process has compared with their registered checksums."""

    def __init__(self, registry: Registry, files: SegmentFiles) -> None:
        self._registry = registry
        self._files = files
        self._known: dict[str, Identities] = {}

    def check(self, table: str, segments: Iterable[str], *, seconds_left: Callable[[], float]) -> bool:
        """Compare the files of segments that are not known yet.

        Args:
            table: The table.
            segments: All that readers see of it.
            seconds_left: Until the query has to end.

        Returns:
            False if a segment is not registered any more: then readers see others by now.

        Raises:
            SegmentDamaged: A file is gone, or is not what was pushed.
            TimeoutError: The time has passed.
        """
        known = self._known.setdefault(table, {})
        found = {}
        for name in segments:
            self._files.fetch(table, name)
            found[name] = _identity(self._files.path(table, name))
        unknown = [name for name, identity in found.items() if identity is None or known.get(name) != identity]
        checksums = {info.name: info.sha256 for info in self._registry.infos(table, unknown)}
        if len(checksums) < len(unknown):
            return False
        for name in unknown:
            if seconds_left() <= 0:
                raise TimeoutError
            try:
                checksum = sha256_of(self._files.path(table, name))
            except OSError as error:
                raise segment_damaged(table, name) from error
            if checksum != checksums[name]:
                raise segment_damaged(table, name)
            known[name] = found[name]  # one by one: a query that is stopped leaves less to the next one
        for name in known.keys() - found.keys():
            known.pop(name, None)  # another query may have removed it
        return True


def _identity(file: Path) -> Identity | None:
    """None if there is no such file. Unlike the time of the content, that of the inode cannot be set by a program."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@dataclass(frozen=True)
class Pinned:
    """Tables as they were at one moment.

    Attributes:
        files: Of each table.
        versions: Of each table's lineage.
        lease: Under which the files may be read.
    """

    files: Mapping[str, tuple[Path, ...]]
    versions: Mapping[str, int | None]
    lease: Lease

    def paths(self) -> dict[str, list[str]]:
        """Return the paths of each table's files."""
        found = {}
        for table, files in self.files.items():
            found[table] = [str(file) for file in files]
        return found


class Broker:
    """Pins served tables for readers. It writes only leases."""

    def __init__(self, registry: Registry, files: SegmentFiles, leases: Leases) -> None:
        self.registry = registry
        self._files = files
        self._leases = leases
        self._checked = CheckedFiles(registry, files)
        self._spellings: dict[str, str] = {}

    def named(self, names: Iterable[str]) -> list[str]:
        """Return the served tables that names in lower case mean: SQL ignores case. Unknown names stay as they are.

        Tables are never removed, so what is known is not read again.
        """
        wanted = sorted(names)
        if not self._spellings.keys() >= set(wanted):
            self._spellings = {table.lower(): table for table in self.registry.tables()}
        return [self._spellings.get(name, name) for name in wanted]

    @contextmanager
    def pin(self, *tables: str, seconds: float) -> Iterator[Pinned]:
        """Pin the current state of tables for the block.

        Tables that are switched together are read together, either before or after the switch. The lease and the
        lineage are read in one round trip.

        Args:
            tables: To be read.
            seconds: Within which the block has to end.

        Raises:
            ServingError: There is no such table, or readers see nothing of it.
        """
        invalid = {name for name in tables if not is_table(name)}
        self._refuse_unknown(invalid)
        with self._leases.lease(tables, seconds=seconds, read=lambda: self._routed(tables, seconds)) as (lease, states):
            yield self._pinned(states, lease)

    def checked(self, pinned: Pinned) -> Pinned:
        """Compare the pinned files with their registered checksums, those that this process has not compared yet.

        Returns:
            The tables as they are now, under the same lease, if segments were given up meanwhile; otherwise the same.

        Raises:
            SegmentDamaged: A file is gone, or is not what was pushed.
            ServingError: The lease was lost.
            TimeoutError: The time of the lease has passed.
            ServingError: Other clients kept writing the lineage.
        """
        lease = pinned.lease
        for _ in range(MAX_TRIES):
            names = {table: [file.stem for file in files] for table, files in pinned.files.items()}
            try:
                if all(
                    self._checked.check(table, names[table], seconds_left=lambda: lease.seconds_left) for table in names
                ):
                    return pinned
            except SegmentDamaged:
                lease.confirm()  # without the lease, files may be gone
                raise
            pinned = self._pinned(self._routed(pinned.files, lease.seconds_left), lease)
        raise lineage_busy(pinned.files, MAX_TRIES)

    def _routed(self, tables: Iterable[str], seconds: float) -> States:
        """The states of tables, all of which readers see something of."""
        states = self.registry.read(*tables, seconds=seconds)
        self._refuse_unknown({name for name, state in states.items() if not state.routed})
        return states

    def _refuse_unknown(self, names: set[str]) -> None:
        if names:
            served = set(self.registry.tables()) - names
            raise not_served(min(names), served)

    def _pinned(self, states: States, lease: Lease) -> Pinned:
        files = {}
        versions = {}
        for table, state in states.items():
            files[table] = tuple(self._files.path(table, segment) for segment in sorted(state.routed))
            versions[table] = state.version
        return Pinned(files, versions, lease)


ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""For the process that forks: no library may start a thread when it is imported."""


class Workers:
    """Starts a process for each question.

    They are forked by a process that has imported what they need, and has no thread. It is started for the first one,
    and again if it has died.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._forker: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """Yield the connection to a new process for the block. It raises `EOFError` or `ConnectionError` if it dies."""
        ours, theirs = Pipe()
        read, write = os.pipe()
        try:
            try:
                self._fork(theirs.fileno(), read)
            finally:
                theirs.close()
                os.close(read)
            yield ours
        finally:
            ours.close()
            os.close(write)  # which ends the process

    def _fork(self, *descriptors: int) -> None:
        with self._lock:
            if self._forker is not None:
                process, connection = self._forker
                try:
                    socket.send_fds(connection, [b"."], descriptors)
                    return
                except ConnectionError:
                    connection.close()
                    process.wait()
            connection, theirs = socket.socketpair()
            with theirs:
                process = subprocess.Popen(
                    (sys.executable, "-m", "lake_assets.serving.query_worker"),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    # without settings: a worker needs none, and some are secret
                    env={name: os.environ[name] for name in os.environ if not name.startswith("LAKE_")} | ONE_THREAD,
                    start_new_session=True,  # Ctrl-C ends the server, and so all of them
                )
            self._forker = process, connection
            socket.send_fds(connection, [b"."], descriptors)


WORKERS = Workers()
"""The workers of this process."""


MB = 1_000_000

VALUE_BYTES = 100
"""Approximate size of a value of a result in Python: a time takes 48, a decimal 104, each with a reference to it."""


@dataclass(frozen=True)
class Result:
    """The result of a query.

    Attributes:
        columns: Their names.
        types: Their Arrow types.
        rows: In the order of the query; Python values, times in UTC.
        truncated: Whether rows were left out.
        versions: Of the lineage of each table.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    truncated: bool
    versions: Mapping[str, int | None]


def query(broker: Broker, sql: str, limits: QueryLimits) -> Result:
    """Run one SELECT over served tables, all read as of one moment.

    Raises:
        ServingError: The query is not allowed, or DuckDB cannot run it.
        ServingError: The query exceeded its limits, or its files were lost.
        SegmentDamaged: A file is gone, or is not what was pushed.
        ServingError: There is no such table, or readers see nothing of it.
    """
    ends = time.monotonic() + limits.seconds
    try:
        with WORKERS.one() as worker:
            tables = broker.named(_tables(worker, sql, limits))
            with broker.pin(*tables, seconds=ends - time.monotonic()) as pinned:
                result = _result(worker, limits, broker.checked(pinned))
                pinned.lease.confirm()
                return result
    except TimeoutError:
        raise query_stopped(
            f"The query took longer than {limits.seconds:g} s.", remedy="Read less, or raise LAKE_QUERY_SECONDS."
        ) from None
    except MemoryError:
        raise _too_large(limits) from None
    except (EOFError, ConnectionError) as error:
        raise query_stopped(
            f"The query's process died: it needed more than {limits.memory_mb} MB, or it was killed.",
            remedy="Run the query again; read less, or raise LAKE_QUERY_MB.",
        ) from error


def _tables(worker: Connection, sql: str, limits: QueryLimits) -> list[str]:
    """Ask the question; return the tables of the query, as `tables_of` has them."""
    question = Question(
        sql=sql,
        threads=limits.threads,
        memory_mb=limits.memory_mb,
        cpu_seconds=limits.threads * limits.seconds + 1,
    )
    worker.send_bytes(json.dumps(question).encode())
    kind, content = _message(worker, limits, limits.seconds)
    said = bytes(content).decode()
    if kind == REFUSED:
        raise query_refused(said, remedy=TO_QUERY)
    if kind == ERROR:
        raise _meaning(said, limits)
    tables: list[str] = json.loads(said)
    return tables


def _result(worker: Connection, limits: QueryLimits, pinned: Pinned) -> Result:
    """Read rows up to the limit. The worker sends batches without being asked, so it computes some more of them."""
    worker.send_bytes(json.dumps(pinned.paths()).encode())
    streams = _streams(worker, limits, pinned)
    schema = next(streams).schema
    rows: list[tuple[Any, ...]] = []
    size = 0
    for stream in streams:
        batch = stream.read_next_batch()
        size += batch.nbytes
        size += sum(_python_bytes(column) for column in batch.columns)
        if size > limits.memory_mb * MB:
            raise _too_large(limits)
        rows += _converted(batch)
        if len(rows) > limits.rows:
            break
    return Result(
        columns=tuple(schema.names),
        types=tuple(str(field.type) for field in schema),
        rows=rows[: limits.rows],
        truncated=len(rows) > limits.rows,
        versions=pinned.versions,
    )


def _streams(worker: Connection, limits: QueryLimits, pinned: Pinned) -> Iterator[pa.RecordBatchStreamReader]:
    """The first stream has only the columns, each further one a batch. An error of the worker is raised."""
    while True:
        kind, content = _message(worker, limits, pinned.lease.seconds_left)
        if kind == ERROR:
            pinned.lease.confirm()  # without the lease, files may be gone
            raise _meaning(bytes(content).decode(), limits, *chain.from_iterable(pinned.paths().values()))
        if kind != STREAM:
            return
        yield pa.ipc.open_stream(content)


def _message(worker: Connection, limits: QueryLimits, seconds: float) -> tuple[bytes, memoryview]:
    """Return the kind of the worker's next message, and its content.

    Raises:
        TimeoutError: It did not arrive within the seconds.
        MemoryError: It has more bytes than the query may take; none of them was read.
    """
    if not worker.poll(max(0.0, seconds)):
        raise TimeoutError
    try:
        said = memoryview(worker.recv_bytes(limits.memory_mb * MB))
    except ConnectionError:
        raise
    except OSError as error:  # of a length that is not allowed
        raise MemoryError from error
    return bytes(said[:1]), said[1:]


def _python_bytes(array: pa.Array) -> int:
    """Approximate size of its values in Python, in addition to their bytes. Elements of nested values count, too."""
    kind = array.type
    parts: list[pa.Array] = []
    longest = 0
    if pa.types.is_union(kind):
        parts = [array.field(number) for number in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        parts = [array.keys, array.items]
    elif pa.types.is_nested(kind):
        parts = array.flatten() if pa.types.is_struct(kind) else [array.flatten()]
    elif pa.types.is_dictionary(kind):  # an enum: each value becomes a string of its own
        longest = max(map(len, array.dictionary.to_pylist()), default=0)
    own_bytes = len(array) * (VALUE_BYTES + longest)
    return own_bytes + sum(_python_bytes(part) for part in parts)


def _converted(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Python has no infinite time, and none after 9999."""
    try:
        columns = [column.to_pylist() for column in batch.columns]
        return list(zip(*columns, strict=True))
    except (ValueError, OverflowError) as error:
        raise query_refused(
            f"A value of the result cannot be converted: {error}.", remedy="Cast it to varchar in the query."
        ) from error


def _meaning(said: str, limits: QueryLimits, *files: str) -> ServingError:
    """Classify an error of DuckDB by its first words. files: paths that it has read."""
    kind = said.split(":")[0]
    if kind == "Out of Memory Error":
        return _too_large(limits)
    # Errors of the Parquet reader do not start with the usual `... Error:`.
    of_a_file = not kind.endswith(" Error") or any(path in said for path in files)
    if kind in ("IO Error", "Permission Error", "INTERNAL Error") or of_a_file:
        return query_stopped(  # without DuckDB's message, which contains paths
            "Segments cannot be read: their files are gone, or damaged.",
            remedy="Run the query again. If it fails again, push again.",
        )
    return query_refused(f"DuckDB could not run the query: {said.splitlines()[0]}", remedy="Correct the query.")


def _too_large(limits: QueryLimits) -> ServingError:
    return query_stopped(
        f"The query needs more than {limits.memory_mb} MB.", remedy="Read less, or raise LAKE_QUERY_MB."
    )
