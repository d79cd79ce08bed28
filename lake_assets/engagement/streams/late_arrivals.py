"""Late arrivals: rows that arrived after requests of their id were applied, and the ids that they belong to.

They are among the rows that the table got between two batches of mutation. So they follow from the intent: the version
that the last batch left, the version that this batch read, the requests applied by then, and those that it applies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, SENT_WHO_ID
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.notifications.notify import DATA_COMMIT
from lake_assets.engagement.requests.grouped import late_aliases_by_org
from lake_assets.engagement.streams.settled.settled_requests import applied_before, orgs_of, was_applied_before

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROW_ID = ["org_id", "who_id", "engagement_id", "engaged_at"]
"""who_id: The id that the row was sent with; its present id if `IS_AS_SENT` is false."""
IS_AS_SENT = "is_as_sent"
LATE_ROWS = "org_id string, who_id string, engagement_id string, engaged_at timestamp, alias string"
"""alias: The id that the row belongs to; null if the row is to be deleted."""


@dataclass(frozen=True)
class Former:
    """What a batch of mutation found that concerns its requests.

    Attributes:
        arrivals: As `new_rows` returns them.
        applied: As `applied_before` returns them.
        may_be_late: Whether arrivals may have a row without a sent id. Only an earlier version wrote such rows.
    """

    arrivals: DataFrame | None
    applied: DataFrame
    may_be_late: bool


def former(
    tables: LakeTables, spark: SparkSession, batch: Batch, requests: DataFrame, orgs: Iterable[str] | None = None
) -> Former:
    """Return what a batch found. It follows from the intent, like all that the batch writes.

    Args:
        requests: As for `applied_before`.
        orgs: As for `applied_before`; None to find them in the requests.
    """
    from pyspark.sql import functions as F

    from lake_assets.connections.row_checkpoint import checkpoint_and_aggregate, checkpoint_rows

    may_be_late = False
    arrivals = new_rows(tables, spark, batch)
    if arrivals is not None:
        not_as_sent = F.count(F.when(~F.col(IS_AS_SENT), True)).alias("not_as_sent")
        arrivals, counted = checkpoint_and_aggregate(arrivals, [not_as_sent])
        may_be_late = counted["not_as_sent"] > 0
    of_orgs = orgs_of(requests) if orgs is None else orgs
    applied = checkpoint_rows(applied_before(tables, spark, batch, requests, arrivals, of_orgs))
    return Former(arrivals, applied, may_be_late)


def late_rows(requests: DataFrame, found: Former) -> DataFrame | None:
    """Return the new rows without a sent id that do not go where the batch moves other rows of their id, each once.

    Args:
        requests: Requests that the batch applies.

    Returns:
        `LATE_ROWS`; None if there are none.
    """
    from pyspark.sql import functions as F

    if found.arrivals is None or not found.may_be_late:
        return None
    rows = found.arrivals.where(~F.col(IS_AS_SENT))
    aliases = late_aliases_by_org(found.applied, requests)
    renamed = aliases.withColumnsRenamed({"org_id": "of_org", "new_id": "alias"})
    same_id = F.expr("org_id = of_org AND who_id = old_id")
    joined = rows.join(renamed, same_id & engaged_within(F.col("after"), F.col("until")))
    return joined.select(*ROW_ID, "alias")


def sent_id() -> Column:
    """Return the id by which requests act on a row of `engagement`."""
    from pyspark.sql import functions as F

    return F.coalesce(SENT_WHO_ID, "who_id")


def with_sent_id(rows: DataFrame) -> DataFrame:
    """Return rows of `engagement`, of any version of the table, with `sent_id` as who_id, and with `IS_AS_SENT`."""
    from pyspark.sql import functions as F

    known = rows if SENT_WHO_ID in rows.columns else rows.withColumn(SENT_WHO_ID, F.lit(None).cast("string"))
    return known.withColumns({"who_id": sent_id(), IS_AS_SENT: F.col(SENT_WHO_ID).isNotNull()})


def engaged_within(after: Column, until: Column) -> Column:
    """Return whether a row engaged in the span of an alias: after its start (null for no bound), until its end."""
    from pyspark.sql import functions as F

    engaged_at = F.col("engaged_at")
    return (after.isNull() | (engaged_at > after)) & (engaged_at <= until)


def new_rows(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame | None:
    """Return the rows that arrived since the last batch: `ROW_ID` and `IS_AS_SENT`, each once.

    Returns:
        None if ingestion committed nothing since. Also None if no request was applied before: then no row can be late,
        and maintenance may have removed the change data feed before this batch.
    """
    last = batch.reads[ENGAGEMENT]
    versions = [version for version in ingested_versions(tables, batch.since.get(ENGAGEMENT)) if version <= last]
    if not versions or not was_applied_before(tables, batch):
        return None
    feed = tables.changes(spark, ENGAGEMENT, min(versions), max(versions))
    inserted = with_sent_id(feed.where("_change_type = 'insert'"))
    return inserted.select(*ROW_ID, IS_AS_SENT).distinct()


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
