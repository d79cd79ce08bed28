"""The rows that arrived after requests of their id were applied: which they are, and where they belong.

They are what came into the table between two batches of mutation, so they follow from the intent: the version that the
last batch left, the one that this batch read, and the requests that were applied by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.collapsing import aliased
from lake_assets.engagement.tables import ENGAGEMENT, MUTATION_REQUEST, LakeTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATE = "org_id string, who_id string, engagement_id string, engaged_at timestamp, alias string"


def late_rows(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame:
    """Rows under an id that they should not have: `LATE`, each once. alias: where they belong, null: they go."""
    from pyspark.sql import functions as F

    since, now = batch.since.get(ENGAGEMENT), batch.reads[ENGAGEMENT]
    if since is None or since >= now:
        return spark.createDataFrame([], LATE)
    log = tables.read(spark, MUTATION_REQUEST, version=batch.reads[MUTATION_REQUEST])
    spans = aliased(log.where("status = 'applied'")).withColumnsRenamed({"org_id": "of_org", "new_id": "alias"})
    came = tables.changes(spark, ENGAGEMENT, since + 1, now).where("_change_type = 'insert'")
    same_id = (F.col("org_id") == F.col("of_org")) & (F.col("who_id") == F.col("old_id"))
    from_then = F.col("after").isNull() | (F.col("engaged_at") > F.col("after"))
    found = came.join(spans, same_id & from_then & (F.col("engaged_at") <= F.col("until")))
    return found.select("org_id", "who_id", "engagement_id", "engaged_at", "alias").distinct()


def any_came(tables: LakeTables, since: int | None) -> bool:
    """Whether another stream wrote to the engagement table after a version, so that rows may be late."""
    return since is not None and tables.version(ENGAGEMENT) > since
