"""DuckDB databases for queries: each in memory, with a view of each table, closed to all but its files.

To make one takes 15 ms of processor time, a small query over it 1. So one that a query has done with waits for the next
query over the very same files; after a push there are others, and newer ones take its place. A query has its database
for itself, on a connection of its own, and one in which anything went wrong is dropped at once. One that waits holds no
file open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeAlias

import duckdb

MOST_IDLE = 4
"""Databases that wait, the newest: as many as the endpoint runs queries at once."""

CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_file_cache": False,  # or what waits would hold what it has read
    "python_enable_replacements": False,
    "temp_directory": "",
}

Key: TypeAlias = tuple[int, int, tuple[tuple[str, tuple[Path, ...]], ...]]
"""Threads, megabytes, and each table with its files: what makes two databases the same."""


class Idle:
    """Databases that wait for a query, at most so many: the oldest is dropped for one more."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, Lock()
        self._waiting: deque[tuple[Key, duckdb.DuckDBPyConnection]] = deque()

    def take(self, key: Key) -> duckdb.DuckDBPyConnection | None:
        """The newest of that key, which then waits no more; None if there is none."""
        with self._lock:
            for found in reversed(self._waiting):
                if found[0] == key:
                    self._waiting.remove(found)
                    return found[1]
        return None

    def give(self, key: Key, database: duckdb.DuckDBPyConnection) -> None:
        """It waits from here on."""
        with self._lock:
            self._waiting.append((key, database))
            dropped = self._waiting.popleft() if len(self._waiting) > self._most else None
        if dropped:
            dropped[1].close()


_IDLE = Idle(MOST_IDLE)
"""Of the process."""


@contextmanager
def opened(
    files: Mapping[str, tuple[Path, ...]], *, threads: int, memory_mb: int
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a database that has a view of each table, and access to its files alone. files: of each table."""
    key = (threads, memory_mb, tuple(sorted(files.items())))
    database = _IDLE.take(key) or _made(files, threads=threads, memory_mb=memory_mb)
    try:
        with database.cursor() as connection:
            yield connection
    except BaseException:
        database.close()
        raise
    _IDLE.give(key, database)


def _made(files: Mapping[str, tuple[Path, ...]], *, threads: int, memory_mb: int) -> duckdb.DuckDBPyConnection:
    paths = {table: [str(path) for path in of_table] for table, of_table in files.items()}
    database = duckdb.connect(config={**CLOSED, "threads": threads, "memory_limit": f"{memory_mb}MB"})
    try:
        database.execute("set global timezone = 'UTC'")
        database.execute("set allowed_paths = ?", [[path for of_table in paths.values() for path in of_table]])
        database.execute("set enable_external_access = false")
        for table, of_table in paths.items():
            database.read_parquet(of_table).create_view(table)
        database.execute("set lock_configuration = true")
    except BaseException:
        database.close()
        raise
    return database
