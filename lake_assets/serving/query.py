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

from lake_assets.serving.broker import Broker, Pinned
from lake_assets.serving.databases import opened
from lake_assets.serving.errors import QueryRefused, QueryStopped
from lake_assets.serving.sql import tables_of


@dataclass(frozen=True)
class Limits:
    """Of one query. rows: those beyond are left out, and the result says so."""

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
                found = _first(connection, sql, limits.rows + 1)
        except (duckdb.Error, OSError) as error:  # of a later batch: pyarrow's, with DuckDB's words
            raise _meaning(str(error), limits, pinned) from error
        pinned.lease.confirm()
        return _result(found, limits, pinned)


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


def _first(connection: duckdb.DuckDBPyConnection, sql: str, count: int) -> pa.Table:
    """So many rows, or a few more if there are; the rest is not computed."""
    (statement,) = connection.extract_statements(sql)
    reader = connection.sql(statement).to_arrow_reader(count)
    batches, seen = [], 0
    while seen < count and (batch := next(reader, None)) is not None:
        batches.append(batch)
        seen += batch.num_rows
    return pa.Table.from_batches(batches, reader.schema)


def _result(found: pa.Table, limits: Limits, pinned: Pinned) -> Result:
    shown = found.slice(0, limits.rows)
    return Result(
        columns=tuple(found.column_names),
        types=tuple(str(field.type) for field in found.schema),
        rows=list(zip(*(column.to_pylist() for column in shown.columns), strict=True)),
        truncated=found.num_rows > limits.rows,
        versions=pinned.versions,
    )


def _meaning(said: str, limits: Limits, pinned: Pinned) -> QueryRefused | QueryStopped:
    """What an error of DuckDB means, told by how it begins. `QueryStopped` if the lease was lost: files may be gone."""
    kind = said.split(":")[0]
    if kind == "INTERRUPT Error":
        return QueryStopped(f"The query took longer than {limits.seconds:g} s.", remedy="Ask for less.")
    pinned.lease.confirm()
    if kind == "Out of Memory Error":
        return QueryStopped(f"The query needs more than {limits.memory_mb} MB.", remedy="Ask for less.")
    if kind in ("IO Error", "Permission Error", "INTERNAL Error"):  # its words would tell where files are
        return QueryStopped(f"Segments cannot be read: {kind}.", remedy="Ask again; if it happens again, push again.")
    return QueryRefused(f"DuckDB could not run the query: {said.splitlines()[0]}", remedy="Correct it.")
