"""Late arrivals: rows that arrived after requests of their id were applied, and the ids that they belong to.

They are among the rows that the table got between two batches of mutation. So they follow from the intent: the version
that the last batch left, the version that this batch read, the requests applied by then, and those that it applies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, MUTATION_REQUEST
from lake_assets.engagement.model.tables import LakeTables, applied_requests
from lake_assets.engagement.notifications.notify import DATA_COMMIT
from lake_assets.engagement.requests.grouped import aliases_by_org

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_ID = ["org_id", "who_id", "engagement_id", "engaged_at"]
LATE_ROWS = "org_id string, who_id string, engagement_id string, engaged_at timestamp, alias string"
"""alias: The id that the row belongs to; null if the row is to be deleted."""


def late_rows(tables: LakeTables, spark: SparkSession, batch: Batch, requests: DataFrame) -> DataFrame:
    """Return the new rows that do not go where the batch moves other rows of their id: `LATE_ROWS`, each once.

    Args:
        requests: Requests that the batch applies.
    """
    from pyspark.sql import functions as F

    rows = new_rows(tables, spark, batch)
    if rows is None:
        return spark.createDataFrame([], LATE_ROWS)
    applied = _applied_before(tables, spark, batch)
    aliases = aliases_by_org(applied, requests)
    renamed = aliases.withColumnsRenamed({"org_id": "of_org", "new_id": "alias"})
    same_id = F.expr("org_id = of_org AND who_id = old_id")
    after_start = F.expr("`after` IS NULL OR engaged_at > `after`")
    before_end = F.expr("`until` IS NULL OR engaged_at <= `until`")
    joined = rows.join(renamed, same_id & after_start & before_end)
    return joined.select(*ROW_ID, "alias")


def new_rows(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame | None:
    """Return the rows that arrived since the last batch: `ROW_ID`, each once.

    Returns:
        None if ingestion committed nothing since. Also None if no request was applied before: then no row can be late,
        and maintenance may have removed the change data feed before this batch.
    """
    last = batch.reads[ENGAGEMENT]
    versions = [version for version in ingested_versions(tables, batch.since.get(ENGAGEMENT)) if version <= last]
    if not versions or _applied_before(tables, spark, batch).isEmpty():
        return None
    feed = tables.changes(spark, ENGAGEMENT, min(versions), max(versions))
    inserted = feed.where("_change_type = 'insert'")
    return inserted.select(*ROW_ID).distinct()


def _applied_before(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    log = tables.read_for(spark, batch, MUTATION_REQUEST)
    return applied_requests(log)


def ingested_versions(tables: LakeTables, since: int | None) -> list[int]:
    """Return the versions of the engagement table that ingestion committed after a version, newest first.

    Only these are read, because maintenance may have removed the feed of versions that mutation has processed.

    Args:
        since: None returns no versions.
    """
    if since is None:
        return []
    mark_prefix = f"{tables.lake.app_id('ingestion', DATA_COMMIT)}:"
    versions = []
    for commit in tables.history(ENGAGEMENT, since=since):
        if commit.mark is not None and commit.mark.startswith(mark_prefix):
            versions.append(commit.version)
    return versions
