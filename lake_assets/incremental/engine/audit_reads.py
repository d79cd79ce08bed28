"""What audits read of a source: the number of its rows, and which of them are valid, by code of the audits' own.

Spark may read a file wrongly, and an audit that counted by the same reader would not see it. So rows are counted
without Spark as far as possible: by the metadata of the snapshots, and by the times of a few files. Rows are read on
Spark by plain queries. The engine's conditions in them are SQL text, in which names are quoted and values are numbers
and times. The conditions that a user has written are expressions of their own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import PrimitiveType

from lake_assets.base.columns import KEY, LANDED, NEWEST, SAME, hash_sql, quoted, table_in_sql, union_by_name
from lake_assets.base.hours import FIRST_HOUR, HOUR_MICROSECONDS, LAST_HOUR, hour_sql, moment_sql
from lake_assets.base.sql_text import any_is_true
from lake_assets.incremental.engine.columns import with_present_columns
from lake_assets.incremental.engine.iceberg import SMALL_FILES, ArrowScan, entries
from lake_assets.incremental.engine.publish import ancestors, operation_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from lake_assets.incremental.declaration import Source
    from lake_assets.incremental.engine.model import Load, SessionPlan, SourceRange


MAX_FILES = 2_000
"""Most live data files whose entries are read. With more, a query that runs in parallel is cheaper."""

MAX_OPENED = 16
MAX_OPENED_BYTES = 64_000_000
"""Most files that are opened, and their size together."""


@dataclass(frozen=True)
class SessionReads:
    """Reads the driving source of a session as of its snapshots.

    An append covers the rows that the snapshots of its range appended, and its late rows, in all hours but those that
    are left out. An overwrite covers the rows of its hours.

    Attributes:
        table: The source.
        plan: The session's plan, without held hours.
        load: What the session does; an append may have become an overwrite.
        start: First hour of the pipeline.
    """

    spark: SparkSession
    table: Table
    source: Source
    plan: SessionPlan
    load: Load
    start: int

    def valid_rows(self) -> DataFrame:
        """Return the covered rows that do not belong in quarantine, each as often as it was delivered.

        If the source has versions, return each version that counts once, without those that delete their key.
        """
        rows, covered = self._rows(), self._is_covered()
        valid = is_valid(self.source, start=self.start)
        if not self.source.has_versions:
            return rows.where(covered).where(valid)
        some, rows = rows.where(covered), rows.where(valid)
        if self.load != "append":
            key = quoted(str(self.source.key))
            keys = some.selectExpr(f"{key} as {SAME}").distinct()
            rows = rows.join(keys, _expression(f"{key} = {SAME}"), "left_semi")
        columns = [field.name for field in self.table.schema().fields]
        return newest_versions(rows, self.source, columns).where(covered).where(~is_deleted(self.source))

    def count(self) -> int:
        """Return the number of covered rows: by metadata if they contain it, else by a query."""
        span, counted = self.plan.sources[0], None
        if span.to_snapshot_id is None:
            return 0
        if self.load != "append":
            hours = self.plan.hour_numbers
            counted = count_in_hours(self.table, span.to_snapshot_id, self.source.time_column, hours)
        elif not self.plan.left_out and not self.plan.late_rows:
            counted = count_appended(self.table, span.from_snapshot_id, span.to_snapshot_id)
        return self._rows().where(self._is_covered()).count() if counted is None else counted

    def _rows(self) -> DataFrame:
        """Return the covered rows, and those of other hours."""
        span = self.plan.sources[0]
        if self.load != "append":
            return rows_at(self.spark, self.table, span.to_snapshot_id)
        parts = [rows_appended(self.spark, self.table, span)]
        for late in self.plan.late_rows:
            earlier = replace(span, from_snapshot_id=late.from_snapshot_id, to_snapshot_id=late.to_snapshot_id)
            waited = rows_appended(self.spark, self.table, earlier)
            parts.append(waited.where(in_hours(self.source.time_column, late.hours)))
        return union_by_name(*parts)

    def _is_covered(self) -> str:
        time, left_out = self.source.time_column, self.plan.left_out
        if self.load != "append":
            return in_hours(time, self.plan.hour_numbers)
        return f"not coalesce({in_hours(time, left_out)}, false)" if left_out else "true"


# Rows on Spark


def rows_at(spark: SparkSession, table: Table, snapshot_id: int | None) -> DataFrame:
    """Return the rows of a table as of a snapshot, with the columns that the table has now; no rows for None."""
    name = table_in_sql(".".join(table.name()))
    if snapshot_id is None:
        return spark.read.table(name).where("false")
    rows = spark.read.option("versionAsOf", str(snapshot_id)).options(**SMALL_FILES).table(name)
    return with_present_columns(rows, table, snapshot_id)


def rows_appended(spark: SparkSession, table: Table, span: SourceRange) -> DataFrame:
    """Return the rows that a range of snapshots appended. The range has no other change than appends."""
    after = span.from_snapshot_id
    if after is None:
        return rows_at(spark, table, span.to_snapshot_id)
    if after == span.to_snapshot_id:
        return rows_at(spark, table, None)
    options = {"start-snapshot-id": str(after), "end-snapshot-id": str(span.to_snapshot_id)}
    return spark.read.format("iceberg").options(**options).load(table_in_sql(span.source))


def in_hours(time_column: str, hours: Collection[int]) -> str:
    """Return the condition that a time lies in some hours; null or false without a time.

    Their range is a condition of its own, because Iceberg leaves out files by it.
    """
    if not hours:
        return "false"
    time = quoted(time_column)
    numbers = ", ".join(str(hour) for hour in sorted(set(hours)))
    in_range = f"{time} >= {moment_sql(min(hours))} and {time} < {moment_sql(max(hours) + 1)}"
    return f"{in_range} and {hour_sql(time)} in ({numbers})"


def is_valid(source: Source, *, start: int) -> Column:
    """Return the condition on rows of a source that do not belong in quarantine.

    Args:
        start: First hour of the pipeline.
    """
    from pyspark.sql import functions as F

    time = quoted(source.time_column)
    end = moment_sql(LAST_HOUR + 1)
    if source.trusted:
        return F.expr(f"coalesce({time} >= {moment_sql(FIRST_HOUR)} and {time} < {end}, true)")
    landed = None if source.landed_column is None else quoted(source.landed_column)
    needed = [f"{quoted(column)} is not null" for column in source.named_columns]
    tests = [*needed, f"{time} >= {moment_sql(start)}", f"{time} < {end}"]
    if landed is not None:
        tests.append(f"{landed} is not null and {time} <= least({landed}, {end}) + interval 1 hour")
    stands = F.expr(" and ".join(tests)) & ~any_is_true([rule.where for rule in source.rules])
    if source.deleted is None:
        return stands
    if source.takes_unordered_deletions:
        needed = [f"{quoted(str(source.key))} is not null"]
    deletes = " and ".join([*needed, "true" if landed is None else f"{landed} is not null"])
    return F.when(is_deleted(source), F.expr(deletes)).otherwise(stands)


def is_deleted(source: Source) -> Column:
    """Return the condition on rows of a source that delete their key."""
    return any_is_true([] if source.deleted is None else [source.deleted])


def newest_versions(rows: DataFrame, source: Source, columns: Sequence[str]) -> DataFrame:
    """Return the last of the rows of each key; if the source keeps all versions, of each key and order.

    Args:
        rows: Valid rows.
        columns: The columns of the source.
    """
    every_column = ", ".join(map(quoted, columns))
    places = [quoted(name) for name in source.arrival_columns if name in columns]
    order = [*map(quoted, source.order_columns), *places]
    if source.takes_unordered_deletions:
        rows = _after_unordered_deletions(rows, source, f"struct({', '.join(places)})")
    content = hash_sql(rows.schema)
    newest = f"max_by(struct({every_column}), struct({', '.join([*order, content])})) as {NEWEST}"
    same = {f"{SAME}{number}": name for number, name in enumerate(source.row_columns)}
    by_row = rows.selectExpr("*", *[f"{quoted(column)} as {name}" for name, column in same.items()])
    return by_row.groupBy(*same).agg(_expression(newest)).selectExpr(f"{NEWEST}.*")


def _after_unordered_deletions(rows: DataFrame, source: Source, place: str) -> DataFrame:
    """Return the rows with an order that landed after the last deletion of their key that has none.

    Args:
        place: The expression of when a row landed.
    """
    key = quoted(str(source.key))
    lacks_order = _expression(" or ".join(f"{quoted(column)} is null" for column in source.order_columns))
    is_unordered = is_deleted(source) & lacks_order
    deletions = rows.where(is_unordered).groupBy(_expression(f"{key} as {KEY}"))
    last = deletions.agg(_expression(f"max({place}) as {LANDED}"))
    ordered = rows.where(~is_unordered)
    beside = ordered.join(last, _expression(f"{key} = {KEY}"), "left")
    return beside.where(f"{LANDED} is null or {place} > {LANDED}").drop(KEY, LANDED)


def _expression(text: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(text)


# Numbers of rows without Spark


def count_appended(table: Table, after: int | None, up_to: int | None) -> int | None:
    """Return the rows that the snapshots of a range appended, by the manifests that they wrote.

    Args:
        table: The source.
        after: The last snapshot before the range; None if every row is new.
        up_to: The last snapshot of the range; None if the table has none.

    Returns:
        None if a snapshot of the range is gone or changed rows, or if every row is new and some are deleted.
    """
    if up_to is None:
        return 0
    if after is None:
        manifests = _data_manifests(table, up_to)
        return (
            None
            if manifests is None
            else sum((m.added_rows_count or 0) + (m.existing_rows_count or 0) for m in manifests)
        )
    rows = 0
    for snapshot in ancestors(table, up_to):
        if snapshot.snapshot_id == after:
            return rows
        if operation_of(snapshot) is Operation.APPEND:
            own = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
            rows += sum(each.added_rows_count or 0 for each in own if each.content is ManifestContent.DATA)
        elif operation_of(snapshot) is not Operation.REPLACE:
            return None
    return None


def count_in_hours(table: Table, snapshot_id: int, time_column: str, hours: Collection[int]) -> int | None:
    """Return the rows of a snapshot whose time lies in some hours, by the bounds of its data files.

    A file that has rows in some of the hours and may have others is opened, as its rows alone tell. Rows without a time
    are in no hour.

    Returns:
        None if the snapshot is gone or has delete files, or if there are too many data files to look at or to open.
    """
    manifests = _data_manifests(table, snapshot_id)
    if manifests is None:
        return None
    if sum((each.added_files_count or 0) + (each.existing_files_count or 0) for each in manifests) > MAX_FILES:
        return None
    column = table.schema().find_field(time_column)
    ordered = sorted(set(hours))
    rows, to_open = 0, []
    for manifest in manifests:
        for entry in entries(manifest, table.io):
            file = entry.data_file
            nulls = (file.null_value_counts or {}).get(column.field_id)
            timed = None if nulls is None else file.record_count - nulls
            bounds = [(each or {}).get(column.field_id) for each in (file.lower_bounds, file.upper_bounds)]
            if timed == 0:
                continue
            if None in bounds or not isinstance(column.field_type, PrimitiveType):
                to_open.append(file)
                continue
            first, last = (int(from_bytes(column.field_type, each)) // HOUR_MICROSECONDS for each in bounds if each)
            wanted = bisect_right(ordered, last) - bisect_left(ordered, first)
            if wanted == last - first + 1 and timed is not None:
                rows += timed
            elif wanted:
                to_open.append(file)
    if len(to_open) > MAX_OPENED or sum(file.file_size_in_bytes for file in to_open) > MAX_OPENED_BYTES:
        return None
    scan = ArrowScan(table.metadata, table.io, table.schema().select(time_column), ALWAYS_TRUE)
    for batch in scan.to_record_batches([FileScanTask(file) for file in to_open]):
        times = batch.column(time_column)
        numbers = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).drop_null()
        found = np.floor_divide(numbers.to_numpy(zero_copy_only=False), HOUR_MICROSECONDS)
        rows += int(np.isin(found, ordered).sum())
    return rows


def _data_manifests(table: Table, snapshot_id: int) -> list[ManifestFile] | None:
    """Return the manifests of a snapshot; None if it is gone, or if delete files hide some of its rows."""
    snapshot = table.snapshot_by_id(snapshot_id)
    manifests = snapshot.manifests(table.io) if snapshot else None
    if manifests is None or any(manifest.content is ManifestContent.DELETES for manifest in manifests):
        return None
    return manifests
