"""The maintenance of a lake: its files made large and sorted, and what no version needs any more removed.

It takes a turn as a stream does, after retention: then no batch is open, and mutation has seen every row that came. It
commits nothing but rows written anew, so called again after it died anywhere, it ends the same.

VACUUM gets an inventory, listed while the lock is held. Whatever a former holder left there can be committed no more,
for its batch was finished by another; and what a later one writes is not in it. So orphans go with the rest, at once,
but for those of `UNLOCKED` tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType

from lake_assets.base.failpoints import HALF_OPTIMIZED, reach
from lake_assets.coordination import JobCoordinator
from lake_assets.engagement.model.checkpoint import opened
from lake_assets.engagement.model.tables import (
    CHECKPOINT,
    DEAD_LETTER,
    ENGAGEMENT,
    ENGAGEMENT_METRICS,
    ERASURE,
    MUTATION_REQUEST,
    NOTIFICATION,
    ORG,
    LakeTables,
)
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

UNLOCKED = frozenset({ORG, ENGAGEMENT_METRICS})
"""Tables that are also written without the lock; they hold no id of a person."""

WRITING_HOURS = 1
"""So long at most somebody writes a file of theirs before it is committed."""

FORGOTTEN = "lake.forgotten"
"""Property of the erasure table: the last batch of retention whose erasures no old file knows any more."""

_INVENTORY = "lake_inventory"
_INVENTORY_SCHEMA = pa.schema(
    [("path", pa.string()), ("length", pa.int64()), ("isDir", pa.bool_()), ("modificationTime", pa.int64())]
)
_UNCHECKED = "spark.databricks.delta.retentionDurationCheck.enabled"
_FILE_SIZE = "spark.databricks.delta.optimize.maxFileSize"


@dataclass(frozen=True)
class Size:
    """What the present versions of all tables of a lake consist of, as their logs tell."""

    files: int
    bytes: int


@dataclass(frozen=True)
class MaintenanceReport:
    """orgs: whose rows were written anew. kept_hours: so long old versions stay readable; 0 after an erasure.

    removed: table → files of former versions, and those of no version. before, after: what the tables consisted of.
    """

    orgs: int
    kept_hours: int
    removed: Mapping[str, int]
    before: Size
    after: Size


def coordinator(tables: LakeTables, zk: KazooClient, spark: SparkSession, *, timeout: float) -> JobCoordinator:
    """The side of maintenance of the lock of its lake. zk: started. timeout: seconds that it waits for the lock."""
    return coordinator_of(MAINTENANCE, tables, zk, spark, timeout=timeout)


def take_turn(
    tables: LakeTables, spark: SparkSession, zk: KazooClient, *, max_wait: float, retain_hours: int
) -> MaintenanceReport:
    """A turn of maintenance. max_wait: seconds. Raises what the coordinator raises. retain_hours: as for `maintain`.

    A turn that stopped is to be taken again: nobody else gets one before.
    """
    coordinated = coordinator(tables, zk, spark, timeout=max_wait)
    with coordinated.turn(max_wait=max_wait):
        return maintain(tables, spark, coordinated, retain_hours=retain_hours)


def maintain(tables: LakeTables, spark: SparkSession, guard: Guard, *, retain_hours: int) -> MaintenanceReport:
    """Optimize and vacuum the tables of a lake, in a turn of its own: no batch may be open.

    retain_hours: so long a reader may want an old version, or its changes. After an erasure nothing old is kept.
    """
    confirm = partial(_confirm, tables, guard, guard.claim())
    before = size(tables)
    erased, orgs = _last_erasure(tables), changed_orgs(tables)
    kept = retain_hours if erased == _forgotten(tables) else 0
    write_anew(tables, spark, orgs, confirm)
    reach("maintenance-optimized")
    removed = {}
    for table in TABLES:
        hours = max(retain_hours, WRITING_HOURS) if table in UNLOCKED else kept
        removed[table] = _vacuum(tables, spark, table, hours, confirm)
        reach("maintenance-half-vacuumed")
    if kept == 0:
        confirm()
        spark.sql(f"ALTER TABLE {tables.identifier(ERASURE)} SET TBLPROPERTIES ('{FORGOTTEN}' = '{erased}')")
    reach("maintenance-recorded")
    return MaintenanceReport(len(orgs), kept, removed, before, size(tables))


def _confirm(tables: LakeTables, guard: Guard, token: int) -> None:
    """Before each statement: it may wait long for its turn in Spark, and the one before may have taken long."""
    guard.confirm()
    tables.check_claimed(token)


def size(tables: LakeTables) -> Size:
    """Of a lake as it stands."""
    sizes = [_file_sizes(tables.location(table)) for table in TABLES]
    return Size(sum(map(len, sizes)), sum(map(sum, sizes)))


def _file_sizes(location: str) -> list[int]:
    files = pa.table(opened(location).get_add_actions())
    return [int(size) for size in files.column("size_bytes").to_pylist()]


def changed_orgs(tables: LakeTables) -> list[str]:
    """The orgs with commits of data since they were last written anew, as notifications tell."""
    since = next((c.version for c in tables.history(ENGAGEMENT) if c.operation == "OPTIMIZE"), -1)
    told = opened(tables.location(NOTIFICATION)).to_pyarrow_table(columns=["org_id"], filters=[("version", ">", since)])
    return sorted(set(told.column("org_id").to_pylist()))


def write_anew(tables: LakeTables, spark: SparkSession, orgs: Sequence[str], confirm: Callable[[], None]) -> None:
    """Rows of these orgs sorted by date in files of the lake's size, none of them deleted by a vector alone.

    confirm: called before each statement; raises when another one may write by now.
    """
    with _conf(spark, _FILE_SIZE, tables.lake.max_file_bytes):
        for statement in _rewrites(tables, orgs):
            confirm()
            spark.sql(statement)
            reach(HALF_OPTIMIZED)


def _rewrites(tables: LakeTables, orgs: Sequence[str]) -> Iterator[str]:
    engagement = tables.identifier(ENGAGEMENT)
    if orgs:
        yield f"OPTIMIZE {engagement} WHERE org_id IN ({', '.join(map(_literal, orgs))}) ZORDER BY (engagement_date)"
    yield f"REORG TABLE {engagement} APPLY (PURGE)"
    for table in (MUTATION_REQUEST, NOTIFICATION, DEAD_LETTER, ERASURE):
        yield f"OPTIMIZE {tables.identifier(table)}"


def _vacuum(tables: LakeTables, spark: SparkSession, table: str, hours: int, confirm: Callable[[], None]) -> int:
    """Remove what no version of the last hours needs; how many files."""
    location, before = tables.location(table), tables.version(table)
    found = list(_inventory(location))
    if sum(not entry["isDir"] for entry in found) == len(opened(location).file_uris()):
        return 0  # nothing is there but what the present version needs
    files = spark.createDataFrame(pa.Table.from_pylist(found, schema=_INVENTORY_SCHEMA))
    files.createOrReplaceTempView(_INVENTORY)
    confirm()  # after the listing: while it was made, nobody else wrote
    with _conf(spark, _UNCHECKED, "false"):
        listed = f"(SELECT * FROM {_INVENTORY})"
        spark.sql(f"VACUUM {tables.identifier(table)} USING INVENTORY {listed} RETAIN {hours:d} HOURS")
    ended = (c for c in tables.history(table, since=before) if c.operation == "VACUUM END")
    return sum(int(commit.metrics["numDeletedFiles"]) for commit in ended)


def _inventory(location: str) -> Iterator[dict[str, Any]]:
    """The files and folders of a table, but for its log and hidden ones, as VACUUM wants them."""
    store, folder = FileSystem.from_uri(location)
    base = location.replace("file:///", "file:/")  # as Hadoop spells it
    for info in store.get_file_info(FileSelector(folder, recursive=True)):
        inside = info.path.removeprefix(folder.rstrip("/") + "/")
        if not any(name.startswith(".") or name == "_delta_log" for name in inside.split("/")):
            yield _entry(info, f"{base}/{inside}")


def _entry(info: FileInfo, path: str) -> dict[str, Any]:
    return {
        "path": path,
        "length": info.size or 0,
        "isDir": info.type is FileType.Directory,
        "modificationTime": (info.mtime_ns or 0) // 1_000_000,
    }


def _last_erasure(tables: LakeTables) -> int:
    """The last batch of retention that erased somebody; 0 if none did."""
    batches = opened(tables.location(ERASURE)).to_pyarrow_table(columns=["batch_id"]).column("batch_id").to_pylist()
    return max(batches, default=0)


def _forgotten(tables: LakeTables) -> int:
    return int(opened(tables.location(ERASURE)).metadata().configuration.get(FORGOTTEN, 0))


def _literal(text: str) -> str:
    """A text for the condition of OPTIMIZE, which takes no parameters: by its bytes, so nothing in it is SQL."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


@contextmanager
def _conf(spark: SparkSession, name: str, value: object) -> Iterator[None]:
    spark.conf.set(name, str(value))
    try:
        yield
    finally:
        spark.conf.unset(name)
