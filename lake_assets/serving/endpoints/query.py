"""Queries over served tables: DuckDB on the routed segments, each query in a process of its own.

The process can read only the files that its lease covers: no other file, no network, no extension, no setting, no
variable of Python. The operating system limits the process. This side reads the answer within limits of time, rows and
memory, and then kills the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from lake_assets.serving.endpoints.broker import Broker, Pinned
from lake_assets.serving.endpoints.query_processes import WORKERS, FrameTooLarge, Worker
from lake_assets.serving.endpoints.query_worker import ERROR, STREAM, Question
from lake_assets.serving.endpoints.sql import tables_of
from lake_assets.serving.errors import QueryRefused, QueryStopped

MB = 1_000_000

VALUE_BYTES = 100
"""Approximate size of a value of a result in Python: a time takes 48, a decimal 104, each with a reference to it."""


@dataclass(frozen=True)
class QueryLimits:
    """The limits of one query.

    Attributes:
        seconds: From the start to the end of the query.
        rows: Further rows are left out, and the result is marked as truncated.
        memory_mb: Of DuckDB's buffer manager, and the same again for other allocations of the process; the same for the
            result in the server, in Arrow and then in Python.
        threads: Of DuckDB.
    """

    seconds: float = 30.0
    rows: int = 10_000
    memory_mb: int = 512
    threads: int = 2


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
        QueryRefused: The query is not allowed, or DuckDB cannot run it.
        QueryStopped: The query exceeded its limits, or its files were lost.
        SegmentDamaged: A file is gone, or is not what was pushed.
        TableNotServed: There is no such table, or readers see nothing of it.
    """
    tables = broker.named(tables_of(sql))
    with broker.pin(*tables, seconds=limits.seconds) as pinned:
        try:
            checked = broker.checked(pinned)
            with WORKERS.one() as worker:
                result = _result(worker, sql, limits, checked)
        except TimeoutError:
            raise _too_slow(limits) from None
        except FrameTooLarge:
            raise _too_large(limits) from None
        except (EOFError, ConnectionError) as error:
            raise _died(limits) from error
        pinned.lease.confirm()
        return result


def _result(worker: Worker, sql: str, limits: QueryLimits, pinned: Pinned) -> Result:
    """Read rows up to the limit. The worker sends batches without being asked, so it computes some more of them."""
    worker.ask(_question(sql, limits, pinned), seconds_left=lambda: pinned.lease.seconds_left)
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


def _question(sql: str, limits: QueryLimits, pinned: Pinned) -> Question:
    return Question(
        sql=sql,
        files=pinned.paths(),
        threads=limits.threads,
        memory_mb=limits.memory_mb,
        cpu_seconds=limits.threads * limits.seconds + 1,
    )


def _streams(worker: Worker, limits: QueryLimits, pinned: Pinned) -> Iterator[pa.RecordBatchStreamReader]:
    """The first stream has only the columns, each further one a batch. An error of the worker is raised."""
    while True:
        kind, content = worker.frame(most=limits.memory_mb * MB, seconds_left=lambda: pinned.lease.seconds_left)
        if kind == ERROR:
            raise _meaning(content.to_pybytes().decode(), limits, pinned)
        if kind != STREAM:
            return
        yield pa.ipc.open_stream(content)


def _python_bytes(array: pa.Array) -> int:
    """Approximate size of its values in Python, in addition to their bytes. Elements of nested values count, too."""
    kind = array.type
    parts: list[pa.Array] = []
    longest = 0
    if pa.types.is_union(kind):
        parts = [array.field(number) for number in range(kind.num_fields)]
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
        raise QueryRefused(
            f"A value of the result cannot be converted: {error}.", remedy="Cast it to varchar in the query."
        ) from error


def _meaning(said: str, limits: QueryLimits, pinned: Pinned) -> QueryRefused | QueryStopped:
    """Classify an error of DuckDB by its first words."""
    kind = said.split(":")[0]
    pinned.lease.confirm()  # without the lease, files may be gone
    if kind == "Out of Memory Error":
        return _too_large(limits)
    if kind in ("IO Error", "Permission Error", "INTERNAL Error") or _is_of_a_file(said, pinned):
        return QueryStopped(  # without DuckDB's message, which contains paths
            "Segments cannot be read: their files are gone, or damaged.",
            remedy="Run the query again. If it fails again, push again.",
        )
    return QueryRefused(f"DuckDB could not run the query: {said.splitlines()[0]}", remedy="Correct the query.")


def _is_of_a_file(said: str, pinned: Pinned) -> bool:
    """Whether DuckDB names a segment's file. Errors of its Parquet reader do not start with the usual `... Error:`."""
    if not said.split(":")[0].endswith(" Error"):
        return True
    paths = chain.from_iterable(pinned.paths().values())
    return any(path in said for path in paths)


def _too_slow(limits: QueryLimits) -> QueryStopped:
    return QueryStopped(
        f"The query took longer than {limits.seconds:g} s.", remedy="Read less, or raise LAKE_QUERY_SECONDS."
    )


def _died(limits: QueryLimits) -> QueryStopped:
    return QueryStopped(
        f"The query's process died: it needed more than {limits.memory_mb} MB, or it was killed.",
        remedy="Run the query again; read less, or raise LAKE_QUERY_MB.",
    )


def _too_large(limits: QueryLimits) -> QueryStopped:
    return QueryStopped(
        f"The query needs more than {limits.memory_mb} MB.", remedy="Read less, or raise LAKE_QUERY_MB."
    )
