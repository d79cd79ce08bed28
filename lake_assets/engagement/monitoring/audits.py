"""Audits of a lake after each turn, from its tables and their logs. They change nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.engagement.deduplication.repeated import may_be_copies
from lake_assets.engagement.model import idempotent
from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.delta_log import Commit
from lake_assets.engagement.model.lake import STREAMS, StreamName
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, NOTIFICATION, SETTLED_REQUEST
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.notifications.notify import DATA_COMMIT, NotificationCommit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE_SIZE = 10
"""Maximum number of wrong ids that an audit lists."""

COPY_DAYS = 31
"""Number of days before and after a new row among which an audit looks for another row of its engagement."""

RECENT_COMMITS = 1_000
"""Number of a table's newest commits that an audit reads. Each is a file of the table's log."""


@dataclass(frozen=True)
class Sample:
    """Wrong entries.

    Attributes:
        count: Number of all of them.
        ids: Up to `SAMPLE_SIZE` of them, sorted.
    """

    count: int
    ids: tuple[str, ...]


def commit_of(tables: LakeTables, stream: StreamName, table: str, name: str, batch: Batch) -> Commit | None:
    """Return what a named commit of a batch committed, in this or an earlier turn; None if nothing."""
    app_id = tables.lake.app_id(stream, name)
    return tables.commit_of(table, app_id=app_id, batch_id=batch.batch_id, since=batch.reads.get(table, 0))


def repeated_ids(spark: SparkSession, tables: LakeTables, version: int) -> Sample:
    """Return engagements that a commit inserted and that the table has more than once, as org/id.

    Another row of an engagement is looked for up to `COPY_DAYS` from the days of the inserted rows, so that what is
    read does not grow with the table.
    """
    from pyspark.sql import functions as F

    key = ["org_id", "engagement_id"]
    feed = tables.changes(spark, ENGAGEMENT, version)
    inserted = feed.where("_change_type = 'insert'")
    near = tables.read(spark, ENGAGEMENT, version).where(may_be_copies(inserted, COPY_DAYS))
    rows = near.join(inserted.select(key).distinct(), key, "left_semi")
    repeated = rows.groupBy(key).count().where("count > 1")
    return _sample(repeated.select(F.concat_ws("/", *key)))


def dead_requests(spark: SparkSession, tables: LakeTables) -> Sample:
    """Return mutation requests that are dead because no attempt found a row, as org/id."""
    from pyspark.sql import functions as F

    dead = tables.read(spark, SETTLED_REQUEST).where("status = 'dead'")
    return _sample(dead.select(F.concat_ws("/", "org_id", "request_id")).distinct())


def unnotified_batches(tables: LakeTables) -> list[str]:
    """Return the recent batches that changed rows and do not have exactly one notification, as `mark` names them."""
    written = _recent_batches(tables, ENGAGEMENT)
    notified = _recent_batches(tables, NOTIFICATION)
    found = []
    for stream in STREAMS:
        writer = tables.lake.app_id(stream, DATA_COMMIT)
        notifier = tables.lake.app_id(stream, NotificationCommit.name)
        last = tables.last_batch(NOTIFICATION, notifier)
        wrong = unnotified(written.get(writer, []), notified.get(notifier, []), last)
        found += [idempotent.mark(writer, batch_id) for batch_id in wrong]
    return found


def unnotified(written: Collection[int], notified: Sequence[int], last: int) -> list[int]:
    """Return the written batches that do not have exactly one notification, sorted. Pure.

    Args:
        notified: Batches with a notification, as far back as the log reaches. Older ones are taken to be right.
        last: The newest batch that ever had a notification.
    """
    first = min(notified, default=last + 1)
    found = []
    for batch_id in sorted(set(written)):
        is_newer = batch_id > last
        is_in_log = batch_id >= first
        if is_newer or (is_in_log and notified.count(batch_id) != 1):
            found.append(batch_id)
    return found


def _recent_batches(tables: LakeTables, table: str) -> Mapping[str, list[int]]:
    """Return app id → ids of its batches among the recent commits of a table."""
    since = max(0, tables.version(table) - RECENT_COMMITS)
    found: dict[str, list[int]] = {}
    for commit in tables.history(table, since=since):
        app_id, batch_id = idempotent.parse_mark(commit.mark)
        found.setdefault(app_id, []).append(batch_id)
    return found


def _sample(ids: DataFrame) -> Sample:
    """Take a sample of a DataFrame with one column of strings."""
    rows = ids.orderBy(ids.columns[0]).limit(SAMPLE_SIZE).collect()
    listed = tuple(row[0] for row in rows)
    count = ids.count() if len(listed) == SAMPLE_SIZE else len(listed)
    return Sample(count, listed)
