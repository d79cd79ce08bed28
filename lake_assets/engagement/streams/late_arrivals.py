"""Late arrivals: rows that arrived after requests of their id were applied, and the ids that they belong to.

They are among the rows that the table got between two batches of mutation. So they follow from the intent: the version
that the last batch left, the version that this batch read, the requests applied by then, and those that it applies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, sent
from lake_assets.engagement.model.tables import LakeTables, applied_requests
from lake_assets.engagement.notifications.notify import DATA_COMMIT
from lake_assets.engagement.requests.grouped import parts_by_org, with_part
from lake_assets.engagement.streams.settled.settled_requests import (
    orgs_of,
    settled_requests,
    was_applied_before,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROW_ID = ["org_id", "column", "id", "engagement_id", "engaged_at"]
"""id: The id by which requests of a column act on a row: the one that it was sent with; its present one if `IS_AS_SENT`
is false."""
IS_AS_SENT = "is_as_sent"
_LINK = ["org_id", "column", "old_id", "new_id"]


@dataclass(frozen=True)
class Former:
    """What a batch of mutation found that concerns its requests.

    Attributes:
        arrivals: As `new_rows` returns them.
        applied: The requests applied by former batches that are connected with its requests or with new rows, each
            with its part.
        parts: As `parts_by_org` returns them, of the ids of its requests and of new rows.
        names_days: Whether one of the applied requests names a day.
        may_be_late: Whether arrivals may have a row without a sent id. Only an earlier version wrote such rows.
    """

    arrivals: DataFrame | None
    applied: DataFrame
    parts: DataFrame
    names_days: bool
    may_be_late: bool


def former(
    tables: LakeTables, spark: SparkSession, batch: Batch, requests: DataFrame, orgs: Iterable[str] | None = None
) -> Former:
    """Return what a batch found. It follows from the intent, like all that the batch writes.

    Args:
        requests: org_id string, column string, old_id string, new_id string.
        orgs: Orgs of the requests; it may contain others. None to find them in the requests.
    """
    from pyspark.sql import functions as F

    from lake_assets.connections.row_checkpoint import checkpoint_and_aggregate, checkpoint_rows

    may_be_late = False
    arrivals = new_rows(tables, spark, batch)
    if arrivals is not None:
        not_as_sent = F.count(F.when(~F.col(IS_AS_SENT), True)).alias("not_as_sent")
        arrivals, counted = checkpoint_and_aggregate(arrivals, [not_as_sent])
        may_be_late = counted["not_as_sent"] > 0
    of_orgs = set(orgs_of(requests) if orgs is None else orgs)
    if arrivals is not None:
        of_orgs.update(orgs_of(arrivals))
    applied = applied_requests(settled_requests(tables, spark, batch, of_orgs))
    links = applied.select(*_LINK, F.lit(False).alias("is_wanted"))
    links = links.union(requests.select(*_LINK, F.lit(True)))
    if arrivals is not None:
        links = links.union(arrivals.select("org_id", "column", "id", F.lit(None), F.lit(True)).distinct())
    parts = checkpoint_rows(parts_by_org(links))
    related = with_part(applied, parts, "old_id")
    related, named = checkpoint_and_aggregate(related, [F.count("engagement_date").alias("days")])
    return Former(arrivals, related, parts, named["days"] > 0, may_be_late)


def with_ids(rows: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return rows of `engagement`, of any version of the table, with all id columns and all ids as they were sent."""
    from pyspark.sql import functions as F

    names = [name for column in lake.ids for name in (column, sent(column))]
    missing = [F.lit(None).cast("string").alias(name) for name in names if name not in rows.columns]
    return rows.select("*", *missing)


def by_id(rows: DataFrame, lake: EngagementLake) -> DataFrame:
    """Return each row of `engagement` once for each of its ids, with column, id and `IS_AS_SENT`, as in `ROW_ID`."""
    from pyspark.sql import functions as F

    ids = []
    for column in lake.ids:
        as_sent = F.col(sent(column))
        ids.append(
            F.struct(
                F.lit(column).alias("column"),
                F.coalesce(as_sent, column).alias("id"),
                as_sent.isNotNull().alias(IS_AS_SENT),
            )
        )
    each = with_ids(rows, lake).withColumn("of_id", F.explode(F.array(*ids)))
    return each.select("org_id", "engagement_date", "engagement_id", "engaged_at", "of_id.*").where("id is not null")


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
    inserted = by_id(feed.where("_change_type = 'insert'"), tables.lake)
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
