"""Engagements that are known and have no row: deleted by a request, erased, or from before the cut-off of their org.

The table `removed` has one row for each. So another message about one of them makes a row only if it counts more, and a
request that comes late can bring a deleted row back, if it was executed before the deletion. Maintenance forgets what
was removed more than `REMEMBERED` ago: this is how late a message may come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from lake_assets.engagement.checkpoint import REMOVED_COUNT, Batch
from lake_assets.engagement.delta_log import batch_statement, open_table
from lake_assets.engagement.notifications import DATA_COMMIT, total_counts
from lake_assets.engagement.requests import SENT_AT
from lake_assets.engagement.tables import ENGAGEMENT, REMOVED, LakeTables, engagement_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REMEMBERED = timedelta(days=30)

IS_BACK = "is_back"
"""Whether an engagement has a row again, among those that are remembered or were."""

WAS_REMOVED = "was_removed"
"""Whether an engagement is known and has no row."""

_KEY = ["org_id", "engagement_id"]


def removed_rows(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame | None:
    """Return the removed engagements as a batch found them: `engagement_columns`, and removed_at; None if none.

    Of one that no request can bring back, all but `_KEY` and `SENT_AT` is null.
    """
    if batch.rules < REMOVED_COUNT:
        return None
    is_empty = not open_table(tables.location(REMOVED), batch.reads[REMOVED]).file_uris()
    return None if is_empty else tables.read_for(spark, batch, REMOVED)


@dataclass(frozen=True)
class RemovedCommit:
    """Remembers the engagements whose rows the batch has removed, and forgets those that have a row again.

    Attributes:
        found: Function that returns what else changes, each engagement once: some of `engagement_columns` of those that
            are to be remembered, and `IS_BACK`, of those that have a row again. None if nothing does.
        keeps_content: Whether requests may bring the removed rows back.
    """

    tables: LakeTables
    spark: SparkSession
    found: Callable[[Batch], DataFrame | None]
    keeps_content: bool = False
    name: str = "removed"
    table: str = REMOVED

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_and_aggregate

        found = None if batch.rules < REMOVED_COUNT else self._changes(batch, done[DATA_COMMIT])
        orgs: list[str] = []
        if found is not None:
            found, counted = checkpoint_and_aggregate(found, [F.collect_set("org_id").alias("orgs")])
            orgs = sorted(counted["orgs"])
        if found is None or not orgs:
            self.tables.append_few(REMOVED, (), app_id=app_id, batch_id=batch.batch_id)
            return
        version = done[DATA_COMMIT]
        last = self.tables.commit_at(ENGAGEMENT, batch.reads[ENGAGEMENT] if version is None else version)
        kinds = engagement_columns(self.tables.lake)
        of_found = {name: F.col(name) if name in found.columns else F.lit(None).cast(kinds[name]) for name in kinds}
        source = found.select(*(value.alias(f"of_{name}") for name, value in of_found.items()), IS_BACK)
        values = {**{name: F.col(f"of_{name}") for name in kinds}, "removed_at": F.lit(last.committed_at)}
        same = F.col("org_id").isin(orgs) & F.expr("org_id = of_org_id AND engagement_id = of_engagement_id")
        merge = source.mergeInto(self.tables.identifier(REMOVED), same)
        merge = merge.whenMatched(F.col(IS_BACK)).delete().whenMatched().update(values)
        with batch_statement(self.spark, app_id, batch.batch_id):
            merge.whenNotMatched(~F.col(IS_BACK)).insert(values).merge()

    def _changes(self, batch: Batch, version: int | None) -> DataFrame | None:
        """Return what changes, as `found` does.

        Args:
            version: That the data commit made; None if it committed nothing.
        """
        from pyspark.sql import functions as F

        found = self.found(batch)
        if version is None or not total_counts(self.tables.commit_at(ENGAGEMENT, version)).deleted:
            return found
        feed = self.tables.changes(self.spark, ENGAGEMENT, version)
        gone = feed.where("_change_type = 'delete'").select(*engagement_columns(self.tables.lake))
        if not self.keeps_content:
            # Other messages about one that was not said to be sent at a time are copies of it.
            gone = gone.where(f"{SENT_AT} is not null").select(*_KEY, SENT_AT)
        there = feed.where("_change_type = 'insert'").select(*_KEY)
        there = there if found is None else there.union(found.select(*_KEY))
        gone = gone.join(there, _KEY, "left_anti").dropDuplicates(_KEY).withColumn(IS_BACK, F.lit(False))
        return gone if found is None else found.unionByName(gone, allowMissingColumns=True)


def forget_removed(tables: LakeTables) -> None:
    """Forget what was removed more than `REMEMBERED` before the last commit of the lake's rows."""
    limit = tables.commit_at(ENGAGEMENT, tables.version(ENGAGEMENT)).committed_at - REMEMBERED
    open_table(tables.location(REMOVED)).delete(f"removed_at < '{limit.isoformat()}'")
