"""Queries over served tables: DuckDB on the routed segments, each query in a process that it has for itself.

It can read the files that its lease covers and nothing else: no file, no network, no extension, no setting, no variable
of Python. The operating system limits the process; this side reads its answer within limits of time, rows and memory,
and kills it then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lake_assets.serving.endpoints.broker import Broker, Pinned
from lake_assets.serving.endpoints.query_processes import WORKERS, FrameTooLarge, Worker
from lake_assets.serving.endpoints.query_worker import ERROR, STREAM, Question
from lake_assets.serving.endpoints.sql import tables_of
from lake_assets.serving.errors import QueryRefused, QueryStopped

MB = 1_000_000

VALUE_BYTES = 100
"""What a value of a result takes in Python, about: a time takes 48, a decimal 104, each with a reference to it."""


@dataclass(frozen=True)
class Limits:
    """Of one query. rows: those beyond are left out, and the result says so.

    memory_mb: of DuckDB's buffer manager, and as much again of what else the process allocates; as much, in the server,
    of the result, as Arrow and then as Python has it.
    """

    seconds: float = 30.0
    rows: int = 10_000
    memory_mb: int = 512
    threads: int = 2


@dataclass(frozen=True)
class Result:
    """Rows in the order of the query; Python values, times in UTC. versions: of the lineage of each table."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    truncated: bool
    versions: Mapping[str, int | None]


def query(broker: Broker, sql: str, limits: Limits) -> Result:
    """Runs one SELECT over served tables, all as of one moment. `QueryRefused`, `QueryStopped`, `TableNotServed`."""
    with broker.pin(*sorted(tables_of(sql)), seconds=limits.seconds) as pinned:
        try:
            with WORKERS.one() as worker:
                found = _result(worker, sql, limits, pinned)
        except TimeoutError:
            raise _too_slow(limits) from None
        except FrameTooLarge:
            raise _too_large(limits) from None
        except (EOFError, ConnectionError) as error:
            raise _died(limits) from error
        pinned.lease.confirm()
        return found


def _result(worker: Worker, sql: str, limits: Limits, pinned: Pinned) -> Result:
    """As many rows as are allowed. The worker does not wait to be asked for more, so it computes some of the rest."""
    worker.ask(_question(sql, limits, pinned), seconds_left=lambda: pinned.lease.seconds_left)
    streams = _streams(worker, limits, pinned)
    schema = next(streams).schema
    rows: list[tuple[Any, ...]] = []
    size = 0
    for stream in streams:
        batch = stream.read_next_batch()
        size += batch.nbytes + sum(_python_bytes(column) for column in batch.columns)
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


def _question(sql: str, limits: Limits, pinned: Pinned) -> Question:
    return Question(
        sql=sql,
        files={table: [str(file) for file in of_table] for table, of_table in pinned.files.items()},
        threads=limits.threads,
        memory_mb=limits.memory_mb,
        cpu_seconds=limits.threads * limits.seconds + 1,
    )


def _streams(worker: Worker, limits: Limits, pinned: Pinned) -> Iterator[pa.RecordBatchStreamReader]:
    """The first has the columns, each further one a batch. Raises what an error of the worker means."""
    while True:
        kind, content = worker.frame(most=limits.memory_mb * MB, seconds_left=lambda: pinned.lease.seconds_left)
        if kind == ERROR:
            raise _meaning(content.to_pybytes().decode(), limits, pinned)
        if kind != STREAM:
            return
        yield pa.ipc.open_stream(content)


def _python_bytes(array: pa.Array) -> int:
    """What its values take in Python, about, on top of their bytes. Elements of lists, maps and structs are values."""
    kind = array.type
    parts: list[pa.Array] = []
    longest = 0
    if pa.types.is_union(kind):
        parts = [array.field(number) for number in range(kind.num_fields)]
    elif pa.types.is_nested(kind):
        parts = array.flatten() if pa.types.is_struct(kind) else [array.flatten()]
    elif pa.types.is_dictionary(kind):  # an enum: each value is a string of its own
        longest = max(map(len, array.dictionary.to_pylist()), default=0)
    return len(array) * (VALUE_BYTES + longest) + sum(_python_bytes(part) for part in parts)


def _converted(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Python has no infinite time, and none after 9999."""
    try:
        return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    except (ValueError, OverflowError) as error:
        raise QueryRefused(
            f"A value of the result cannot be told: {error}.", remedy="Cast it to varchar in the query."
        ) from error


def _meaning(said: str, limits: Limits, pinned: Pinned) -> QueryRefused | QueryStopped:
    """What an error of DuckDB means, told by how it begins. `QueryStopped` if the lease was lost: files may be gone."""
    kind = said.split(":")[0]
    pinned.lease.confirm()
    if kind == "Out of Memory Error":
        return _too_large(limits)
    if kind in ("IO Error", "Permission Error", "INTERNAL Error") or _is_of_a_file(said, pinned):
        return QueryStopped(  # without its words: they would tell where files are
            "Segments cannot be read: their files are gone, or damaged.",
            remedy="Ask again; if it happens again, push again.",
        )
    return QueryRefused(f"DuckDB could not run the query: {said.splitlines()[0]}", remedy="Correct it.")


def _is_of_a_file(said: str, pinned: Pinned) -> bool:
    """Whether DuckDB names a segment's file, or says without its usual `... Error:` what its Parquet reader met."""
    files = (str(file) for of_table in pinned.files.values() for file in of_table)
    return not said.split(":")[0].endswith(" Error") or any(file in said for file in files)


def _too_slow(limits: Limits) -> QueryStopped:
    return QueryStopped(f"The query took longer than {limits.seconds:g} s.", remedy="Ask for less.")


def _died(limits: Limits) -> QueryStopped:
    return QueryStopped(
        f"The query's process died: it needs more than {limits.memory_mb} MB, or something has killed it.",
        remedy="Ask for less, or ask again.",
    )


def _too_large(limits: Limits) -> QueryStopped:
    return QueryStopped(f"The query needs more than {limits.memory_mb} MB.", remedy="Ask for less.")
