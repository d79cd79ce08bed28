"""Which stream may follow which on a lake. This module only declares the order; `coordination.rules.decide` decides."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.coordination import ANY, JobCoordinator, Stream, check_turn_order, stream
from lake_assets.engagement.lake import ANY_TURN, EngagementLake, StreamName
from lake_assets.errors import ConfigurationError

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

    from lake_assets.engagement.tables import LakeTables

PREDECESSORS: Mapping[str, str] = {"ingestion": ANY, "mutation": "ingestion", "retention": "mutation"}
"""Stream → the stream whose turn must be the last one. Mutation needs the rows of ingestion, retention its ids."""

MAINTENANCE = "maintenance"
MAINTENANCE_PREDECESSORS = ("retention", MAINTENANCE)
"""Accepted predecessors of maintenance. Retention follows mutation only, so mutation has then seen every new row."""

TURN_ORDER: Mapping[str, str | tuple[str, ...]] = {**PREDECESSORS, MAINTENANCE: MAINTENANCE_PREDECESSORS}
"""All who take turns on a lake → their accepted predecessors, unless the lake declares others."""

FIRST: StreamName = "ingestion"
"""The stream that may begin on a lake without any turn. Its rows are what the others work on."""

ROWS_READ_BY: StreamName = "mutation"
"""Its turn must lie between `FIRST` and each of `AFTER_ROWS_READ`: these rely on it having seen every new row."""

AFTER_ROWS_READ = ("retention", MAINTENANCE)


def turn_order(lake: EngagementLake) -> dict[str, Stream]:
    """Return who takes turns on a lake, by name."""
    found = {}
    for name, usual in TURN_ORDER.items():
        accepted = lake.turns.get(name, usual)
        predecessor = ANY if ANY_TURN in accepted else accepted
        found[name] = stream(name, predecessor, first=name == FIRST)
    return found


def check_turns(lake: EngagementLake) -> None:
    """Check that each of `TURN_ORDER` can get a turn on a lake, and that mutation has seen all rows where it must.

    Raises:
        ConfigurationError: One would wait for ever, or could come too early; the message names it and its predecessor.
    """
    order = turn_order(lake)
    check_turn_order(order.values())
    followers = _followers_without(ROWS_READ_BY, FIRST, order)
    for name in AFTER_ROWS_READ:
        if name in followers:
            raise ConfigurationError(
                f"On {lake.name}, {name} could follow {FIRST} without a turn of {ROWS_READ_BY} between them.",
                remedy=f"Let {name} follow only {ROWS_READ_BY}, and what itself comes after {ROWS_READ_BY}.",
            )


def _followers_without(left_out: str, first: str, order: Mapping[str, Stream]) -> set[str]:
    """Return who can come after `first`, directly or not, without any turn of `left_out` between."""
    found: set[str] = set()
    added = {first}
    while added:
        before, added = added, set()
        for name, declared in order.items():
            if name not in {left_out, *found} and any(declared.follows(former) for former in before):
                added.add(name)
        found |= added
    return found


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
    check_turns(tables.lake)
    declared = turn_order(tables.lake)[name]
    claim = partial(tables.claims.claim, spark)
    return JobCoordinator(
        tables.lake.lock,
        name,
        declared.accepts,
        zk,
        timeout,
        first=declared.first,
        claim=claim,
        may_begin=tables.refuse_if_paused,
    )
