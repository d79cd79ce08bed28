"""The prepared rows of a session, and their write as a snapshot that main does not refer to.

The write is one Iceberg commit under `spark.wap.id`. It only appends or overwrites by a filter: under a WAP id, DELETE
and TRUNCATE go straight to main, and a dynamic overwrite cannot empty an hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from pyspark.sql import DataFrame, SparkSession

from lake_assets.base.conditions import union_by_name
from lake_assets.base.time_filters import replaced_hours
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.planning.session import RowCounts, SessionPlan
from lake_assets.incremental.staging.reading import CATALOG, is_few

WAP_ID = "spark.wap.id"


@dataclass(frozen=True)
class PreparedRows:
    """The rows of one session, not yet written.

    Attributes:
        plan: What was prepared: the session's plan, without the hours that its audits hold back.
        load: `append`, `overwrite`, or `none` (at most rows for the quarantine).
        hours: The hours that an overwrite replaces; for an append, the hours of its rows' source times.
        rows: Rows to write, with the columns of the target.
        kept: Rows of the driving source that should appear in the target, with the columns of the source.
        row_counts: What became of the rows of the driving source.
        quarantined: Rows that are new to the quarantine, as `row_validation.quarantine_rows` returns them; one
            DataFrame for each source that may have any.
        max_rows: About how many rows the session reads of any table, at most; infinite if that is not known.
        unchanged: Planned hours whose rows equal the published ones; `hours` and `rows` leave them out.
        rows_unchanged: Rows in `unchanged`.
    """

    plan: SessionPlan
    load: Literal["append", "overwrite", "none"]
    hours: tuple[int, ...]
    rows: DataFrame
    kept: DataFrame
    row_counts: RowCounts
    quarantined: list[DataFrame]
    max_rows: float = inf
    unchanged: tuple[int, ...] = ()
    rows_unchanged: int = 0

    @property
    def single_partition(self) -> bool:
        """Whether `rows` are one partition."""
        return is_few(self.max_rows)

    @property
    def has_rows(self) -> bool:
        """Whether there is something to write. An overwrite may empty hours; an append of no row writes nothing."""
        if self.load == "overwrite":
            return bool(self.hours)
        return self.load == "append" and self.row_counts.kept > 0

    def quarantined_rows(self, limit: int) -> list[dict[str, str]]:
        """Return at most `limit` rows for the quarantine. Starts a Spark job only if there may be any."""
        if not self.quarantined:
            return []
        rows = self._all_quarantined().limit(limit).collect()
        return [row.asDict() for row in rows]

    def count_quarantined(self) -> int:
        """Return the number of rows for the quarantine."""
        if not self.quarantined:
            return 0
        return self._all_quarantined().count()

    def _all_quarantined(self) -> DataFrame:
        return union_by_name(*self.quarantined)


def write(spark: SparkSession, target: Target, prepared: PreparedRows, wap_id: str, summary: Mapping[str, str]) -> None:
    """Write prepared rows as a snapshot with a WAP id and further fields of its summary. Main does not refer to it."""
    # Spark sorts the rows of a task by partition, and has one file open at a time. Otherwise each hour has one open at
    # once, which takes a megabyte.
    writer = prepared.rows.writeTo(f"{CATALOG}.{target.table}").option("fanout-enabled", "false")
    if prepared.single_partition:
        writer = writer.option("distribution-mode", "none")
    for key, value in summary.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    spark.conf.set(WAP_ID, wap_id)
    try:
        if prepared.load == "append":
            writer.append()
        else:
            writer.overwrite(replaced_hours(target.time_column, prepared.hours))
    finally:
        spark.conf.unset(WAP_ID)
