"""Queries over served tables: DuckDB on the routed segments, each query in a database that it has for itself.

It can read the files that its lease covers and nothing else: no file, no network, no extension, no setting, no variable
of Python; and it is held to limits of time, rows and memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from lake_assets.serving.endpoints.broker import Broker, Pinned
from lake_assets.serving.endpoints.databases import opened
from lake_assets.serving.endpoints.sql import tables_of
from lake_assets.serving.errors import QueryRefused, QueryStopped

MB = 1_000_000
BATCH_ROWS = 256
"""Of a result that is converted at once: between two batches its limits are looked at."""


@dataclass(frozen=True)
class Limits:
    """Of one query. rows: those beyond are left out, and the result says so.

    memory_mb: of what DuckDB keeps, and as much again of the result, as Arrow counts it. DuckDB makes 2,048 rows at a
    time; what these take by themselves is not held to it.
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
            with database(pinned.files, limits) as connection, _interrupted(connection, pinned.lease.seconds_left):
                found = _result(connection, sql, limits, pinned)
        except (duckdb.Error, OSError, pa.ArrowException) as error:  # of a later batch: pyarrow's, with DuckDB's words
            raise _meaning(str(error), limits, pinned) from error
        pinned.lease.confirm()
        return found


def database(
    files: Mapping[str, tuple[Path, ...]], limits: Limits
) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
    """A connection to a database that has a view of each table, and access to its files alone."""
    return opened(files, threads=limits.threads, memory_mb=limits.memory_mb)


@contextmanager
def _interrupted(connection: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    """Stops what the connection does after so many seconds, unless the block has ended."""
    timer = threading.Timer(max(seconds, 0), connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _result(connection: duckdb.DuckDBPyConnection, sql: str, limits: Limits, pinned: Pinned) -> Result:
    """As many rows as are allowed; the rest is not computed, but for what a batch has more."""
    (statement,) = connection.extract_statements(sql)
    reader = connection.sql(statement).to_arrow_reader(BATCH_ROWS)
    rows: list[tuple[Any, ...]] = []
    size = 0
    while len(rows) <= limits.rows and (batch := next(reader, None)) is not None:
        size += batch.nbytes
        if size > limits.memory_mb * MB:
            raise _too_large(limits)
        rows += _converted(batch)
        if pinned.lease.seconds_left < 0:
            raise _too_slow(limits)
    return Result(
        columns=tuple(reader.schema.names),
        types=tuple(str(field.type) for field in reader.schema),
        rows=rows[: limits.rows],
        truncated=len(rows) > limits.rows,
        versions=pinned.versions,
    )


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
    if kind == "INTERRUPT Error":
        return _too_slow(limits)
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


def _too_large(limits: Limits) -> QueryStopped:
    return QueryStopped(f"The query needs more than {limits.memory_mb} MB.", remedy="Ask for less.")
