"""Notifications of data commits, which downstream readers poll: one row for each org; and reading changes.

A position is a version of the engagement table; 0 is before the first row. Batches are read in the order of their
commits, and only up to the first one without a notification. So one number is enough to read each change exactly once,
and to start again: read the table at a version, then the changes since. A public cursor also names the table, so that
no lake takes that of another.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow.fs import FileSystem, FileType
from pyarrow.parquet import ParquetFile

from lake_assets.engagement import delta_log
from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.delta_log import MILLISECONDS, Commit, file_system, open_table, read_rows
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.lakes import lake_named
from lake_assets.engagement.tables import (
    ENGAGEMENT,
    MUTATION_REQUEST,
    NO_MISTAKES,
    NOTIFICATION,
    LakeTables,
    open_tables,
)
from lake_assets.errors import ChangesExpired, UsageError, counts_differ
from lake_assets.settings import settings as settings_of_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

DATA_COMMIT = "data"
"""Name of the commit of each stream that changes the engagement table, and that a notification describes."""

_COUNTED_BY = {"insert": "inserted", "update_postimage": "updated", "delete": "deleted"}
"""Change type in the change data feed → the column that counts it."""


@dataclass
class Counts:
    """Numbers of changed rows, of one org or of all."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def add(self, other: Counts) -> None:
        self.inserted += other.inserted
        self.updated += other.updated
        self.deleted += other.deleted


@dataclass(frozen=True)
class NotificationCommit:
    """Appends the notifications of the batch's data commit.

    Attributes:
        app_name: Stream that makes both commits.
    """

    tables: LakeTables
    spark: SparkSession
    app_name: str
    name: str = "notification"
    table: str = NOTIFICATION

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        """Append one row for each org, all in one commit; nothing if the batch has no data commit.

        Raises:
            LakeError: The change data feed and the metrics of the data commit disagree.
        """
        version = done[DATA_COMMIT]
        if version is None:
            return
        commit = self.tables.commit_at(ENGAGEMENT, version)
        counts = counts_by_org(self.spark, self.tables, version)
        check_totals(commit, counts, self.tables.location(ENGAGEMENT))
        rows = [self._row(org, org_counts, commit) for org, org_counts in sorted(counts.items())]
        self.tables.append_few(NOTIFICATION, rows, app_id=app_id, batch_id=batch.batch_id)

    def _row(self, org: str, counts: Counts, commit: Commit) -> dict[str, Any]:
        return {
            "org_id": org,
            "ingestion_hour": commit.committed_at.replace(minute=0, second=0, microsecond=0),
            "table_name": ENGAGEMENT,
            "last_modified": commit.committed_at,
            **asdict(counts),
            "app_name": self.app_name,
            "version": commit.version,
        }


def counts_by_org(spark: SparkSession, tables: LakeTables, version: int) -> dict[str, Counts]:
    """Count the changes of one commit of the engagement table by org, from its change data feed."""
    changes = tables.changes(spark, ENGAGEMENT, version).groupBy("org_id", "_change_type").count()
    found: defaultdict[str, Counts] = defaultdict(Counts)
    for row in changes.collect():
        column = _COUNTED_BY.get(row["_change_type"])
        if column is not None:
            setattr(found[row["org_id"]], column, row["count"])
    return dict(found)


def check_totals(commit: Commit, counts: Mapping[str, Counts], table: str) -> None:
    """Check that the counts of all orgs equal the metrics of the commit, an append or a merge.

    Raises:
        LakeError: They disagree.
    """
    in_metrics = total_counts(commit)
    in_feed = Counts()
    for org_counts in counts.values():
        in_feed.add(org_counts)
    if in_feed != in_metrics:
        raise counts_differ(table, commit.version, feed=in_feed, metrics=in_metrics)


def total_counts(commit: Commit) -> Counts:
    """Return the counts of all orgs together, from the metrics of an append or a merge."""
    return Counts(
        inserted=_metric(commit, "numTargetRowsInserted", "numOutputRows"),
        updated=_metric(commit, "numTargetRowsUpdated"),
        deleted=_metric(commit, "numTargetRowsDeleted"),
    )


def _metric(commit: Commit, *names: str) -> int:
    """Return the first of the metrics that the commit has: a merge has other ones than an append."""
    for name in names:
        if name in commit.metrics:
            return int(commit.metrics[name])
    return 0


CURSOR = re.compile(r"([0-9]{1,18})(?:@([0-9a-f]{8}))?")
"""Version of the engagement table, and the first digits of its id. Without them it is a version of whatever table."""

_FEED = (
    pa.field("_change_type", pa.string()),
    pa.field("_commit_version", pa.int64()),
    pa.field("_commit_timestamp", pa.timestamp("us", "UTC")),
)
_GIVE_A_CURSOR = "Give the cursor that was read last, or 0 for all changes."


@dataclass(frozen=True)
class Changes:
    """Changes of a lake after a cursor.

    Attributes:
        notifications: A row for each batch and org: org_id, ingestion_hour, table_name, last_modified, inserted,
            updated, deleted, app_name, version.
        rows: Read once, in the order of the commits: the columns of the engagement table, _change_type string
            (`insert`, `update_preimage`, `update_postimage`, `delete`), _commit_version int64, _commit_timestamp.
        cursor: Next cursor; the given one if nothing is new.
        version: Version of the engagement table that a reader of these changes knows.
    """

    notifications: pa.Table
    rows: pa.RecordBatchReader
    cursor: str
    version: int


def read_changes(
    lake: str, cursor: str | int | None, org_id: str | None = None, *, settings: Settings | None = None
) -> Changes:
    """Return the inserts, updates and deletes of a lake after a cursor, each once. Starts no Spark.

    Args:
        lake: Name of a configured lake.
        cursor: That of the last call; None or 0 for all changes; or a version of the engagement table that was read.
        org_id: Only changes of this org; None for all orgs.
        settings: Those of the process by default.

    Returns:
        Arrow data. All files of `rows` were there; they must be read before the next VACUUM.

    Raises:
        UsageError: There is no such lake, table, cursor or org.
        ChangesExpired: VACUUM or an erasure has removed the changes. The error has the cursor to go on with, and the
            version of the table to read before.
    """
    chosen = settings_of_process() if settings is None else settings
    return changes_of(open_tables(chosen, lake_named(chosen, lake)), cursor, org_id)


def changes_of(tables: LakeTables, cursor: str | int | None, org_id: str | None = None) -> Changes:
    """Return what `read_changes` returns, of the tables of a lake."""
    since = _version(tables, cursor)
    if org_id is not None:
        tables.require_org(org_id)
    last, versions = notified_since(tables, since)
    rows = changed_rows(tables, since, last, versions, org_id=org_id)
    wanted: list[tuple[str, str, object]] = [("version", ">", since), ("version", "<=", last)]
    if org_id is not None:
        wanted.append(("org_id", "=", org_id))
    notifications = read_rows(open_table(tables.location(NOTIFICATION)), filters=wanted)
    in_order = notifications.sort_by([("version", "ascending"), ("org_id", "ascending")])
    return Changes(in_order, rows, f"{last}@{_table_id(tables)}", last)


def changed_rows(
    tables: LakeTables,
    since: int,
    last: int,
    versions: Collection[int],
    *,
    org_id: str | None = None,
    columns: Sequence[str] = (),
) -> pa.RecordBatchReader:
    """Return the rows that batches have changed, in the order of their commits.

    Args:
        since: Version that the reader knows.
        last: Version that it knows next.
        versions: The batches between, as `notified_since` returns them.
        org_id: Only rows of this org; None for all orgs.
        columns: Columns of `Changes.rows`; empty for all.

    Raises:
        ChangesExpired: A file no longer exists.
    """
    location = tables.location(ENGAGEMENT)
    schema = pa.schema([*pa.schema(open_table(location).schema().to_arrow()), *_FEED])
    if columns:
        schema = pa.schema([schema.field(name) for name in columns])
    store, folder = file_system(location)
    of_batches = [file for version in versions for file in _changed_files(store, folder, version)]
    files = [(path, values) for path, values in of_batches if org_id in (None, values["org_id"])]
    if any(info.type is FileType.NotFound for info in store.get_file_info([path for path, _ in files])):
        raise ChangesExpired(location, cursor=since, version=last)

    def batches() -> Iterator[pa.RecordBatch]:
        for path, values in files:
            with store.open_input_file(path) as opened:
                parquet = ParquetFile(opened, coerce_int96_timestamp_unit="us")
                stored = [name for name in schema.names if name in parquet.schema_arrow.names]
                for batch in parquet.iter_batches(columns=stored, use_threads=False):
                    yield _with_schema(batch, schema, values)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _changed_files(store: FileSystem, folder: str, version: int) -> list[tuple[str, dict[str, object]]]:
    """Return the files with the changes of a batch, each with the values of columns that it does not contain.

    A batch is an append of new files, or a MERGE, which writes its changes to files of their own. delta-rs reads them,
    too, but not those of an org whose name is escaped in the path.
    """
    with store.open_input_file(f"{folder}/_delta_log/{version:020d}.json") as log:
        actions = [json.loads(line) for line in log.read().splitlines()]
    files: list[tuple[dict[str, Any], dict[str, str]]] = [(action["cdc"], {}) for action in actions if "cdc" in action]
    if not files:
        added = [action["add"] for action in actions if "add" in action]
        files = [(file, {"_change_type": "insert"}) for file in added if file["dataChange"]]
    (committed,) = (action["commitInfo"]["timestamp"] for action in actions if "commitInfo" in action)
    of_commit = {"_commit_version": version, "_commit_timestamp": datetime.fromtimestamp(committed / MILLISECONDS, UTC)}
    return [
        (f"{folder}/{unquote(file['path'])}", {**of_commit, **file["partitionValues"], **change})
        for file, change in files
    ]


def _with_schema(batch: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, object]) -> pa.RecordBatch:
    """Return a batch of a file with all columns; those that it lacks have one value in all rows, or null."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.repeat(pa.scalar(values.get(field.name), field.type), batch.num_rows)
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


@dataclass(frozen=True)
class BatchEffect:
    """What a finished batch has done.

    Attributes:
        inserted: Number of rows, as `updated` and `deleted` are.
        dead_letters: Number of messages that could not be used; not those that are repeated, or of an erased person.
        requests: Number of requests that mutation has applied; 0 for other streams.
        ids_moved: Number of ids whose rows these have moved or deleted; 0 for other streams.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    dead_letters: int = 0
    requests: int = 0
    ids_moved: int = 0


def batch_effect(tables: LakeTables, name: StreamName, batch: Batch, commit: Commit | None) -> BatchEffect:
    """Return what a finished batch has done, as far as the tables still tell.

    Args:
        commit: Its data commit; None if it made none, or if the log does not have it any more.
    """
    letters = tables.dead_letters(batch)
    dead = sum(count for reason, count in letters.items() if reason not in NO_MISTAKES)
    counts = {} if commit is None else asdict(total_counts(commit))
    if name != "mutation":
        return BatchEffect(**counts, dead_letters=dead)
    applied = "status IN ('applied', 'met') AND old_id IS NOT NULL"
    of_batch = f"SELECT count(*) AS n FROM {MUTATION_REQUEST} WHERE {applied} AND batch_id = {batch.batch_id}"
    [requests] = tables.query(MUTATION_REQUEST, of_batch)
    moved = 0
    if commit is not None:
        with suppress(ChangesExpired):
            moved = _count_ids(tables, commit.version)
    return BatchEffect(**counts, dead_letters=dead, requests=requests["n"], ids_moved=moved)


def collapsed(effect: BatchEffect) -> str:
    """Return how far requests were reduced before rows were moved: `28,000 requests → 9,100 ids moved`."""
    requests = f"{effect.requests:,} request{'' if effect.requests == 1 else 's'}"
    return f"{requests} → {effect.ids_moved:,} id{'' if effect.ids_moved == 1 else 's'} moved"


def _count_ids(tables: LakeTables, version: int) -> int:
    """Return the number of ids that rows had before a commit changed or deleted them.

    If the lake has several id columns, an update counts for those whose id it changed, a deletion for the first one.
    """
    ids = [*tables.lake.ids]
    key = ["org_id"] if len(ids) == 1 else ["org_id", "engagement_id", "engaged_at"]
    seen, before, after = set[tuple[str, str, str]](), set[tuple[Any, ...]](), set[tuple[Any, ...]]()
    for batch in changed_rows(tables, version - 1, version, [version], columns=[*key, *ids, "_change_type"]):
        rows = zip(*(batch[name].to_pylist() for name in ("_change_type", *key, *ids)), strict=True)
        for kind, *row in rows:
            if kind == "delete" or (len(ids) == 1 and kind == "update_preimage"):
                seen.add((row[0], ids[0], row[len(key)]))
            elif len(ids) > 1 and kind in ("update_preimage", "update_postimage"):
                images = before if kind == "update_preimage" else after
                images.update((column, *row[: len(key)], row[len(key) + n]) for n, column in enumerate(ids))
    seen.update((org, column, identity) for column, org, *_, identity in before - after)
    return len(seen)


def _version(tables: LakeTables, cursor: str | int | None) -> int:
    """Return the version of the engagement table that a cursor names."""
    text = "0" if cursor is None else str(cursor)
    found = CURSOR.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no cursor.", remedy=_GIVE_A_CURSOR)
    version, table_id = found.groups()
    if table_id not in (None, _table_id(tables)):
        raise UsageError(
            f"{text} is a cursor of another table than {tables.location(ENGAGEMENT)}, whose cursors end with"
            f" @{_table_id(tables)}.",
            remedy=_GIVE_A_CURSOR,
        )
    return int(version)


def _table_id(tables: LakeTables) -> str:
    return str(open_table(tables.location(ENGAGEMENT)).metadata().id)[:8]


def notified_since(tables: LakeTables, cursor: int) -> tuple[int, list[int]]:
    """Return the version to know next, and the versions of the batches after `cursor` and up to it. Reads logs only.

    Raises:
        UsageError: The table has no such version yet.
        ChangesExpired: The log no longer reaches back to the cursor.
    """
    newest = tables.version(ENGAGEMENT)
    if not 0 <= cursor <= newest:
        raise UsageError(
            f"{cursor} is no cursor of {tables.location(ENGAGEMENT)}, whose newest version is {newest}.",
            remedy=_GIVE_A_CURSOR,
        )
    marks = {commit.version: commit.mark for commit in tables.history(ENGAGEMENT, since=cursor)}
    first = min(marks, default=newest + 1)
    last, versions = notified_through(first - 1, marks, _notified_batches(tables))
    if first > cursor + 1:
        raise ChangesExpired(tables.location(ENGAGEMENT), cursor=cursor, version=last)
    return last, versions


def notified_through(
    cursor: int, marks: Mapping[int, str | None], notified: Mapping[str, int]
) -> tuple[int, list[int]]:
    """Return the last version before the first batch without a notification, and the versions of batches up to it.

    Pure. Commits of no batch, such as maintenance, change no row.

    Args:
        marks: Version after the cursor → user metadata of its commit.
        notified: App id of a data commit → its last batch with a notification.
    """
    last = cursor
    versions = []
    for version, mark in sorted(marks.items()):
        app_id, batch_id = delta_log.parse_mark(mark)
        if app_id in notified:
            if batch_id > notified[app_id]:
                break
            versions.append(version)
        last = version
    return last, versions


def _notified_batches(tables: LakeTables) -> dict[str, int]:
    """Return the app id of each stream's data commit → its last batch with a notification; 0 if there is none."""
    lake = tables.lake
    notified = {}
    for stream in STREAMS:
        notifier = lake.app_id(stream, NotificationCommit.name)
        notified[lake.app_id(stream, DATA_COMMIT)] = tables.last_batch(NOTIFICATION, notifier)
    return notified
