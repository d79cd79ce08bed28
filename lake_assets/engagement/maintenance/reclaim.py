"""A lake goes on with another ZooKeeper: one that it moved to, or one whose data were lost.

Tokens are ZooKeeper's transaction ids, and a new ensemble counts from the start: each turn would take the token that
the lake was claimed with before for that of a later holder. And its registry is empty, so that a first stream would
run before one whose batch is open. Both are put right under the lock of the new one. What it cannot see is a process
that still holds the lock of the old one: there must be none.
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
    """before: the token that the lake was claimed with; None if it never was. token: of the new ZooKeeper.

    replaced: whether the first was greater, and the second is there now. next: the stream whose batch is open, which
    alone gets the next turn; None if none is.
    """

    before: int | None
    token: int
    replaced: bool
    next: StreamName | None


def reclaim(tables: LakeTables, spark: SparkSession, zk: KazooClient, *, timeout: float) -> Reclaimed:
    """Let the turns of a lake be granted by this ZooKeeper. Safe to repeat; killed anywhere it is called again.

    zk: started. timeout: seconds that the lock may take to be free, else `LockNotFree`. Nobody may be at work on the
    lake with another ZooKeeper. Raises `LockLost`.
    """
    coordinated = coordinator_of(STREAMS[0], tables, zk, spark, timeout=timeout)
    with coordinated.locked() as token:
        before, unfinished = tables.epoch(), _unfinished(tables)
        if unfinished is not None:
            coordinated.give_turn(unfinished)
        reach(TURN_GIVEN)
        coordinated.confirm()
        return Reclaimed(before, token, tables.reclaim(spark, token), unfinished)


def _unfinished(tables: LakeTables) -> StreamName | None:
    """The stream with an open batch. No other gets a turn meanwhile, so there is one at most."""
    found = ((name, tables.checkpoints.read(tables.lake.app_name(name))) for name in STREAMS)
    return next((name for name, last in found if last is not None and not last.finished), None)
