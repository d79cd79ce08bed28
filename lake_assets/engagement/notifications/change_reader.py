"""The change reader: the notifications since a cursor, and the rows that they speak of.

A cursor is a version of the engagement table: whoever holds it knows the table as it stood there; 0 is before the first
row. Batches are read in the order of their commits, and none before it was told of: what a stream has committed but not
yet told ends what can be read. So one number is enough to read each change exactly once, and to start again: read the
table as of a version, then the changes since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.engagement.model import idempotent
from lake_assets.engagement.model.lake import STREAMS
from lake_assets.engagement.model.tables import ENGAGEMENT, NOTIFICATION, LakeTables
from lake_assets.engagement.notifications.notify import Notification
from lake_assets.errors import ChangesExpired, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_GONE = "FAILED_READ_FILE.FILE_NOT_EXIST"
"""Spark's condition for a file that a table's log names and that is not there."""


@dataclass(frozen=True)
class Changes:
    """notifications: `NOTIFICATION_COLUMNS`. rows: as the change data feed has them: the columns of the engagement
    table, _change_type string (`insert`, `update_preimage`, `update_postimage`, `delete`), _commit_version long,
    _commit_timestamp timestamp. cursor: the next one; the given one if nothing is new.
    """

    notifications: DataFrame
    rows: DataFrame
    cursor: int


@dataclass(frozen=True)
class ChangeReader:
    """Reads the changes of one lake. It keeps nothing between calls: the cursor is the caller's to keep."""

    tables: LakeTables
    spark: SparkSession

    def read_changes(self, cursor: int, org_id: str | None = None) -> Changes:
        """What happened after the cursor, of all orgs or of one; read it before the next VACUUM.

        `UsageError` for a cursor that is no version of the table. `ChangesExpired` when VACUUM or an erasure has taken
        the change data feed: it tells the version to restart from.
        """
        from pyspark.sql import functions as F

        last, versions = told_since(self.tables, cursor)
        notifications = self.tables.read(self.spark, NOTIFICATION).where(F.col("version").between(cursor + 1, last))
        feed = self.tables.changes(self.spark, ENGAGEMENT, min(cursor + 1, last), last)
        rows = feed.where(F.col("_commit_version").isin(versions))
        if versions and not _is_there(rows):
            raise ChangesExpired(self.tables.location(ENGAGEMENT), cursor=cursor, version=last)
        if org_id is not None:
            notifications, rows = (frame.where(F.col("org_id") == org_id) for frame in (notifications, rows))
        return Changes(notifications, rows, last)


def told_since(tables: LakeTables, cursor: int) -> tuple[int, list[int]]:
    """The next cursor, and the versions of the batches after this one and up to it: from logs alone, without Spark.

    Raises as `ChangeReader.read_changes` does, except for files that are gone.
    """
    newest = tables.version(ENGAGEMENT)
    if not 0 <= cursor <= newest:
        raise UsageError(
            f"{cursor} is no cursor of {tables.location(ENGAGEMENT)}, whose newest version is {newest}.",
            remedy="Give the cursor that was read last, or 0 to begin.",
        )
    marks = {commit.version: commit.mark for commit in tables.history(ENGAGEMENT, since=cursor)}
    first = min(marks, default=newest + 1)
    last, versions = told_through(first - 1, marks, _batches_told(tables))
    if first > cursor + 1:
        raise ChangesExpired(tables.location(ENGAGEMENT), cursor=cursor, version=last)
    return last, versions


def told_through(cursor: int, marks: Mapping[int, str | None], told: Mapping[str, int]) -> tuple[int, list[int]]:
    """The last version before the first batch that was not told of, and the versions of the batches up to it. Pure.

    marks: each version after the cursor → the user metadata of its commit. told: transaction id of what writes rows →
    its last batch that was told of. Commits of nobody's batch, such as a table's maintenance, change no row.
    """
    last, versions = cursor, []
    for version, mark in sorted(marks.items()):
        app_id, batch_id = idempotent.marked(mark)
        if app_id in told:
            if batch_id > told[app_id]:
                break
            versions.append(version)
        last = version
    return last, versions


def _batches_told(tables: LakeTables) -> dict[str, int]:
    """Transaction id of what writes rows → the last of its batches that was told of; 0 if none was."""
    lake = tables.lake
    last = {stream: tables.last_batch(NOTIFICATION, lake.app_id(stream, Notification.name)) for stream in STREAMS}
    return {lake.app_id(stream, Notification.of): batch_id for stream, batch_id in last.items()}


def _is_there(rows: DataFrame) -> bool:
    """Whether every file is there that the rows are read from: Spark opens them all, and reads hardly more."""
    from pyspark.errors import PySparkException

    try:
        rows.groupBy("_change_type").count().collect()
    except PySparkException as error:
        if _FILE_GONE in str(error):  # its own, or that of the task for which Spark gave up the query
            return False
        raise
    return True
