"""Maintenance of a lake: rewrite its files large and sorted, and remove files that no version needs any more.

Maintenance takes a turn as a stream does, after retention. Then no batch is open, and mutation has processed every row.
It commits only rewritten rows, so if it is killed anywhere and called again, it ends with the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from lake_assets.base.failpoints import HALF_OPTIMIZED, reach
from lake_assets.connections.spark import MASTER, is_local
from lake_assets.coordination import JobCoordinator
from lake_assets.engagement.maintenance.layout import DatedFile, orgs_to_sort
from lake_assets.engagement.maintenance.vacuum import session_conf, vacuum
from lake_assets.engagement.model.delta_log import open_table, read_rows
from lake_assets.engagement.model.table_schemas import (
    CHECKPOINT,
    DEAD_LETTER,
    ENGAGEMENT,
    ENGAGEMENT_METRICS,
    ERASURE,
    MUTATION_REQUEST,
    NOTIFICATION,
    ORG,
    SETTLED_REQUEST,
)
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.model.turn_order import MAINTENANCE, coordinator_of
from lake_assets.engagement.streams.batch import Guard
from lake_assets.engagement.streams.settled.settling import prune_log, upgrade

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

TABLES = (
    ENGAGEMENT,
    MUTATION_REQUEST,
    SETTLED_REQUEST,
    NOTIFICATION,
    DEAD_LETTER,
    ERASURE,
    ORG,
    ENGAGEMENT_METRICS,
    CHECKPOINT,
)
COMPACTED_TABLES = (MUTATION_REQUEST, SETTLED_REQUEST, NOTIFICATION, DEAD_LETTER, ERASURE)
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
        orgs: Number of orgs whose small files were merged.
        sorted_orgs: Number of orgs whose rows were all rewritten, sorted by date.
        kept_hours: Hours for which old versions stay readable; 0 after an erasure.
        removed: Table → number of removed files, of former versions and of no version.
        before: Size of the tables before.
        after: Size of the tables after.
    """

    orgs: int
    sorted_orgs: int
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
        UsageError: The lake is paused.
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
    upgrade(tables, spark)
    before = size(tables)
    last_erasure = _last_erasure(tables)
    orgs = changed_orgs(tables)
    kept_hours = retain_hours if is_cleaned_up(tables) else 0
    confirm()
    prune_log(tables)
    sorted_orgs = rewrite_files(tables, spark, orgs, confirm)
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
    return MaintenanceReport(len(orgs), len(sorted_orgs), kept_hours, removed, before, size(tables))


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
    notifications = read_rows(open_table(tables.location(NOTIFICATION)), ["org_id"], [("version", ">", optimized_at)])
    return sorted(set(notifications.column("org_id").to_pylist()))


def rewrite_files(
    tables: LakeTables, spark: SparkSession, orgs: Sequence[str], confirm: Callable[[], None]
) -> list[str]:
    """Merge small files of some orgs up to the lake's size, sort rows by date where needed, purge deletion vectors.

    REORG purges them in the files that have one. It fails on executors of a cluster (hazard D8); there the orgs of
    these files are sorted instead, which rewrites all of their files.

    Args:
        orgs: Orgs whose small files are merged. Others are sorted too, if a maintenance died before it sorted them.
        confirm: Called before each statement; raises if somebody else may write by now.

    Returns:
        The orgs whose rows were sorted (see `layout`).
    """
    to_sort = orgs_to_sort(dated_files(tables), tables.lake.max_file_bytes)
    with_reorg = is_local(str(spark.conf.get(MASTER)))
    if not with_reorg:
        to_sort = sorted({*to_sort, *orgs_with_deleted_rows(tables)})
    with session_conf(spark, _MAX_FILE_SIZE, tables.lake.max_file_bytes):
        for statement in _rewrite_statements(tables, orgs, to_sort, with_reorg=with_reorg):
            confirm()
            spark.sql(statement)
            reach(HALF_OPTIMIZED)
    return to_sort


def dated_files(tables: LakeTables) -> Iterator[DatedFile]:
    """Yield the files of the engagement table. One without statistics may hold rows of any date."""
    actions = pa.table(open_table(tables.location(ENGAGEMENT)).get_add_actions(flatten=True))
    for file in actions.to_pylist():
        first, last = file.get("min.engagement_date"), file.get("max.engagement_date")
        yield DatedFile(file["partition.org_id"], file["size_bytes"], first or date.min, last or date.max)


def orgs_with_deleted_rows(tables: LakeTables) -> list[str]:
    """Return the orgs of the files of the engagement table that have a deletion vector; one for each such file."""
    opened = open_table(tables.location(ENGAGEMENT))
    marked: set[str] = set()
    for batch in opened.deletion_vectors():
        marked.update(map(_file_name, pa.record_batch(batch).column("filepath").to_pylist()))
    files = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
    return [file["partition.org_id"] for file in files if _file_name(file["path"]) in marked]


def _file_name(path: str) -> str:
    """Return the last part of a path. Delta gives each data file a name of its own."""
    return path.rpartition("/")[2]


def _rewrite_statements(
    tables: LakeTables, orgs: Sequence[str], to_sort: Sequence[str], *, with_reorg: bool
) -> Iterator[str]:
    engagement = tables.identifier(ENGAGEMENT)
    to_merge = sorted(set(orgs) - set(to_sort))
    if to_merge:
        yield f"OPTIMIZE {engagement} WHERE {_of_orgs(to_merge)}"
    if to_sort:
        yield f"OPTIMIZE {engagement} WHERE {_of_orgs(to_sort)} ZORDER BY (engagement_date)"
    if with_reorg:
        yield f"REORG TABLE {engagement} APPLY (PURGE)"
    for table in COMPACTED_TABLES:
        yield f"OPTIMIZE {tables.identifier(table)}"


def _of_orgs(orgs: Sequence[str]) -> str:
    return f"org_id IN ({', '.join(_sql_literal(org) for org in orgs)})"


def _sql_literal(text: str) -> str:
    """Return a SQL literal for OPTIMIZE, which takes no parameters. Written as bytes, so no text can inject SQL."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def is_cleaned_up(tables: LakeTables) -> bool:
    """Return whether no old file holds an id of an erased person: maintenance came after the last erasure."""
    return _last_erasure(tables) == _cleaned_up_to(tables)


def _last_erasure(tables: LakeTables) -> int:
    """Return the last batch of retention that erased somebody; 0 if none did."""
    erasures = read_rows(open_table(tables.location(ERASURE)), ["batch_id"])
    return max(erasures.column("batch_id").to_pylist(), default=0)


def _cleaned_up_to(tables: LakeTables) -> int:
    properties = open_table(tables.location(ERASURE)).metadata().configuration
    return int(properties.get(CLEANED_UP_TO, 0))


def _record_clean_up(tables: LakeTables, spark: SparkSession, last_erasure: int) -> None:
    erasure = tables.identifier(ERASURE)
    spark.sql(f"ALTER TABLE {erasure} SET TBLPROPERTIES ('{CLEANED_UP_TO}' = '{last_erasure}')")
