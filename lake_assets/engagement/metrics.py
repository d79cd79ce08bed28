"""The metrics of a lake: counts of kinds and outcomes, and rates, by org, day, rep, cadence and template.

A lake that counts something else than before keeps its table. Columns that it no longer counts stay, and are null.

The Delta table `engagement_metrics` follows the engagement table: a refresh recomputes the metric partitions (a day of
an org) that notifications name since the last refresh, and no others. The batch id of the last commit contains the
cursor, so partitions and cursor are durable together. If a refresh is killed before or after its commit, the next one
ends with the same metrics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from lake_assets.base.columns import any_of
from lake_assets.base.failpoints import METRICS_COMPUTED, METRICS_WRITTEN, reach
from lake_assets.engagement import delta_log
from lake_assets.engagement.delta_log import Commit, open_table, read_rows
from lake_assets.engagement.lake import DIMENSIONS, EMAILS_AND_CALLS, MetricGroup, digest, metrics_columns, rate_columns
from lake_assets.engagement.notifications import changed_rows, notified_since
from lake_assets.engagement.tables import ENGAGEMENT, ENGAGEMENT_METRICS, METRICS_DIGEST, LakeTables
from lake_assets.errors import ChangesExpired, UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def shows_declared(tables: LakeTables) -> bool:
    """Return whether the metrics are those that the lake declares now. Needs no Spark."""
    properties = open_table(tables.location(ENGAGEMENT_METRICS)).metadata().configuration
    return properties.get(METRICS_DIGEST, digest(EMAILS_AND_CALLS)) == digest(tables.lake.metrics)


def add_columns(tables: LakeTables, spark: SparkSession) -> None:
    """Add the columns that the lake declares and its table of metrics lacks."""
    existing = _column_types(tables)
    lacking = [
        f"`{column}` {kind}" for column, kind in metrics_columns(tables.lake.metrics).items() if column not in existing
    ]
    if lacking:
        spark.sql(f"ALTER TABLE {tables.identifier(ENGAGEMENT_METRICS)} ADD COLUMNS ({', '.join(lacking)})")


def record_declared(tables: LakeTables, spark: SparkSession) -> None:
    """Record that the metrics are those that the lake declares now."""
    spark.sql(
        f"ALTER TABLE {tables.identifier(ENGAGEMENT_METRICS)}"
        f" SET TBLPROPERTIES ('{METRICS_DIGEST}' = '{digest(tables.lake.metrics)}')"
    )


def with_all_columns(rows: DataFrame, tables: LakeTables) -> DataFrame:
    """Return rows of metrics with a null in each column that the table has and the lake no longer declares."""
    from pyspark.sql import functions as F

    for column, kind in _column_types(tables).items():
        if column not in rows.columns:
            rows = rows.withColumn(column, F.lit(None).cast(kind))
    return rows


def _column_types(tables: LakeTables) -> dict[str, str]:
    fields = open_table(tables.location(ENGAGEMENT_METRICS)).schema().fields
    return {field.name: str(getattr(field.type, "type", field.type)) for field in fields}


class MetricPartition(NamedTuple):
    """A day of an org: the unit in which metrics are rebuilt."""

    org_id: str
    engagement_date: date


class PartitionBlock(NamedTuple):
    """All of these orgs on all of these days; both sorted."""

    orgs: tuple[str, ...]
    days: tuple[date, ...]


def partition_blocks(partitions: Iterable[MetricPartition]) -> list[PartitionBlock]:
    """Group partitions into blocks that contain exactly these, each once. Days with the same orgs form one block.

    Returns:
        Blocks, sorted by their orgs.
    """
    orgs_of: defaultdict[date, set[str]] = defaultdict(set)
    for partition in partitions:
        orgs_of[partition.engagement_date].add(partition.org_id)
    days_of: defaultdict[tuple[str, ...], list[date]] = defaultdict(list)
    for day, orgs in orgs_of.items():
        days_of[tuple(sorted(orgs))].append(day)
    return [PartitionBlock(orgs, tuple(sorted(days))) for orgs, days in sorted(days_of.items())]


REBUILDS = 1_000_000
"""The batch id of a commit is cursor * REBUILDS + n, for the n-th requested rebuild at that cursor."""


@dataclass(frozen=True)
class Refresh:
    """The result of a refresh.

    Attributes:
        since: Version of the engagement table that the metrics showed before.
        cursor: Version of the engagement table that the metrics show now.
        orgs: Orgs with recomputed partitions, sorted; None for all orgs.
        partitions: Number of recomputed partitions; None for all partitions.
        commit: None if there was nothing to do.
    """

    since: int
    cursor: int
    orgs: tuple[str, ...] | None
    partitions: int | None
    commit: Commit | None


@dataclass(frozen=True)
class Metrics:
    """The metrics of one lake. If two refreshes run at the same time, Delta refuses or skips one of them."""

    tables: LakeTables
    spark: SparkSession

    def refresh(self, orgs: Collection[str] = ()) -> Refresh:
        """Recompute the partitions that changed since the last refresh, and all partitions of some orgs.

        Everything is recomputed at the first refresh, when the changes have expired, and when the lake declares other
        metrics than before. Commits that changed no row
        only move the cursor. If another refresh commits to the same partitions, this one raises Delta's error and has
        written nothing.

        Args:
            orgs: Orgs whose partitions are all recomputed.
        """
        if not shows_declared(self.tables):
            return self._redefine()
        return self._follow(orgs)

    def _follow(self, orgs: Collection[str]) -> Refresh:
        """Recompute the partitions that changed, and all partitions of some orgs."""
        before = _last_batch(self.tables)
        since = before // REBUILDS
        cursor, changed = self._changed(since)
        if cursor == since and not orgs:
            return Refresh(since, cursor, orgs=(), partitions=0, commit=None)
        batch_id = max(cursor * REBUILDS, before + 1)
        condition = _all_rows() if changed is None else _in_partitions(changed, orgs)
        commit = self._write(batch_id, cursor, condition)
        skipped_by_delta = bool(orgs) and _last_batch(self.tables) > batch_id
        if skipped_by_delta:
            return self.refresh(orgs)
        if changed is None:
            return Refresh(since, cursor, orgs=None, partitions=None, commit=commit)
        refreshed_orgs = {*orgs, *(partition.org_id for partition in changed)}
        return Refresh(
            since,
            cursor,
            orgs=tuple(sorted(refreshed_orgs)),
            partitions=len(changed),
            commit=commit,
        )

    def _redefine(self) -> Refresh:
        """Recompute everything, with the columns that the lake declares. If it dies, the next refresh repeats it."""
        before = _last_batch(self.tables)
        since = before // REBUILDS
        cursor, _ = self._changed(since)
        batch_id = max(cursor * REBUILDS, before + 1)
        add_columns(self.tables, self.spark)
        commit = self._write(batch_id, cursor, _all_rows())
        skipped_by_delta = _last_batch(self.tables) > batch_id
        if skipped_by_delta:
            return self.refresh()
        record_declared(self.tables, self.spark)
        return Refresh(since, cursor, orgs=None, partitions=None, commit=commit)

    def _changed(self, since: int) -> tuple[int, list[MetricPartition] | None]:
        """Return the next cursor, and the partitions that changed before it; None for all partitions."""
        try:
            cursor, versions = notified_since(self.tables, since)
            if since == 0 and cursor:
                return cursor, None  # the first refresh
            rows = changed_rows(self.tables, since, cursor, versions, columns=MetricPartition._fields)
        except ChangesExpired as expired:
            return expired.version, None
        found: set[MetricPartition] = set()
        for batch in rows:
            of_batch = pa.Table.from_batches([batch]).group_by([*MetricPartition._fields]).aggregate([])
            found.update(MetricPartition(**row) for row in of_batch.to_pylist())
        return cursor, list(found)

    def _write(self, batch_id: int, cursor: int, condition: Column) -> Commit | None:
        """Replace the rows that meet a condition by the metrics at a version of the engagement table, in one commit."""
        before = self.tables.version(ENGAGEMENT_METRICS)
        engagements = self.tables.read(self.spark, ENGAGEMENT, version=cursor).where(condition)
        app_id = _app_id(self.tables)
        rows = with_all_columns(compute_metrics(engagements, self.tables.lake.metrics), self.tables)
        writer = rows.writeTo(self.tables.identifier(ENGAGEMENT_METRICS))
        reach(METRICS_COMPUTED)
        writer.options(**delta_log.write_options(app_id, batch_id)).overwrite(condition)
        reach(METRICS_WRITTEN)
        return self.tables.commit_of(ENGAGEMENT_METRICS, app_id=app_id, batch_id=batch_id, since=before)


def metrics_are_behind(tables: LakeTables) -> bool:
    """Return whether a refresh would compute anything. Reads logs only, no Spark."""
    if not shows_declared(tables):
        return True
    try:
        _, versions = notified_since(tables, metrics_cursor(tables))
    except ChangesExpired:
        return True
    return bool(versions)


def metrics_cursor(tables: LakeTables) -> int:
    """Return the version of the engagement table that the metrics show; 0 if none were computed. Needs no Spark."""
    return _last_batch(tables) // REBUILDS


def read_metrics(tables: LakeTables, orgs: Collection[str] = ()) -> pa.Table:
    """Return metrics in memory: the columns of `metrics_columns`. Needs no Spark.

    Args:
        orgs: Orgs to read; empty for all orgs.

    Raises:
        UsageError: The lake declares other metrics than the table shows.
    """
    if not shows_declared(tables):
        name = tables.lake.name
        raise UsageError(
            f"The metrics of {name} do not show yet what the lake declares now.",
            remedy=f"Compute them: `lake engagement metrics {name}`.",
        )
    only = [("org_id", "in", sorted(orgs))] if orgs else []
    columns = list(metrics_columns(tables.lake.metrics))
    return read_rows(open_table(tables.location(ENGAGEMENT_METRICS)), columns, only)


def compute_metrics(engagements: DataFrame, groups: Sequence[MetricGroup]) -> DataFrame:
    """Compute the metrics of rows of the engagement table, one row for each combination of `DIMENSIONS`.

    Only engagements of a kind that a group names count. One with an outcome that no group names, or none, counts as one
    of its kind only. A rate is null where its whole is 0. Each event counts on its own day: an email that is sent late
    and opened the next day is an opening of that day, so a rate may exceed 1.

    Returns:
        The columns of `metrics_columns`.
    """
    from pyspark.sql import functions as F

    kind = F.col("kind")
    kinds: set[str] = set()
    counts: list[Column] = []
    for group in groups:
        kinds.update(group.kinds.values())
        of_group = kind.isin(*sorted(set(group.kinds.values())))
        counts += [F.count_if(kind == name).alias(column) for column, name in group.kinds.items()]
        for column, outcome in group.outcomes.items():
            counts.append(F.count_if(of_group & (F.col("outcome") == outcome)).alias(column))
    totals = engagements.where(kind.isin(*sorted(kinds))).groupBy(*DIMENSIONS).agg(*counts)
    rates = {name: F.try_divide(part, whole) for name, (part, whole) in rate_columns(groups).items()}
    return totals.withColumns(rates).select(*metrics_columns(groups))


def _app_id(tables: LakeTables) -> str:
    return f"{tables.lake.name}.{ENGAGEMENT_METRICS}"


def _last_batch(tables: LakeTables) -> int:
    return tables.last_batch(ENGAGEMENT_METRICS, _app_id(tables))


def _all_rows() -> Column:
    from pyspark.sql import functions as F

    return F.lit(True)


def _in_partitions(partitions: Iterable[MetricPartition], orgs: Collection[str]) -> Column:
    """Return whether a row is in one of the partitions, or of one of the orgs."""
    from pyspark.sql import functions as F

    org = F.col("org_id")
    day = F.col("engagement_date")
    blocks = [org.isin(*block.orgs) & day.isin(*block.days) for block in partition_blocks(partitions)]
    return any_of([*blocks, org.isin(sorted(orgs))] if orgs else blocks)
