"""Moving a lake to another ZooKeeper, or to one that has lost its data.

Fencing tokens are ZooKeeper's transaction ids, and a new ensemble counts from the start: every turn would take the
token of the former claim for that of a later holder. The new registry is empty, so a first stream would run before the
stream whose batch is open. This module corrects both under the lock of the new ensemble. It cannot see a process that
still holds the lock of the old one: there must be none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.base.failpoints import TURN_GIVEN, reach
from lake_assets.engagement.model.lake import STREAMS, StreamName
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.model.turn_order import coordinator_of

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Reclaimed:
    """The result of moving a lake.

    Attributes:
        before: Token of the former claim; None if the lake was never claimed.
        token: Token of the new ZooKeeper.
        replaced: Whether the former token was greater, and was replaced.
        next: Stream whose batch is open, and which alone gets the next turn; None if no batch is open.
    """

    before: int | None
    token: int
    replaced: bool
    next: StreamName | None


def reclaim(tables: LakeTables, spark: SparkSession, zk: KazooClient, *, timeout: float) -> Reclaimed:
    """Let this ZooKeeper grant the turns of a lake. If it is killed anywhere, it can be called again.

    Nobody may work on the lake with another ZooKeeper.

    Args:
        zk: A started client.
        timeout: Seconds to wait for the lock.

    Raises:
        LockNotFree: The lock was not free in time.
        LockLost: The lock was lost meanwhile.
    """
    coordinated = coordinator_of(STREAMS[0], tables, zk, spark, timeout=timeout)
    with coordinated.locked() as token:
        before = tables.claims.token()
        unfinished = _unfinished_stream(tables)
        if unfinished is not None:
            coordinated.give_turn(unfinished)
        reach(TURN_GIVEN)
        coordinated.confirm()
        replaced = tables.claims.lower(spark, token)
        return Reclaimed(before, token, replaced, unfinished)


def _unfinished_stream(tables: LakeTables) -> StreamName | None:
    """Return the stream with an open batch. No other stream gets a turn meanwhile, so there is at most one."""
    for name in STREAMS:
        last = tables.checkpoints.read(tables.lake.app_name(name))
        if last is not None and not last.finished:
            return name
    return None
