"""The rows that arrived after requests of their id were applied: which they are, and where they belong.

They are what came into the table between two batches of mutation, so they follow from the intent: the version that the
last batch left, the one that this batch read, the requests that were applied by then, and those that it applies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.tables import ENGAGEMENT, MUTATION_REQUEST, LakeTables, applied
from lake_assets.engagement.requests.grouped import aliased

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_ID = ["org_id", "who_id", "engagement_id", "engaged_at"]
LATE = "org_id string, who_id string, engagement_id string, engaged_at timestamp, alias string"


def late_rows(tables: LakeTables, spark: SparkSession, batch: Batch, requests: DataFrame) -> DataFrame:
    """Rows that do not go where the batch leads others of their id: `LATE`, each once.

    requests: those that the batch applies. alias: where they belong, after these, too; null: they go.
    """
    from pyspark.sql import functions as F

    rows = arrivals(tables, spark, batch)
    if rows is None:
        return spark.createDataFrame([], LATE)
    spans = aliased(_former(tables, spark, batch), requests).withColumnsRenamed({"org_id": "of_org", "new_id": "alias"})
    same_id = (F.col("org_id") == F.col("of_org")) & (F.col("who_id") == F.col("old_id"))
    from_then = F.col("after").isNull() | (F.col("engaged_at") > F.col("after"))
    until_then = F.col("until").isNull() | (F.col("engaged_at") <= F.col("until"))
    return rows.join(spans, same_id & from_then & until_then).select(*ROW_ID, "alias")


def arrivals(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame | None:
    """The rows that came since the last batch: `ROW_ID`, each once. None if ingestion committed nothing since.

    None as well if no request was applied before: then none of them can be late. Nor does a batch come because of them
    alone, so maintenance may have removed the feed by the time that one does.
    """
    versions = [v for v in came(tables, batch.since.get(ENGAGEMENT)) if v <= batch.reads[ENGAGEMENT]]
    if not versions or _former(tables, spark, batch).isEmpty():
        return None
    rows = tables.changes(spark, ENGAGEMENT, min(versions), max(versions)).where("_change_type = 'insert'")
    return rows.select(*ROW_ID).distinct()


def _former(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    """The requests that were applied before the batch."""
    return applied(tables.read(spark, MUTATION_REQUEST, version=batch.reads[MUTATION_REQUEST]))


def came(tables: LakeTables, since: int | None) -> list[int]:
    """The versions of the engagement table after one, None: of none, in which ingestion brought rows, newest first.

    Maintenance may have removed the feed of those that mutation has looked at, so no others are read.
    """
    brought = f"{tables.lake.app_id('ingestion', 'data')}:"
    commits = [] if since is None else tables.history(ENGAGEMENT, since=since)
    return [commit.version for commit in commits if (commit.mark or "").startswith(brought)]
