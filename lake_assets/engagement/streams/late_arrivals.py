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
    aliases = aliases_by_org(_applied_before(tables, spark, batch), requests)
    renamed = aliases.withColumnsRenamed({"org_id": "of_org", "new_id": "alias"})
    same_id = (F.col("org_id") == F.col("of_org")) & (F.col("who_id") == F.col("old_id"))
    after_start = F.col("after").isNull() | (F.col("engaged_at") > F.col("after"))
    before_end = F.col("until").isNull() | (F.col("engaged_at") <= F.col("until"))
    return rows.join(renamed, same_id & after_start & before_end).select(*ROW_ID, "alias")


def new_rows(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame | None:
    """Return the rows that arrived since the last batch: `ROW_ID`, each once.

    Returns:
        None if ingestion committed nothing since. Also None if no request was applied before: then no row can be late,
        and maintenance may have removed the change data feed before this batch.
    """
    versions = []
    for version in ingested_versions(tables, batch.since.get(ENGAGEMENT)):
        if version <= batch.reads[ENGAGEMENT]:
            versions.append(version)
    if not versions or _applied_before(tables, spark, batch).isEmpty():
        return None
    feed = tables.changes(spark, ENGAGEMENT, min(versions), max(versions))
    return feed.where("_change_type = 'insert'").select(*ROW_ID).distinct()


def _applied_before(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    return applied_requests(tables.read(spark, MUTATION_REQUEST, version=batch.reads[MUTATION_REQUEST]))


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
