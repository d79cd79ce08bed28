"""What the audits of one session read of its driving source: how many rows there are, and which of them are valid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lake_assets.base.conditions import union_by_name
from lake_assets.incremental.audit_reads import row_counts
from lake_assets.incremental.audit_reads.source_rows import (
    in_hours,
    is_deleted,
    is_valid,
    newest_versions,
    rows_appended,
    rows_at,
    rows_of_keys,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.incremental.declaration import Source
    from lake_assets.incremental.planning.deferred import LateRows
    from lake_assets.incremental.planning.session import SourceRange


@dataclass(frozen=True)
class SessionReads:
    """Reads the driving source of a session as of its snapshots.

    An append covers the rows that the snapshots of its range appended, and its late rows, in all hours but those that
    are left out. An overwrite covers the rows of its hours.

    Attributes:
        table: The source.
        span: The snapshots that the session covers.
        hours: The hours that an overwrite replaces, without held ones.
        left_out: The hours whose rows an append leaves out: held and deferred ones.
        late_rows: Rows of earlier snapshots that an append covers, too.
        start: First hour of the pipeline.
    """

    spark: SparkSession
    table: Table
    source: Source
    span: SourceRange
    load: Literal["append", "overwrite", "none"]
    hours: tuple[int, ...]
    left_out: tuple[int, ...]
    late_rows: tuple[LateRows, ...]
    start: int

    def valid_rows(self) -> DataFrame:
        """Return the covered rows that do not belong in quarantine, each as often as it was delivered.

        If the source has versions, return each version that counts once, without those that delete their key.
        """
        columns = [field.name for field in self.table.schema().fields]
        valid = is_valid(self.source, start=self.start)
        if not self.source.has_versions:
            return self._covered_rows().where(valid)
        rows = self._rows_of_all_hours().where(valid)
        if self.load != "append":
            rows = rows_of_keys(rows, self._covered_rows(), self.source)
        newest = newest_versions(rows, self.source, columns)
        return newest.where(self._is_covered()).where(~is_deleted(self.source))

    def count(self) -> int:
        """Return the number of covered rows: by metadata if they contain it, else by a query."""
        counted = self._count_by_metadata()
        if counted is not None:
            return counted
        return self._covered_rows().count()

    def _covered_rows(self) -> DataFrame:
        return self._rows_of_all_hours().where(self._is_covered())

    def _rows_of_all_hours(self) -> DataFrame:
        if self.load == "append":
            return self._appended_rows()
        return rows_at(self.spark, self.table, self.span.to_snapshot_id)

    def _appended_rows(self) -> DataFrame:
        parts = [rows_appended(self.spark, self.table, self.span)]
        for late in self.late_rows:
            earlier = replace(self.span, from_snapshot_id=late.from_snapshot_id, to_snapshot_id=late.to_snapshot_id)
            waited = rows_appended(self.spark, self.table, earlier)
            parts.append(waited.where(in_hours(self.source.time_column, late.hours)))
        return union_by_name(*parts)

    def _is_covered(self) -> str:
        time = self.source.time_column
        if self.load != "append":
            return in_hours(time, self.hours)
        return f"not coalesce({in_hours(time, self.left_out)}, false)" if self.left_out else "true"

    def _count_by_metadata(self) -> int | None:
        up_to = self.span.to_snapshot_id
        if up_to is None:
            return 0
        if self.load == "append":
            if self.left_out or self.late_rows:
                return None
            return row_counts.rows_appended(self.table, self.span.from_snapshot_id, up_to)
        return row_counts.rows_in_hours(self.table, up_to, self.source.time_column, self.hours)
