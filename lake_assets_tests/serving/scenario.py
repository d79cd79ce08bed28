"""A served table on a real ZooKeeper and a real folder: what is pushed tells from its rows which push it was."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from kazoo.client import KazooClient

from lake_assets.connections.storage import storage_at
from lake_assets.coordination import zookeeper_client
from lake_assets.serving.lineage import Retention, State
from lake_assets.serving.push import PushReport, Writer
from lake_assets.serving.query import Broker, QueryLimits, query
from lake_assets.serving.registry import Registry
from lake_assets.serving.store import Leases, Policy, SegmentFiles
from lake_assets.settings import Settings

ROWS, SEGMENTS = 40, 4
LIMITS = QueryLimits(seconds=10, threads=1)
AT_ONCE = Retention(timedelta(0), timedelta(0))
COUNTED = "select number, count(*), sum(id) from {table} group by number"


def snapshot(number: int, rows: int = ROWS) -> pa.Table:
    """The rows of a push: each bears its number."""
    return pa.table({"id": pa.array(range(rows)), "number": pa.array([number] * rows, pa.int64())})


def fresh_name() -> str:
    """A table that no other test uses on a shared server."""
    return f"t_{uuid.uuid4().hex[:10]}"


def now() -> datetime:
    """The clock of all processes of a test."""
    return datetime.now(UTC)


@dataclass
class World:
    """One table with all that belongs to it, on a session of its own."""

    hosts: str
    zk: KazooClient
    table: str
    registry: Registry
    files: SegmentFiles
    leases: Leases
    writer: Writer
    broker: Broker

    def push(self, number: int, *also: str, force: bool = False, rows: int = ROWS) -> PushReport:
        """also: other tables, switched with it."""
        tables = {table: snapshot(number, rows) for table in (self.table, *also)}
        return self.writer.push(tables, push_id=uuid.uuid4().hex[:12], as_of=now(), force=force)[0]

    def seen(self, table: str | None = None) -> list[int]:
        """The numbers of the pushes that a reader sees; each must be there with all its rows."""
        found = query(self.broker, COUNTED.format(table=table or self.table), LIMITS).rows
        assert all(row[1:] == (ROWS, sum(range(ROWS))) for row in found), found
        return [row[0] for row in found]

    @property
    def entries(self) -> list[str]:
        """Ids, the oldest first."""
        return self.entries_of(self.table)

    def entries_of(self, table: str) -> list[str]:
        return list(self.registry.read(table)[table].lineage.entries)

    @property
    def states(self) -> list[State]:
        return [e.state for e in self.registry.read(self.table)[self.table].lineage.entries.values()]

    def stored(self) -> int:
        """How many segments' files there are."""
        return len(self.files.stored(self.table))


@contextmanager
def world(
    hosts: str, folder: Path | str, table: str, *, snapshots: int = 2, quota: int | None = None
) -> Iterator[World]:
    """The table, while the block lasts. folder: of its segments; or a URL, whose keys are in the environment."""
    storage = storage_at(Settings(), folder, scratch=Path("nowhere"))
    with zookeeper_client(hosts) as zk:
        registry, files, leases = Registry(zk), SegmentFiles(storage), Leases(zk)
        writer = Writer(registry, files, leases, clock=now, policy=Policy(snapshots, quota, ROWS // SEGMENTS))
        yield World(hosts, zk, table, registry, files, leases, writer, Broker(registry, files, leases))
