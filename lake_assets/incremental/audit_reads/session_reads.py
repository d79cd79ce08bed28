"""What the audits of one session read of its driving source: how many rows there are, and which of them are valid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lake_assets.incremental.audit_reads import row_counts
from lake_assets.incremental.audit_reads.source_rows import in_hours, is_valid, rows_appended, rows_at

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.incremental.declaration import Source
    from lake_assets.incremental.planning.session import SourceRange


@dataclass(frozen=True)
class SessionReads:
    """Reads the driving source of a session as of its snapshots.

    An append covers the rows that the snapshots of its range appended, in all hours but the held ones. An overwrite
    covers the rows of its hours.

    Attributes:
        table: The source.
        span: The snapshots that the session covers.
        hours: The hours that an overwrite replaces, without held ones.
        held: The hours whose rows an append leaves out.
        start: First hour of the pipeline.
    """

    spark: SparkSession
    table: Table
    source: Source
    span: SourceRange
    load: Literal["append", "overwrite", "none"]
    hours: tuple[int, ...]
    held: tuple[int, ...]
    start: int

    def valid_rows(self) -> DataFrame:
        """Return the covered rows that do not belong in quarantine, each as often as it was delivered."""
        columns = [field.name for field in self.table.schema().fields]
        valid = is_valid(self.source, columns, start=self.start)
        return self._covered_rows().where(valid)

    def count(self) -> int:
        """Return the number of covered rows: by metadata if they contain it, else by a query."""
        counted = self._count_by_metadata()
        if counted is not None:
            return counted
        return self._covered_rows().count()

    def _covered_rows(self) -> DataFrame:
        time = self.source.time_column
        if self.load == "append":
            rows = rows_appended(self.spark, self.span)
            return rows.where(f"not coalesce({in_hours(time, self.held)}, false)") if self.held else rows
        rows = rows_at(self.spark, self.source.table, self.span.to_snapshot_id)
        return rows.where(in_hours(time, self.hours))

    def _count_by_metadata(self) -> int | None:
        up_to = self.span.to_snapshot_id
        if up_to is None:
            return 0
        if self.load == "append":
            if self.held:
                return None
            return row_counts.rows_appended(self.table, self.span.from_snapshot_id, up_to)
        return row_counts.rows_in_hours(self.table, up_to, self.source.time_column, self.hours)
