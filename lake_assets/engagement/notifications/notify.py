"""The notification of a data commit: what a downstream reader polls. One row for each org that the commit touched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.tables import ENGAGEMENT, NOTIFICATION, NOTIFICATION_COLUMNS, Commit, LakeTables
from lake_assets.errors import CountsDiffer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TYPES = {"insert": "inserted", "update_postimage": "updated", "delete": "deleted"}
"""Type of change in the change data feed → the column that counts it."""


@dataclass
class Counts:
    """So many rows of an org, or of all."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True)
class Notification:
    """The process that tells what the process `of` committed. app_name: the stream that both belong to."""

    tables: LakeTables
    spark: SparkSession
    app_name: str
    of: str = "data"
    name: str = "notification"
    table: str = NOTIFICATION

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        """One row for each org, all in one commit; none if nothing was committed. Raises `CountsDiffer`."""
        version = done[self.of]
        if version is None:
            return
        commit = self.tables.commit_at(ENGAGEMENT, version)
        counts = counts_by_org(self.spark, self.tables, version)
        check_totals(commit, counts, self.tables.location(ENGAGEMENT))
        rows = [self._row(org, found, commit) for org, found in sorted(counts.items())]
        schema = ", ".join(f"{name} {kind}" for name, kind in NOTIFICATION_COLUMNS.items())
        self.tables.append(
            NOTIFICATION, self.spark.createDataFrame(rows, schema), app_id=app_id, batch_id=batch.batch_id
        )

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
    """What one commit of the engagement table did to each org, by its change data feed."""
    found: defaultdict[str, Counts] = defaultdict(Counts)
    for row in tables.changes(spark, ENGAGEMENT, version).groupBy("org_id", "_change_type").count().collect():
        if column := _TYPES.get(row["_change_type"]):
            setattr(found[row["org_id"]], column, row["count"])
    return dict(found)


def check_totals(commit: Commit, counts: Mapping[str, Counts], table: str) -> None:
    """What a commit did to all orgs is what its metrics say, of an append or a merge; else `CountsDiffer`."""
    told = counted(commit)
    fed = Counts(*(sum(getattr(c, name) for c in counts.values()) for name in asdict(told)))
    if fed != told:
        raise CountsDiffer(table, commit.version, feed=fed, metrics=told)


def counted(commit: Commit) -> Counts:
    """What a commit did to all orgs together, by its own metrics: of an append or a merge."""
    return Counts(
        inserted=_metric(commit, "numTargetRowsInserted", "numOutputRows"),
        updated=_metric(commit, "numTargetRowsUpdated"),
        deleted=_metric(commit, "numTargetRowsDeleted"),
    )


def _metric(commit: Commit, *names: str) -> int:
    """The first of the metrics that the commit has: a merge has other ones than an append."""
    return next((int(commit.metrics[name]) for name in names if name in commit.metrics), 0)
