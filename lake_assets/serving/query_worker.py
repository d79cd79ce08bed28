"""The processes that run queries: each answers one question, under limits of the operating system, and ends.

`python -m lake_assets.serving.query_worker` is started by `query.py`. It opens a database,
without a thread, and forks a worker for each pair of descriptors that it receives on its standard input, a Unix
socket: the worker's socket, and the read end of a pipe. When the other end of the pipe is closed, it kills the
worker; when its own socket is closed, it kills all and ends. The kernel closes both when the server dies, so no
worker outlives it. A fork takes a third of the processor time of a new database.

A worker reads JSON, its `Question`. Each message of its answer begins with its kind, a byte. The first `STREAM` is an
Arrow IPC stream without rows, each further one has one batch.

DuckDB's `memory_limit` covers what its buffer manager allocates. Lists and strings are allocated elsewhere:
`unnest(range(2000000000))` takes 20 GB with any `memory_limit`. So the process is limited, too: RLIMIT_DATA and
RLIMIT_AS to what it has before the query and `ROOM` times the limit of the query. RLIMIT_AS alone is not enough:
address space that is reserved already may still be filled. macOS enforces neither; there only the limit of time holds.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn, TypedDict

import duckdb
import pyarrow as pa

BATCH_ROWS = 256
STREAM, END, ERROR = b"S", b"E", b"X"

ROOM = 2
"""How many times the query's memory limit: once for DuckDB's buffer manager, once for other allocations."""

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent ends."""

REAP_SECONDS = 0.1
"""Between two checks whether a killed worker has ended; a worker with much memory takes a moment."""

CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    "threads": 1,  # the thread that calls
    "async_threads": 0,  # 8 by default, for input and output
}
"""Configuration of a database that starts no thread, so that its process can be forked."""


class Question(TypedDict):
    """A query. files: paths of each table's segments. cpu_seconds: of all threads together."""

    sql: str
    files: Mapping[str, Sequence[str]]
    threads: int
    memory_mb: int
    cpu_seconds: float


def main() -> NoReturn:
    """Fork workers until the server closes its end."""
    server = socket.socket(fileno=os.dup(0))
    database = connect()
    _warm_up(database)
    workers: dict[int, int] = {}  # the read end of its pipe: the worker
    killed: set[int] = set()
    while True:
        ready, _, _ = select.select([server.fileno(), *workers], [], [], REAP_SECONDS if killed else None)
        _reap(killed)
        for closed in workers.keys() & set(ready):
            killed.add(_kill(workers.pop(closed)))
            os.close(closed)
        if server.fileno() in ready:
            _, received, _, _ = socket.recv_fds(server, 1, 2)
            if not received:
                break
            question, pipe = received
            try:
                workers[pipe] = _forked(database, question)
            except OSError:  # no memory for a process: the server reads the end of its socket
                os.close(pipe)
            os.close(question)
    for worker in workers.values():
        _kill(worker)
    os._exit(0)  # DuckDB would print what it has not released


def connect() -> duckdb.DuckDBPyConnection:
    """A database in memory, without tables, in UTC."""
    database = duckdb.connect(config=CLOSED)
    database.execute("set global timezone = 'UTC'")
    return database


def restrict(database: duckdb.DuckDBPyConnection, files: Mapping[str, Sequence[str]], *, memory_mb: int) -> None:
    """Give a database a view of each table, and close it to everything but their files.

    Args:
        database: As `connect` returns it.
        files: Paths of each table's Parquet files.
        memory_mb: Of DuckDB's buffer manager.
    """
    database.execute("set memory_limit = ?", [f"{memory_mb}MB"])
    paths = [path for of_table in files.values() for path in of_table]
    database.execute("set allowed_paths = ?", [paths])
    database.execute("set enable_external_access = false")
    for table, of_table in files.items():
        database.read_parquet(list(of_table)).create_view(table)
        schema, dot, name = table.partition(".")
        if dot:  # `sales.orders` is a table of a schema in SQL, and "sales.orders" is one name
            database.execute(f'create schema if not exists "{schema}"')
            database.execute(f'create view "{schema}"."{name}" as from "{table}"')
    database.execute("set lock_configuration = true")


def _warm_up(database: duckdb.DuckDBPyConnection) -> None:
    """Run a query, so that what is loaded at the first query is loaded before the forks."""
    for _ in _streams(database, "select range, count(*) from range(2) group by all"):
        pass


def _reap(killed: set[int]) -> None:
    """Remove the workers that have ended from the killed ones."""
    for worker in tuple(killed):
        ended, _ = os.waitpid(worker, os.WNOHANG)
        if ended:
            killed.remove(worker)


def _kill(worker: int) -> int:
    """It is a child that nobody has waited for, so its id is its own, even if it has ended."""
    os.kill(worker, signal.SIGKILL)
    return worker


def _forked(database: duckdb.DuckDBPyConnection, question: int) -> int:
    """The id of a new worker, whose only open files are the standard ones. question: its socket, its standard input."""
    worker = os.fork()
    if worker:
        return worker
    try:
        os.dup2(question, 0)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        _answer(database, Connection(0))
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)


def _answer(database: duckdb.DuckDBPyConnection, server: Connection) -> None:
    try:
        question: Question = json.loads(server.recv_bytes())
    except EOFError:
        return
    try:
        database.execute("set threads = ?", [question["threads"]])  # before the limits: they count stacks, too
        _limit_process(question)
        restrict(database, question["files"], memory_mb=question["memory_mb"])
        for stream in _streams(database, question["sql"]):
            server.send_bytes(STREAM + stream)
        server.send_bytes(END)
    except MemoryError as error:
        server.send_bytes(ERROR + f"Out of Memory Error: {error}".encode(errors="replace"))
    except (duckdb.Error, OSError, pa.ArrowException) as error:  # of a later batch: pyarrow's, with DuckDB's words
        with suppress(ConnectionError):  # nobody reads on: the result has as many rows as are wanted
            server.send_bytes(ERROR + str(error).encode(errors="replace"))


def _streams(database: duckdb.DuckDBPyConnection, sql: str) -> Iterator[bytes]:
    (statement,) = database.extract_statements(sql)
    reader = database.sql(statement).to_arrow_reader(BATCH_ROWS)
    yield _ipc_stream(reader.schema)
    for batch in reader:
        yield _ipc_stream(reader.schema, batch)


def _ipc_stream(schema: pa.Schema, *batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _limit_process(question: Question) -> None:
    """Set the limits of the process, from here on. The kernel ends it first if the machine runs out of memory."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, math.ceil(question["cpu_seconds"]))
    if sys.platform == "linux":
        room = ROOM * question["memory_mb"] * 1_000_000
        pages = [int(count) for count in Path("/proc/self/statm").read_text().split()]
        _lower(resource.RLIMIT_AS, pages[0] * resource.getpagesize() + room)
        _lower(resource.RLIMIT_DATA, pages[5] * resource.getpagesize() + room)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without its parent nobody would kill it in time
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def _lower(limit: int, most: int) -> None:
    """Sets a limit, unless the process has a lower one already."""
    _, hard = resource.getrlimit(limit)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(limit, (most, most))


if __name__ == "__main__":
    main()
