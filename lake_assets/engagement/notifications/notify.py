"""The notification of a data commit, which downstream readers poll: one row for each org whose rows changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.delta_log import Commit
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, NOTIFICATION, NOTIFICATION_COLUMNS
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.errors import counts_differ

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
            StreamError: The change data feed and the metrics of the data commit disagree.
        """
        version = done[DATA_COMMIT]
        if version is None:
            return
        commit = self.tables.commit_at(ENGAGEMENT, version)
        counts = counts_by_org(self.spark, self.tables, version)
        check_totals(commit, counts, self.tables.location(ENGAGEMENT))
        rows = [self._row(org, org_counts, commit) for org, org_counts in sorted(counts.items())]
        schema = ", ".join(f"{name} {kind}" for name, kind in NOTIFICATION_COLUMNS.items())
        notifications = self.spark.createDataFrame(rows, schema)
        self.tables.append(NOTIFICATION, notifications, app_id=app_id, batch_id=batch.batch_id)

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
        StreamError: They disagree.
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
