"""Maintenance of a lake: rewrite its files large and sorted, remove files that no version needs, move it to another
ZooKeeper.

New rows are mostly of the present day, so the small files of an org can be merged without touching the others, and a
day is in few files still. Sorting rewrites all rows of an org. So an org is sorted only when much of it is unsorted:
then the bytes that sorting rewrites are a small multiple of those that were written since it was sorted last.

A former lock holder cannot commit the files that it has left, because its batch was finished by another process. The
files of a later holder are not in the inventory. So orphans are removed at once, too, except those of tables that are
also written without the lock.

Maintenance takes a turn as a stream does, after retention. Then no batch is open, and mutation has processed every
row. It commits only rewritten rows, so if it is killed anywhere and called again, it ends with the same rows.

Fencing tokens are ZooKeeper's transaction ids, and a new ensemble counts from the start: every turn would take the
token of the former claim for that of a later holder. The new registry is empty, so a first stream would run before the
stream whose batch is open. This module corrects both under the lock of the new ensemble. It cannot see a process that
still holds the lock of the old one: there must be none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileType

from lake_assets.base.failpoints import HALF_OPTIMIZED, TURN_GIVEN, reach
from lake_assets.connections.spark import MASTER, is_local
from lake_assets.coordination import JobCoordinator
from lake_assets.engagement.batch import Guard
from lake_assets.engagement.delta_log import file_system, open_table, read_rows
from lake_assets.engagement.known_requests import upgrade
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.removed import forget_removed
from lake_assets.engagement.tables import (
    CHECKPOINT,
    DEAD_LETTER,
    ENGAGEMENT,
    ENGAGEMENT_METRICS,
    ERASURE,
    MUTATION_REQUEST,
    NOTIFICATION,
    ORG,
    REMOVED,
    LakeTables,
)
from lake_assets.engagement.turn_order import MAINTENANCE, coordinator_of

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

SHARED_FILES = 1
"""Files of full size that overlap a file in addition to the share: a sorted file shares days with its neighbors."""

MAX_SHARE = 0.5
"""Share of an org's bytes that may have a day in common with a file, as the mean over all files."""


@dataclass(frozen=True)
class DatedFile:
    """A data file. first, last: dates of its rows, inclusive."""

    org_id: str
    bytes: int
    first: date
    last: date


def orgs_to_sort(files: Iterable[DatedFile], max_file_bytes: int) -> list[str]:
    """Return the orgs whose rows should be sorted, ascending.

    Args:
        files: All files of each org.
        max_file_bytes: Size of a full file.
    """
    by_org: defaultdict[str, list[DatedFile]] = defaultdict(list)
    for file in files:
        by_org[file.org_id].append(file)
    found = []
    for org, of_org in by_org.items():
        total = sum(file.bytes for file in of_org)
        if mean_overlap(of_org) > SHARED_FILES * max_file_bytes + MAX_SHARE * total:
            found.append(org)
    return sorted(found)


def mean_overlap(files: Sequence[DatedFile]) -> float:
    """Return the bytes of the files that have a day in common with a file, as the mean over all bytes of an org.

    A file overlaps itself. Files of one and the same single day do not overlap each other, because sorting by date
    cannot separate them.
    """
    total = sum(file.bytes for file in files)
    firsts = _Bytes(sorted((file.first, file.bytes) for file in files))
    lasts = _Bytes(sorted((file.last, file.bytes) for file in files))
    of_single_days = _bytes_of_single_days(files)
    weighted = 0
    for file in files:
        overlapping = firsts.through(file.last) - lasts.before(file.first)
        if file.first == file.last:
            overlapping -= of_single_days[file.first] - file.bytes
        weighted += file.bytes * overlapping
    return weighted / total if total else 0.0


def _bytes_of_single_days(files: Iterable[DatedFile]) -> Mapping[date, int]:
    """Return date → the bytes of the files that have rows of this day alone."""
    found: defaultdict[date, int] = defaultdict(int)
    for file in files:
        if file.first == file.last:
            found[file.first] += file.bytes
    return found


class _Bytes:
    """The bytes of files by a date, for sums up to a date."""

    def __init__(self, dated: Sequence[tuple[date, int]]) -> None:
        self._days = [day for day, _ in dated]
        self._sums = [0, *accumulate(size for _, size in dated)]

    def through(self, day: date) -> int:
        return self._sums[bisect_right(self._days, day)]

    def before(self, day: date) -> int:
        return self._sums[bisect_left(self._days, day)]


NANOSECONDS_PER_MILLISECOND = 1_000_000

_INVENTORY = "lake_inventory"
_INVENTORY_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("length", pa.int64()),
        ("isDir", pa.bool_()),
        ("modificationTime", pa.int64()),
    ]
)
_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"


def vacuum(tables: LakeTables, spark: SparkSession, table: str, hours: int, confirm: Callable[[], None]) -> int:
    """Remove the files of a table that no version of the last hours needs.

    Args:
        confirm: Called after the files were listed; raises if somebody else may have written meanwhile.

    Returns:
        Number of removed files.
    """
    location = tables.location(table)
    version_before = tables.version(table)
    entries = list(inventory(location))
    files = [entry for entry in entries if not entry["isDir"]]
    if len(files) == len(open_table(location).file_uris()):
        return 0  # the present version needs every file
    listed = pa.Table.from_pylist(entries, schema=_INVENTORY_SCHEMA)
    spark.createDataFrame(listed).createOrReplaceTempView(_INVENTORY)
    confirm()
    with session_conf(spark, _RETENTION_CHECK, "false"):
        source = f"(SELECT * FROM {_INVENTORY})"
        spark.sql(f"VACUUM {tables.identifier(table)} USING INVENTORY {source} RETAIN {hours:d} HOURS")
    removed = 0
    for commit in tables.history(table, since=version_before):
        if commit.operation == "VACUUM END":
            removed += int(commit.metrics["numDeletedFiles"])
    return removed


@contextmanager
def session_conf(spark: SparkSession, name: str, value: object) -> Iterator[None]:
    """Set a configuration of the Spark session, and unset it on exit."""
    spark.conf.set(name, str(value))
    try:
        yield
    finally:
        spark.conf.unset(name)


def inventory(location: str) -> Iterator[dict[str, Any]]:
    """Yield the files and folders of a table as VACUUM needs them, except its log and hidden ones.

    Files that are older than the table are left out, so VACUUM keeps them: if the log was lost and the table created
    again, they are rows of the former table.
    """
    created_at = open_table(location).metadata().created_time or 0
    store, folder = file_system(location)
    root = folder.rstrip("/") + "/"
    base = location.replace("file:///", "file:/")  # Hadoop's spelling
    for info in store.get_file_info(FileSelector(folder, recursive=True)):
        path = info.path.removeprefix(root)
        is_excluded = any(part.startswith(".") or part == "_delta_log" for part in path.split("/"))
        entry = _inventory_entry(info, f"{base}/{path}")
        is_of_table = entry["isDir"] or entry["modificationTime"] >= created_at
        if is_of_table and not is_excluded:
            yield entry


def _inventory_entry(info: FileInfo, path: str) -> dict[str, Any]:
    return {
        "path": path,
        "length": info.size or 0,
        "isDir": info.type is FileType.Directory,
        "modificationTime": (info.mtime_ns or 0) // NANOSECONDS_PER_MILLISECOND,
    }


TABLES = (
    ENGAGEMENT,
    MUTATION_REQUEST,
    NOTIFICATION,
    DEAD_LETTER,
    ERASURE,
    REMOVED,
    ORG,
    ENGAGEMENT_METRICS,
    CHECKPOINT,
)
COMPACTED_TABLES = (MUTATION_REQUEST, NOTIFICATION, DEAD_LETTER, ERASURE, REMOVED)
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
    confirm()
    forget_removed(tables)
    kept_hours = retain_hours if is_cleaned_up(tables) else 0
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
        The orgs whose rows were sorted (see `orgs_to_sort`).
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
    erasures = read_rows(open_table(tables.location(ERASURE)), ["batch_id"], [("id_hash", ">", "")])
    return max(erasures.column("batch_id").to_pylist(), default=0)


def _cleaned_up_to(tables: LakeTables) -> int:
    properties = open_table(tables.location(ERASURE)).metadata().configuration
    return int(properties.get(CLEANED_UP_TO, 0))


def _record_clean_up(tables: LakeTables, spark: SparkSession, last_erasure: int) -> None:
    erasure = tables.identifier(ERASURE)
    spark.sql(f"ALTER TABLE {erasure} SET TBLPROPERTIES ('{CLEANED_UP_TO}' = '{last_erasure}')")


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
