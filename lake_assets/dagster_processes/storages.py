"""Dagster's SQLite storages in the code server, its runs and the daemon: they ask less, and answer the same.

By itself, Dagster creates an engine of SQLAlchemy for each connection, which then compiles each statement anew. It
reads all scripts of its migrations, a hundred of them, whenever it opens a storage. That is in each run, and at each
tick of a sensor, for which the code server opens an instance. Together, this took more processor time than what sensors
and runs did.

Connections are kept, too: closing the last connection of a database makes SQLite move its log of writes into the file,
and wait for the disk, after each event. Those to the database of a run are kept by the run alone, because old ones are
removed by another process. A fork must not have connections: the instance of the code server is opened by the first
tick, which is after the fork.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.pool import QueuePool

from lake_assets.connections.dagster import (
    Moved,
    migrations,
    unknown_version,
    use_engines,
    use_scripts,
)

ENGINES = 64
"""Engines that are kept: three of the instance, and one for each run, of which the newest are in use."""


DATABASES_OF_INSTANCE = frozenset({"index", "runs", "schedules"})
"""Names of the databases that no process removes."""


def use_sparing_storages() -> str:
    """Make the storages of this process ask less.

    Returns:
        Why that cannot be done, or not all of it; empty if it is done.
    """
    found = []
    for use, change in ((use_engines, kept_engines), (use_scripts, known_scripts)):
        try:
            use(change)
        except Moved as error:
            found.append(unknown_version(error))
    return ", ".join(found)


def read_migrations() -> None:
    """Read the scripts of the migrations now. A process that is forked later has them, too."""
    configuration, scripts = migrations()
    scripts.from_config(configuration).get_current_head()


def kept_engines(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that creates an engine, or returns the one that it has created with the same arguments.

    Args:
        create: SQLAlchemy's `create_engine`. The pools that Dagster chooses keep no connection.
    """

    @lru_cache(maxsize=ENGINES)
    def kept(url: str, options: tuple[tuple[str, Any], ...], connect: tuple[tuple[str, Any], ...] | None) -> Any:
        named = dict(options)
        if connect is not None:
            named["connect_args"] = dict(connect)
        is_run = parent_process() is not None
        if is_run or Path(url).stem in DATABASES_OF_INSTANCE:
            return _keeping_connections(create, url, named)
        return create(url, **named)

    def create_engine(url: str, *, connect_args: dict[str, Any] | None = None, **options: Any) -> Any:
        arguments = None if connect_args is None else tuple(sorted(connect_args.items()))
        return kept(url, tuple(sorted(options.items())), arguments)

    return create_engine


class KeptConnections(QueuePool):
    """Keeps connections until the process ends. Dagster disposes of an engine after each call."""

    def dispose(self) -> None:
        """Keep them."""

    def recreate(self) -> KeptConnections:
        """Go on with the same ones."""
        return self


def _keeping_connections(create: Callable[..., Any], url: str, options: dict[str, Any]) -> Any:
    """Create an engine that keeps a connection until its process ends, and does not wait for the disk at each commit.

    If the process is killed, everything that it has committed is in the database. If the machine loses its power, the
    newest events may be missing there. They only tell what a session has done: the session itself is in the catalog.
    """
    engine = create(url, **{**options, "poolclass": KeptConnections, "pool_size": 1})
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=NORMAL"))
    # By closing the last connection, SQLite removes its log of writes.
    Finalize(None, QueuePool.dispose, args=(engine.pool,), exitpriority=1)
    return engine


def known_scripts(directory: Any) -> Any:
    """Return a class that reads the scripts of a folder once. directory: alembic's `ScriptDirectory`."""
    read: dict[str, Any] = {}

    class KnownScripts(directory):  # type: ignore[misc]
        @classmethod
        def from_config(cls, config: Any) -> Any:
            place = str(config.get_main_option("script_location"))
            if place not in read:
                read[place] = directory.from_config(config)
            return read[place]

    return KnownScripts
