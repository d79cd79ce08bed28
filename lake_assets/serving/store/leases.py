"""Read leases: as long as a query may read a segment's file, nobody removes it.

    /serving/leases/<table>/<id>     ephemeral; holds how long it lasts, in seconds

A lease is taken before the lineage is read, and a file is removed only after the lineage has given its segment up, and
the leases that were there then have ended. A client reads at least what was there when it wrote: so a lease that comes
later never leads to that segment. It ends when its query does, when its session does, or, for who waits, after as long
as it lasts; the query stops itself by then. Both sides measure how long with their own clock, and only that.

To take one costs no round trip of its own: it is asked for together with the lineage, before it. A server answers a
client in order, and a read that was asked after a write is as of that write or later.

It assumes that a query stops within `GRACE_SECONDS` of its limit. One whose process was stopped for longer finds its
lease lost, and has no result.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kazoo.exceptions import NoNodeError

from lake_assets.serving.errors import QueryStopped
from lake_assets.serving.lineage.znrecord import checked_table

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.interfaces import IAsyncResult

ROOT = "/serving/leases"
GRACE_SECONDS = 2.0
POLL_SECONDS = 0.05


class Lease:
    """One holding, of one or several tables, asked for when it is made. ends: by the clock."""

    def __init__(
        self, zk: KazooClient, paths: Sequence[str], *, seconds: float, ends: float, clock: Callable[[], float]
    ) -> None:
        self._zk, self._paths, self._ends, self._clock = zk, paths, ends, clock
        self._asked: list[IAsyncResult] = [
            zk.create_async(path, json.dumps(seconds).encode(), ephemeral=True) for path in paths
        ]

    @property
    def seconds_left(self) -> float:
        """Until the query has to end; negative afterwards."""
        return self._ends - self._clock()

    def taken(self) -> None:
        """Waits until it is held: what this client has asked since it was made, it reads under it. `NoNodeError`."""
        for answer in self._asked:
            answer.get()

    def confirm(self) -> None:
        """Raises `QueryStopped` unless it was held until now: what was read may lack a file otherwise."""
        there = [self._zk.exists_async(path) for path in self._paths]
        if self.seconds_left < 0 or not all(answer.get() for answer in there):
            raise QueryStopped("The query's read lease ended before the query.", remedy="Ask again.")

    def release(self) -> None:
        """Ends it; waits for no answer, the reader needs none. Without a connection, its session's end does."""
        for path in self._paths:
            self._zk.delete_async(path)


class Leases:
    """Takes leases, and waits for those of others. zk: started. clock: seconds, monotonic."""

    def __init__(self, zk: KazooClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._zk, self._clock = zk, clock

    def open(self, *tables: str) -> None:
        """Makes it possible to take leases on tables. Safe to repeat."""
        for name in tables:
            self._zk.ensure_path(f"{ROOT}/{checked_table(name)}")

    @contextmanager
    def hold(self, tables: Sequence[str], *, seconds: float) -> Iterator[Lease]:
        """A lease on tables for the block, which must end within so many seconds; held once it says so (`taken`)."""
        ends = self._clock() + seconds
        paths = [f"{ROOT}/{checked_table(name)}/{uuid.uuid4().hex}" for name in tables]
        lease = Lease(self._zk, paths, seconds=seconds, ends=ends, clock=self._clock)
        try:
            yield lease
        finally:
            lease.release()

    def held(self, table: str) -> list[str]:
        """The leases on a table that are there now, as nodes."""
        folder = f"{ROOT}/{checked_table(table)}"
        try:
            return [f"{folder}/{name}" for name in sorted(self._zk.get_children(folder))]
        except NoNodeError:
            return []

    def drain(self, table: str) -> None:
        """Waits until all leases that are there now have ended; at most as long as the longest lasts."""
        begun = self._clock()
        for path in self.held(table):
            lasts = self._lasts(path)
            while self._clock() - begun < lasts and self._zk.exists(path):
                self._zk.handler.sleep_func(POLL_SECONDS)

    def _lasts(self, path: str) -> float:
        """Seconds, for who waits; 0 if it has ended."""
        try:
            return float(json.loads(self._zk.get(path)[0])) + GRACE_SECONDS
        except NoNodeError:
            return 0.0
