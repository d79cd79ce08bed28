"""Read leases: no file of a segment is removed while a query may read it.

    <cluster>/serving/leases/<table>/<id>     ephemeral; contains its duration in seconds

A reader acquires a lease before it reads the lineage. A writer removes a file only after the lineage has given its
segment up, and after the leases that existed then have ended. A client reads at least what existed when it wrote, so a
later lease never leads to that segment. A lease ends with its query or with its session; a writer also stops waiting
after the lease's duration, and the query has stopped itself by then. Both sides measure the duration with their own
clock, and compare no times.

A lease costs no round trip of its own: it is requested together with the lineage, before it. A server answers the
requests of a client in order, so a read that was requested after a write returns that write or a later one. If the
connection breaks meanwhile, both are requested again, until the query's limit has passed.

Assumption: a query stops within `GRACE_SECONDS` of its limit. If its process was paused for longer, it finds its lease
lost, and has no result.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from kazoo.exceptions import NoNodeError

from lake_assets.connections.zookeeper import answer, retry_for
from lake_assets.serving.errors import QueryStopped
from lake_assets.serving.lineage.znrecord import checked_table

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.interfaces import IAsyncResult

ROOT = "/serving/leases"
GRACE_SECONDS = 2.0
POLL_SECONDS = 0.05

T = TypeVar("T")


class Lease:
    """A lease on one or several tables."""

    def __init__(
        self, zk: KazooClient, paths: Sequence[str], *, seconds: float, ends: float, clock: Callable[[], float]
    ) -> None:
        """Request the lease.

        Args:
            zk: A started client.
            paths: Its nodes, one for each table.
            seconds: Its duration.
            ends: Its end, by the clock.
            clock: Monotonic seconds.
        """
        self._zk = zk
        self._paths = paths
        self._ends = ends
        self._clock = clock
        content = json.dumps(seconds).encode()
        self._requests: list[IAsyncResult] = [zk.create_async(path, content, ephemeral=True) for path in paths]

    @property
    def seconds_left(self) -> float:
        """Seconds until the query has to end; negative afterwards."""
        return self._ends - self._clock()

    def wait_until_acquired(self) -> None:
        """Block until the lease is acquired. It also covers what this client has requested since.

        Raises:
            NoNodeError: A table has no folder for leases yet.
        """
        for request in self._requests:
            answer(request)

    def confirm(self) -> None:
        """Check that the lease was held until now. Otherwise a file may have been missing.

        Raises:
            QueryStopped: It was not.
        """
        if self.seconds_left < 0 or not self._zk.retry(self._exists):
            raise QueryStopped("The query's read lease ended before the query.", remedy="Run the query again.")

    def _exists(self) -> bool:
        requests = [self._zk.exists_async(path) for path in self._paths]
        statuses = [answer(request) for request in requests]
        return all(statuses)

    def release(self) -> None:
        """End the lease, without waiting for an answer. Without a connection, the end of the session ends it."""
        for path in self._paths:
            self._zk.delete_async(path)


class Leases:
    """Acquires leases, and waits for those of others.

    Args:
        zk: A started client.
        cluster: The folder of the served tables' nodes; None: the root.
        clock: Monotonic seconds.
    """

    def __init__(
        self, zk: KazooClient, cluster: str | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._zk = zk
        self._root = f"/{cluster}{ROOT}" if cluster else ROOT
        self._clock = clock

    def _folder(self, table: str) -> str:
        return f"{self._root}/{checked_table(table)}"

    def open(self, *tables: str) -> None:
        """Create the folders for leases on tables. It can be repeated."""
        for name in tables:
            self._zk.ensure_path(self._folder(name))

    @contextmanager
    def lease(self, tables: Sequence[str], *, seconds: float, read: Callable[[], T]) -> Iterator[tuple[Lease, T]]:
        """Acquire a lease on tables for the block, and read under it.

        Args:
            tables: To be read.
            seconds: Within which the block has to end.
            read: Called after the lease was requested, before it is waited for; again, if the connection broke.

        Yields:
            The lease, and what `read` returned.

        Raises:
            NoNodeError: A table has no folder for leases yet.
            RetryFailedError: ZooKeeper did not answer within the seconds.
        """
        again = retry_for(self._zk, seconds)
        lease, found = again(self._acquire, tables, seconds, self._clock() + seconds, read)
        try:
            yield lease, found
        finally:
            lease.release()

    def _acquire(self, tables: Sequence[str], seconds: float, ends: float, read: Callable[[], T]) -> tuple[Lease, T]:
        """A lease under new names: whether the one of a broken connection was created is not known."""
        paths = [f"{self._folder(name)}/{uuid.uuid4().hex}" for name in tables]
        lease = Lease(self._zk, paths, seconds=seconds, ends=ends, clock=self._clock)
        try:
            found = read()
            lease.wait_until_acquired()
        except BaseException:
            lease.release()
            raise
        return lease, found

    def active(self, table: str) -> list[str]:
        """Return the nodes of the leases on a table that exist now."""
        folder = self._folder(table)
        try:
            names = self._zk.get_children(folder)
        except NoNodeError:
            return []
        return [f"{folder}/{name}" for name in sorted(names)]

    def drain(self, table: str) -> None:
        """Block until all leases that exist now have ended; at most for the longest duration among them."""
        began = self._clock()
        for path in self.active(table):
            duration = self._duration(path)
            while self._clock() - began < duration and self._zk.exists(path):
                self._zk.handler.sleep_func(POLL_SECONDS)

    def _duration(self, path: str) -> float:
        """Seconds that a writer waits for a lease; 0 if it has ended."""
        try:
            content, _ = self._zk.get(path)
        except NoNodeError:
            return 0.0
        return float(json.loads(content)) + GRACE_SECONDS
