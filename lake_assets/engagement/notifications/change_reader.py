"""The change reader: the notifications since a cursor, and the rows that they describe.

A cursor is a version of the engagement table: its holder knows the table at that version; 0 is before the first row.
Batches are read in the order of their commits, and only up to the first one without a notification. So one number is
enough to read each change exactly once, and to start again: read the table at a version, then the changes since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.engagement.model import idempotent
from lake_assets.engagement.model.lake import STREAMS
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, NOTIFICATION
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.notifications.notify import DATA_COMMIT, NotificationCommit
from lake_assets.errors import ChangesExpired, UsageError
from lake_assets.errors.texts import text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_MISSING = "FAILED_READ_FILE.FILE_NOT_EXIST"
"""Spark's error condition for a file that the table's log names and that does not exist."""


@dataclass(frozen=True)
class Changes:
    """Changes after a cursor.

    Attributes:
        notifications: `NOTIFICATION_COLUMNS`.
        rows: Rows of the change data feed: the columns of the engagement table, _change_type string (`insert`,
            `update_preimage`, `update_postimage`, `delete`), _commit_version long, _commit_timestamp timestamp.
        cursor: Next cursor; the given one if nothing is new.
    """

    notifications: DataFrame
    rows: DataFrame
    cursor: int


@dataclass(frozen=True)
class ChangeReader:
    """Reads the changes of one lake. It keeps nothing between calls; the caller keeps the cursor."""

    tables: LakeTables
    spark: SparkSession

    def read_changes(self, cursor: int, org_id: str | None = None) -> Changes:
        """Return the changes after a cursor. The rows must be read before the next VACUUM.

        Args:
            org_id: Only changes of this org; None for all orgs.

        Raises:
            UsageError: The cursor is no version of the table.
            ChangesExpired: VACUUM or an erasure has removed the change data feed. The error has the version to
                restart from.
        """
        from pyspark.sql import functions as F

        last, versions = notified_since(self.tables, cursor)
        notifications = self.tables.read(self.spark, NOTIFICATION).where(F.col("version").between(cursor + 1, last))
        feed = self.tables.changes(self.spark, ENGAGEMENT, min(cursor + 1, last), last)
        rows = feed.where(F.col("_commit_version").isin(versions))
        if versions and not _is_readable(rows):
            raise ChangesExpired(self.tables.location(ENGAGEMENT), cursor=cursor, version=last)
        if org_id is not None:
            notifications = notifications.where(F.col("org_id") == org_id)
            rows = rows.where(F.col("org_id") == org_id)
        return Changes(notifications, rows, last)


def notified_since(tables: LakeTables, cursor: int) -> tuple[int, list[int]]:
    """Return the next cursor, and the versions of the batches after `cursor` and up to it. Reads logs only, no Spark.

    Raises:
        UsageError: The cursor is no version of the table.
        ChangesExpired: The log no longer reaches back to the cursor.
    """
    newest = tables.version(ENGAGEMENT)
    if not 0 <= cursor <= newest:
        raise UsageError(
            f"{cursor} is no cursor of {tables.location(ENGAGEMENT)}, whose newest version is {newest}.",
            remedy="Give the cursor that was read last, or 0 to begin.",
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
        app_id, batch_id = idempotent.parse_mark(mark)
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


def _is_readable(rows: DataFrame) -> bool:
    """Return whether every file of the rows exists. Spark opens all of them, but reads little of each."""
    from pyspark.errors import PySparkException

    try:
        rows.groupBy("_change_type").count().collect()
    except PySparkException as error:
        if _FILE_MISSING in text_of(error):  # Spark's own condition, or that of the task for which it gave up the query
            return False
        raise
    return True
