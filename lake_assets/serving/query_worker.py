"""The processes that run queries: each answers one question, under limits of the operating system, and ends.

`python -m lake_assets.serving.query_worker` is started by `query.py`. It opens a database,
without a thread, and forks a worker for each pair of descriptors that it receives on its standard input, a Unix
socket: the worker's socket, and the read end of a pipe. When the other end of the pipe is closed, it kills the
worker; when its own socket is closed, it kills all and ends. The kernel closes both when the server dies, so no
worker outlives it. A fork takes a third of the processor time of a new database.

A worker reads JSON, its `Question`. Each message of its answer begins with its kind, a byte. The first one is `TABLES`,
those of the query as JSON, or `REFUSED`. Then it reads the paths of each table's segments, as JSON. The first `STREAM`
is an Arrow IPC stream without rows, each further one has one batch.

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
from typing import Any, NoReturn, TypedDict

import duckdb
import pyarrow as pa

from lake_assets.errors import ServingError, query_refused

BATCH_ROWS = 256
TABLES, REFUSED, STREAM, END, ERROR = b"T", b"R", b"S", b"E", b"X"

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


ALLOWED_TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest"})
"""They read nothing."""

REFUSED_FUNCTIONS = frozenset({"current_setting", "getvariable"})
"""They return settings of the server."""

TO_QUERY = "Write one SELECT over served tables."


def tables_of(sql: str, database: duckdb.DuckDBPyConnection | None = None) -> frozenset[str]:
    """Return the tables that a query names, in lower case, whether or not they are served.

    The tree of a short query may be too large for any machine: DuckDB repeats what `case` compares for each `when`.

    Args:
        sql: The query.
        database: Parses it. Its process has to be limited, unless the query is its user's own.

    Raises:
        ServingError: The query is not allowed, or cannot be parsed.
    """
    database = database or connect()
    nodes = list(_nodes(_parsed(sql, database)))
    with_tables = [entry for node in nodes for entry in (node.get("cte_map") or {}).get("map", [])]
    common = {entry["key"].lower() for entry in with_tables}
    hidden = common and common & _system_views(database)
    if hidden:
        raise _refused(f"{min(hidden)} is a name of DuckDB's own")
    for node in nodes:
        _check_function(node)
    tables = [node["qualified_name"]["path"] for node in nodes if node.get("type") == "BASE_TABLE"]
    paths = [[str(part).lower() for part in path] for path in tables]
    return frozenset(".".join(path) for path in paths if len(path) > 1 or path[0] not in common)


def _parsed(sql: str, database: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise _refused(f"its character {error.start + 1} is half of a pair (U+{ord(sql[error.start]):04X})") from None
    ((found,),) = database.execute("select json_serialize_sql(?::varchar)", [sql]).fetchall()
    try:
        record: dict[str, Any] = json.loads(found)
    except RecursionError:
        raise _refused("it is nested too deeply") from None
    if record.get("error"):
        kind = record["error_type"]
        if kind == "out of memory":
            raise MemoryError
        raise _refused("it is not a SELECT" if kind == "not implemented" else str(record["error_message"]))
    if len(record.get("statements", [])) != 1:
        raise _refused("it is not one statement")
    return record


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a tree, in any order."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)


def _check_function(node: dict[str, Any]) -> None:
    name = str(node.get("function_name", "")).lower()
    if name in REFUSED_FUNCTIONS:
        raise _refused(f"the function {name} is not allowed")
    if node.get("type") == "TABLE_FUNCTION":
        called = str(node["function"]["function_name"])
        if called not in ALLOWED_TABLE_FUNCTIONS:
            raise _refused(f"the table function {called} is not allowed")
    if node.get("type") == "SHOW_REF" and node.get("query") is None:
        raise _refused("it selects something else than rows of served tables")


def _system_views(database: duckdb.DuckDBPyConnection) -> set[str]:
    """DuckDB's own views, which a query could read under a plain name if a common table expression hid the name."""
    found = database.execute("select view_name from duckdb_views() where internal").fetchall()
    return {row[0] for row in found}


def _refused(why: str) -> ServingError:
    return query_refused(f"The query is refused: {why}.", remedy=TO_QUERY)


class Question(TypedDict):
    """A query. cpu_seconds: of all threads together."""

    sql: str
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
    sql = "select range, count(*) from range(2) group by all"
    tables_of(sql, database)
    for _ in _streams(database, sql):
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
        database.execute("set threads = ?", [question["threads"]])  # before the limits: they count stacks, too
        _limit_process(question)
        server.send_bytes(TABLES + json.dumps(sorted(tables_of(question["sql"], database))).encode())
        restrict(database, json.loads(server.recv_bytes()), memory_mb=question["memory_mb"])
        for stream in _streams(database, question["sql"]):
            server.send_bytes(STREAM + stream)
        server.send_bytes(END)
    except EOFError:  # nobody asks, or no table of the query is served
        return
    except ServingError as error:
        server.send_bytes(REFUSED + error.problem.encode())
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
