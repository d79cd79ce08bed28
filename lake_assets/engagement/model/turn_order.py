"""Who takes turns on a lake, and after whom."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.coordination import ANY, JobCoordinator, check_turn_order, stream
from lake_assets.engagement.model.lake import StreamName
from lake_assets.engagement.model.tables import LakeTables

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

PREDECESSORS: Mapping[str, str] = {"ingestion": ANY, "mutation": "ingestion", "retention": "mutation"}
"""Stream → who must have run last: mutation finds what ingestion brought, retention the ids that mutation left."""

MAINTENANCE = "maintenance"
FOLLOWED: StreamName = "retention"
AFTER = (FOLLOWED, MAINTENANCE)
"""Who must have run last, for maintenance: retention follows mutation alone, so no row waits to be looked at by it."""

TURN_ORDER: Mapping[str, str | tuple[str, ...]] = {**PREDECESSORS, MAINTENANCE: AFTER}
"""All who take turns on a lake → who must have run last."""


def check_turns() -> None:
    """`ConfigurationError` if the turns of `TURN_ORDER` would not go round, naming who waits, and for whom."""
    check_turn_order(stream(name, predecessor) for name, predecessor in TURN_ORDER.items())


def coordinator_of(
    name: str, tables: LakeTables, zk: KazooClient, spark: SparkSession, *, timeout: float
) -> JobCoordinator:
    """A side of the lock of a lake, by its name in `TURN_ORDER`; `ConfigurationError` as `check_turns`.

    zk: started. timeout: seconds that it waits for the lock.
    """
    check_turns()
    claim = partial(tables.claim, spark)
    return JobCoordinator(tables.lake.lock, name, TURN_ORDER[name], zk, timeout, claim=claim)
