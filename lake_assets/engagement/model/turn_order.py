"""Which stream may follow which on a lake. This module only declares the order; `coordination.rules.decide` decides."""

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
"""Stream → the stream whose turn must be the last one. Mutation needs the rows of ingestion, retention its ids."""

MAINTENANCE = "maintenance"
FOLLOWED_BY_MAINTENANCE: StreamName = "retention"
MAINTENANCE_PREDECESSORS = (FOLLOWED_BY_MAINTENANCE, MAINTENANCE)
"""Accepted predecessors of maintenance. Retention follows mutation only, so mutation has then seen every new row."""

TURN_ORDER: Mapping[str, str | tuple[str, ...]] = {**PREDECESSORS, MAINTENANCE: MAINTENANCE_PREDECESSORS}
"""All who take turns on a lake → their accepted predecessors."""


def check_turns() -> None:
    """Check that every stream of `TURN_ORDER` can get a turn.

    Raises:
        ConfigurationError: A stream would wait for ever; the message names it and its predecessor.
    """
    check_turn_order(stream(name, predecessor) for name, predecessor in TURN_ORDER.items())


def coordinator_of(
    name: str, tables: LakeTables, zk: KazooClient, spark: SparkSession, *, timeout: float
) -> JobCoordinator:
    """Return the job coordinator of one of `TURN_ORDER` for the lock of a lake.

    Args:
        zk: A started client.
        timeout: Seconds to wait for the lock.

    Raises:
        ConfigurationError: As for `check_turns`.
    """
    check_turns()
    claim = partial(tables.claims.claim, spark)
    return JobCoordinator(tables.lake.lock, name, TURN_ORDER[name], zk, timeout, claim=claim)
