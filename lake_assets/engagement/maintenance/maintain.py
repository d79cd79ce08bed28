"""Maintenance of a lake: rewrite its files large and sorted, and remove files that no version needs any more.

Maintenance takes a turn as a stream does, after retention. Then no batch is open, and mutation has processed every row.
It commits only rewritten rows, so if it is killed anywhere and called again, it ends with the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from lake_assets.base.failpoints import HALF_OPTIMIZED, reach
from lake_assets.coordination import JobCoordinator
from lake_assets.engagement.maintenance.vacuum import session_conf, vacuum
from lake_assets.engagement.model.delta_log import open_table
from lake_assets.engagement.model.table_schemas import (
    CHECKPOINT,
    DEAD_LETTER,
    ENGAGEMENT,
    ENGAGEMENT_METRICS,
    ERASURE,
    MUTATION_REQUEST,
    NOTIFICATION,
    ORG,
)
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.model.turn_order import MAINTENANCE, coordinator_of
from lake_assets.engagement.streams.batch import Guard

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

TABLES = (
    ENGAGEMENT,
    MUTATION_REQUEST,
    NOTIFICATION,
    DEAD_LETTER,
    ERASURE,
    ORG,
    ENGAGEMENT_METRICS,
    CHECKPOINT,
)
COMPACTED_TABLES = (MUTATION_REQUEST, NOTIFICATION, DEAD_LETTER, ERASURE)
"""Tables whose small files are compacted without sorting."""

UNLOCKED_TABLES = frozenset({ORG, ENGAGEMENT_METRICS})
"""Tables that are also written without the lock. They contain no id of a person."""

MIN_UNLOCKED_HOURS = 1
"""Hours for which files of unlocked tables are kept: longer than any write takes from its first file to its commit."""

CLEANED_UP_TO = "lake.forgotten"
"""Property of the erasure table: the last batch of retention whose erased ids are in no old file any more."""

_MAX_FILE_SIZE = "spark.databricks.delta.optimize.maxFileSize"


@dataclass(frozen=True)
class Size:
    """Files and bytes in the present versions of all tables of a lake."""

    files: int
    bytes: int


@dataclass(frozen=True)
class MaintenanceReport:
    """The result of a maintenance.

    Attributes:
        orgs: Number of orgs whose rows were rewritten.
        kept_hours: Hours for which old versions stay readable; 0 after an erasure.
        removed: Table → number of removed files, of former versions and of no version.
        before: Size of the tables before.
        after: Size of the tables after.
    """

    orgs: int
    kept_hours: int
    removed: Mapping[str, int]
    before: Size
    after: Size


def coordinator(tables: LakeTables, zk: KazooClient, spark: SparkSession, *, timeout: float) -> JobCoordinator:
    """Return the job coordinator of a lake's maintenance.

    Args:
        zk: A started client.
        timeout: Seconds to wait for the lock.
    """
    return coordinator_of(MAINTENANCE, tables, zk, spark, timeout=timeout)


def take_turn(
    tables: LakeTables, spark: SparkSession, zk: KazooClient, *, max_wait: float, retain_hours: int
) -> MaintenanceReport:
    """Take a turn of maintenance.

    If a turn stops before its end, nobody else gets a turn until maintenance has taken it again.

    Args:
        max_wait: Seconds to wait for the turn.
        retain_hours: As for `maintain`.

    Raises:
        CoordinationError: The turn was refused, or the lock was lost.
    """
    coordinated = coordinator(tables, zk, spark, timeout=max_wait)
    with coordinated.turn(max_wait=max_wait):
        return maintain(tables, spark, coordinated, retain_hours=retain_hours)


def maintain(tables: LakeTables, spark: SparkSession, guard: Guard, *, retain_hours: int) -> MaintenanceReport:
    """Optimize and vacuum the tables of a lake. No batch may be open.

    Args:
        guard: Claimed first, and confirmed before each statement.
        retain_hours: Hours for which old versions and their changes stay readable. After an erasure none are kept.
    """
    confirm = partial(_confirm, tables, guard, guard.claim())
    before = size(tables)
    last_erasure = _last_erasure(tables)
    orgs = changed_orgs(tables)
    nothing_erased = last_erasure == _cleaned_up_to(tables)
    kept_hours = retain_hours if nothing_erased else 0
    rewrite_files(tables, spark, orgs, confirm)
    reach("maintenance-optimized")
    removed = {}
    for table in TABLES:
        hours = kept_hours
        if table in UNLOCKED_TABLES:
            hours = max(retain_hours, MIN_UNLOCKED_HOURS)
        removed[table] = vacuum(tables, spark, table, hours, confirm)
        reach("maintenance-half-vacuumed")
    if kept_hours == 0:
        confirm()
        _record_clean_up(tables, spark, last_erasure)
    reach("maintenance-recorded")
    return MaintenanceReport(len(orgs), kept_hours, removed, before, size(tables))


def _confirm(tables: LakeTables, guard: Guard, token: int) -> None:
    """Check the lock and the claim: a statement may wait long for its turn in Spark, or run long."""
    guard.confirm()
    tables.claims.check(token)


def size(tables: LakeTables) -> Size:
    """Return the present size of a lake, from its tables' logs."""
    files = 0
    total_bytes = 0
    for table in TABLES:
        actions = pa.table(open_table(tables.location(table)).get_add_actions())
        sizes = actions.column("size_bytes").to_pylist()
        files += len(sizes)
        total_bytes += int(sum(sizes))
    return Size(files, total_bytes)


def changed_orgs(tables: LakeTables) -> list[str]:
    """Return the orgs with notifications since the engagement table was optimized last, sorted."""
    optimized_at = -1
    for commit in tables.history(ENGAGEMENT):
        if commit.operation == "OPTIMIZE":
            optimized_at = commit.version
            break
    notifications = open_table(tables.location(NOTIFICATION)).to_pyarrow_table(
        columns=["org_id"],
        filters=[("version", ">", optimized_at)],
    )
    return sorted(set(notifications.column("org_id").to_pylist()))


def rewrite_files(tables: LakeTables, spark: SparkSession, orgs: Sequence[str], confirm: Callable[[], None]) -> None:
    """Sort the rows of some orgs by date into files of the lake's size, and purge deletion vectors.

    Args:
        confirm: Called before each statement; raises if somebody else may write by now.
    """
    with session_conf(spark, _MAX_FILE_SIZE, tables.lake.max_file_bytes):
        for statement in _rewrite_statements(tables, orgs):
            confirm()
            spark.sql(statement)
            reach(HALF_OPTIMIZED)


def _rewrite_statements(tables: LakeTables, orgs: Sequence[str]) -> Iterator[str]:
    engagement = tables.identifier(ENGAGEMENT)
    if orgs:
        literals = ", ".join(_sql_literal(org) for org in orgs)
        yield f"OPTIMIZE {engagement} WHERE org_id IN ({literals}) ZORDER BY (engagement_date)"
    yield f"REORG TABLE {engagement} APPLY (PURGE)"
    for table in COMPACTED_TABLES:
        yield f"OPTIMIZE {tables.identifier(table)}"


def _sql_literal(text: str) -> str:
    """Return a SQL literal for OPTIMIZE, which takes no parameters. Written as bytes, so no text can inject SQL."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def _last_erasure(tables: LakeTables) -> int:
    """Return the last batch of retention that erased somebody; 0 if none did."""
    erasures = open_table(tables.location(ERASURE)).to_pyarrow_table(columns=["batch_id"])
    return max(erasures.column("batch_id").to_pylist(), default=0)


def _cleaned_up_to(tables: LakeTables) -> int:
    properties = open_table(tables.location(ERASURE)).metadata().configuration
    return int(properties.get(CLEANED_UP_TO, 0))


def _record_clean_up(tables: LakeTables, spark: SparkSession, last_erasure: int) -> None:
    erasure = tables.identifier(ERASURE)
    spark.sql(f"ALTER TABLE {erasure} SET TBLPROPERTIES ('{CLEANED_UP_TO}' = '{last_erasure}')")
