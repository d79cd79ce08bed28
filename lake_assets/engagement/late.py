"""The rows that arrived after requests of their id were applied: which they are, and where they belong.

They are what came into the table between two batches of mutation, so they follow from the intent: the version that the
last batch left, the one that this batch read, and the requests that were applied by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.collapsing import aliased
from lake_assets.engagement.tables import ENGAGEMENT, MUTATION_REQUEST, LakeTables, applied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_ID = ["org_id", "who_id", "engagement_id", "engaged_at"]
LATE = "org_id string, who_id string, engagement_id string, engaged_at timestamp, alias string"


def late_rows(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    """Rows under an id that they should not have: `LATE`, each once. alias: where they belong, null: they go."""
    from pyspark.sql import functions as F

    log = applied(tables.read(spark, MUTATION_REQUEST, version=batch.reads[MUTATION_REQUEST]))
    versions = [v for v in came(tables, batch.since.get(ENGAGEMENT)) if v <= batch.reads[ENGAGEMENT]]
    if not versions or log.isEmpty():
        return spark.createDataFrame([], LATE)
    spans = aliased(log).withColumnsRenamed({"org_id": "of_org", "new_id": "alias"})
    rows = tables.changes(spark, ENGAGEMENT, min(versions), max(versions)).where("_change_type = 'insert'")
    same_id = (F.col("org_id") == F.col("of_org")) & (F.col("who_id") == F.col("old_id"))
    from_then = F.col("after").isNull() | (F.col("engaged_at") > F.col("after"))
    found = rows.join(spans, same_id & from_then & (F.col("engaged_at") <= F.col("until")))
    return found.select(*ROW_ID, "alias").distinct()


def came(tables: LakeTables, since: int | None) -> list[int]:
    """The versions of the engagement table after one, None: of none, in which ingestion brought rows, newest first.

    Maintenance may have removed the feed of those that mutation has looked at, so no others are read.
    """
    brought = f"{tables.lake.app_id('ingestion', 'data')}:"
    commits = [] if since is None else tables.history(ENGAGEMENT, since=since)
    return [commit.version for commit in commits if (commit.mark or "").startswith(brought)]
