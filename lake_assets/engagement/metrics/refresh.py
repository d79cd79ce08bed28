"""The metrics of a lake: emails and calls, and their rates, by org, day, rep, cadence and template.

A Delta table, `engagement_metrics`, that follows the engagement table: what notifications name since the last time is
computed anew, whole days of orgs, and nothing else is touched. How far it has come is the batch id of its last commit,
so cells and cursor are durable together; killed before or after the commit, the next refresh ends the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from lake_assets.base.failpoints import METRICS_COMPUTED, METRICS_WRITTEN, reach
from lake_assets.engagement.metrics.metric_partitions import Cell, blocks
from lake_assets.engagement.model import idempotent
from lake_assets.engagement.model.checkpoint import opened
from lake_assets.engagement.model.tables import (
    ENGAGEMENT,
    ENGAGEMENT_METRICS,
    ENGAGEMENT_METRICS_COLUMNS,
    Commit,
    LakeTables,
)
from lake_assets.engagement.notifications.change_reader import ChangeReader
from lake_assets.errors import ChangesExpired

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

DIMENSIONS = ("org_id", "engagement_date", "rep_id", "cadence_id", "template_id")
EMAIL_KINDS = ("sent", "opened", "replied", "bounced")
CALL = "call"
CALL_OUTCOMES: Mapping[str, str] = {
    "meaningful_contact": "meaningful contact",
    "not_interested": "not interested",
    "left_voicemail": "left voicemail",
}
"""Column → the outcome of the calls that it counts."""

RATES: Mapping[str, tuple[str, str]] = {
    "open_rate": ("opened", "sent"),
    "reply_rate": ("replied", "sent"),
    "bounce_rate": ("bounced", "sent"),
    **{f"{outcome}_rate": (outcome, "calls") for outcome in CALL_OUTCOMES},
}
"""Rate → what it is a part of, and the whole; null where the whole is 0. Each is counted on its own day: what was sent
late and opened early the next day is an opening of that day, whose rate may so exceed 1."""

REBUILDS = 1_000_000
"""A commit's batch id is cursor * REBUILDS + n: the n-th time that somebody asked for a rebuild at this cursor."""


@dataclass(frozen=True)
class Refresh:
    """What a refresh did. since, cursor: versions of the engagement table that the metrics showed before, and show now.

    orgs: whose cells were computed anew, sorted; None: everybody's. cells: so many; None: all. commit: None if nothing
    was to do.
    """

    since: int
    cursor: int
    orgs: tuple[str, ...] | None
    cells: int | None
    commit: Commit | None


@dataclass(frozen=True)
class Metrics:
    """The metrics of one lake. One refresh at a time gets through; Delta refuses or skips the other."""

    tables: LakeTables
    spark: SparkSession

    def refresh(self, orgs: Collection[str] = ()) -> Refresh:
        """Compute the cells anew that changed since the last time; of these orgs, all cells.

        Everything, the first time and when the changes have expired. Commits that changed no row move the cursor alone.
        Raises what Delta does if somebody else commits to the same cells meanwhile: then nothing was written.
        """
        before = _last_batch(self.tables)
        since = before // REBUILDS
        cursor, cells = self._changed(since)
        if cursor == since and not orgs:
            return Refresh(since, cursor, (), 0, None)
        batch_id = max(cursor * REBUILDS, before + 1)
        commit = self._write(batch_id, cursor, _everything() if cells is None else _within(cells, orgs))
        if orgs and _last_batch(self.tables) > batch_id:  # Delta skipped it: a later one came first
            return self.refresh(orgs)
        if cells is None:
            return Refresh(since, cursor, None, None, commit)
        return Refresh(since, cursor, tuple(sorted({*orgs, *(cell.org_id for cell in cells)})), len(cells), commit)

    def _changed(self, since: int) -> tuple[int, list[Cell] | None]:
        """The next cursor, and the cells that changed before it; None: all."""
        try:
            changes = ChangeReader(self.tables, self.spark).read_changes(since)
        except ChangesExpired as expired:
            return expired.version, None
        if not since and changes.cursor:
            return changes.cursor, None
        return changes.cursor, [Cell(*row) for row in changes.rows.select(*Cell._fields).distinct().collect()]

    def _write(self, batch_id: int, cursor: int, cells: Column) -> Commit | None:
        """Replace cells, in one commit, by what they are as of a version of the engagement table."""
        before = self.tables.version(ENGAGEMENT_METRICS)
        rows = measured(self.tables.read(self.spark, ENGAGEMENT, version=cursor).where(cells))
        writer = rows.writeTo(self.tables.identifier(ENGAGEMENT_METRICS))
        reach(METRICS_COMPUTED)
        app_id = _app_id(self.tables)
        writer.options(**idempotent.options(app_id, batch_id)).overwrite(cells)
        reach(METRICS_WRITTEN)
        return self.tables.commit_of(ENGAGEMENT_METRICS, app_id=app_id, batch_id=batch_id, since=before)


def metrics_cursor(tables: LakeTables) -> int:
    """The version of the engagement table that the metrics show; 0 if they were never computed. Needs no Spark."""
    return _last_batch(tables) // REBUILDS


def read_metrics(tables: LakeTables, orgs: Collection[str] = ()) -> pa.Table:
    """The metrics of these orgs, or of all: `ENGAGEMENT_METRICS_COLUMNS`, in memory. Needs no Spark."""
    only = [("org_id", "in", sorted(orgs))] if orgs else None
    return opened(tables.location(ENGAGEMENT_METRICS)).to_pyarrow_table(filters=only)


def measured(engagements: DataFrame) -> DataFrame:
    """The metrics of rows of the engagement table: `ENGAGEMENT_METRICS_COLUMNS`, a row for each of `DIMENSIONS`.

    Rows of other kinds than emails and calls count nowhere; calls with another outcome, or none, only among the calls.
    """
    from pyspark.sql import functions as F

    kind, outcome = F.col("kind"), F.col("outcome")
    counts = [F.count_if(kind == name).alias(name) for name in EMAIL_KINDS]
    counts.append(F.count_if(kind == CALL).alias("calls"))
    counts += [F.count_if((kind == CALL) & (outcome == told)).alias(name) for name, told in CALL_OUTCOMES.items()]
    totals = engagements.where(kind.isin(*EMAIL_KINDS, CALL)).groupBy(*DIMENSIONS).agg(*counts)
    rates = {name: F.try_divide(part, whole) for name, (part, whole) in RATES.items()}
    return totals.withColumns(rates).select(*ENGAGEMENT_METRICS_COLUMNS)


def _app_id(tables: LakeTables) -> str:
    return f"{tables.lake.name}.{ENGAGEMENT_METRICS}"


def _last_batch(tables: LakeTables) -> int:
    return tables.last_batch(ENGAGEMENT_METRICS, _app_id(tables))


def _everything() -> Column:
    from pyspark.sql import functions as F

    return F.lit(True)


def _within(cells: Iterable[Cell], orgs: Collection[str]) -> Column:
    """Whether a row lies in one of the cells, or is of one of the orgs."""
    from pyspark.sql import functions as F

    org, day = F.col("org_id"), F.col("engagement_date")
    within = [org.isin(sorted(orgs))] if orgs else []
    within += [org.isin(*block.orgs) & day.isin(*block.days) for block in blocks(cells)]
    return reduce(or_, within, F.lit(False))
