"""The number of rows of a source, without Spark: by the metadata of its snapshots, and the times of a few files.

Spark may read a file wrongly, and an audit that counted by the same reader would not see it.

The rows of a source, read on Spark by plain queries of the audits' own.

The engine's conditions are SQL text. The names in them are quoted, the values are numbers and times. The conditions
that a user has written are expressions of their own.

What the audits of one session read of its driving source: how many rows there are, and which of them are valid.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import NestedField, PrimitiveType

from lake_assets.base.columns import KEY, LANDED, NEWEST, SAME, hash_sql, quoted
from lake_assets.base.conditions import union_by_name
from lake_assets.base.hours import FIRST_HOUR, HOUR_MICROSECONDS, LAST_HOUR, hour_sql, moment_sql
from lake_assets.base.sql_text import any_is_true
from lake_assets.incremental.engine.columns import with_present_columns
from lake_assets.incremental.engine.iceberg import ArrowScan, entries

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame, SparkSession

    from lake_assets.incremental.declaration import Source
    from lake_assets.incremental.engine.model import LateRows, SourceRange


MAX_FILES = 2_000
"""Most live data files whose entries are read. With more, a query that runs in parallel is cheaper."""

MAX_OPENED = 16
MAX_OPENED_BYTES = 64_000_000
"""Most files that are opened, and their size together."""


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
        return count_at(table, up_to)
    rows = 0
    current = table.snapshot_by_id(up_to)
    while current is not None and current.snapshot_id != after:
        added = _rows_appended_by(table, current)
        if added is None:
            return None
        rows += added
        parent = current.parent_snapshot_id
        current = None if parent is None else table.snapshot_by_id(parent)
    return None if current is None else rows


def count_at(table: Table, snapshot_id: int) -> int | None:
    """Return the rows of a snapshot; None if it is gone, or has delete files."""
    manifests = _data_manifests(table, snapshot_id)
    if manifests is None:
        return None
    rows = 0
    for manifest in manifests:
        rows += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
    return rows


def count_in_hours(table: Table, snapshot_id: int, time_column: str, hours: Collection[int]) -> int | None:
    """Return the rows of a snapshot whose time lies in some hours, by the bounds of its data files.

    A file that has rows in some of the hours and may have others is opened, as its rows alone tell.

    Returns:
        None if the snapshot is gone or has delete files, or if there are too many data files to look at or to open.
    """
    manifests = _data_manifests(table, snapshot_id)
    if manifests is None or _number_of_files(manifests) > MAX_FILES:
        return None
    column = table.schema().find_field(time_column)
    ordered = sorted(set(hours))
    rows = 0
    to_open = []
    for file in _files(table, manifests):
        counted = _rows_of_file(file, column, ordered)
        if counted is None:
            to_open.append(file)
        else:
            rows += counted
    if len(to_open) > MAX_OPENED or sum(file.file_size_in_bytes for file in to_open) > MAX_OPENED_BYTES:
        return None
    return rows + _rows_read(table, time_column, to_open, ordered) if to_open else rows


def _rows_read(table: Table, time_column: str, files: Iterable[DataFile], hours: Sequence[int]) -> int:
    """Return the rows of some files whose time lies in some hours, by reading their times."""
    scan = ArrowScan(table.metadata, table.io, table.schema().select(time_column), ALWAYS_TRUE)
    rows = 0
    for batch in scan.to_record_batches([FileScanTask(file) for file in files]):
        times = batch.column(time_column)
        numbers = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).drop_null()
        found = np.floor_divide(numbers.to_numpy(zero_copy_only=False), HOUR_MICROSECONDS)
        rows += int(np.isin(found, hours).sum())
    return rows


def _rows_appended_by(table: Table, snapshot: Snapshot) -> int | None:
    """Return the rows that one snapshot appended: none if it compacted; None if it changed rows."""
    operation = snapshot.summary.operation if snapshot.summary else None
    if operation is Operation.REPLACE:
        return 0
    if operation is not Operation.APPEND:
        return None
    rows = 0
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.content is ManifestContent.DATA:
            rows += manifest.added_rows_count or 0
    return rows


def _data_manifests(table: Table, snapshot_id: int) -> list[ManifestFile] | None:
    """Return the manifests of a snapshot; None if it is gone, or if delete files hide some of its rows."""
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return None
    manifests = snapshot.manifests(table.io)
    if any(manifest.content is ManifestContent.DELETES for manifest in manifests):
        return None
    return manifests


def _number_of_files(manifests: Iterable[ManifestFile]) -> int:
    return sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)


def _files(table: Table, manifests: Iterable[ManifestFile]) -> Iterator[DataFile]:
    for manifest in manifests:
        for entry in entries(manifest, table.io, discard_deleted=True):
            yield entry.data_file


def _rows_of_file(file: DataFile, column: NestedField, hours: Sequence[int]) -> int | None:
    """Return the rows of a data file in some hours (ascending), if it has rows in all hours between its bounds or none.

    Rows without a time are in no hour.
    """
    nulls = (file.null_value_counts or {}).get(column.field_id)
    timed = None if nulls is None else file.record_count - nulls
    if timed == 0:
        return 0
    bounds = _bounds(file, column)
    if bounds is None:
        return None
    first, last = bounds
    wanted = bisect_right(hours, last) - bisect_left(hours, first)
    if wanted == 0:
        return 0
    return timed if wanted == last - first + 1 else None


def _bounds(file: DataFile, column: NestedField) -> tuple[int, int] | None:
    """Return the first and the last hour of a time column in a file; None if its metadata have none."""
    lower = (file.lower_bounds or {}).get(column.field_id)
    upper = (file.upper_bounds or {}).get(column.field_id)
    if lower is None or upper is None or not isinstance(column.field_type, PrimitiveType):
        return None
    first = int(from_bytes(column.field_type, lower))
    last = int(from_bytes(column.field_type, upper))
    return first // HOUR_MICROSECONDS, last // HOUR_MICROSECONDS


CATALOG = "lake"


def rows_at(spark: SparkSession, table: Table, snapshot_id: int | None) -> DataFrame:
    """Return the rows of a table as of a snapshot, with the columns that the table has now; no rows for None."""
    name = ".".join((CATALOG, *table.name()))
    if snapshot_id is None:
        return spark.read.table(name).where("false")
    rows = spark.read.option("versionAsOf", str(snapshot_id)).table(name)
    return with_present_columns(rows, table, snapshot_id)


def rows_appended(spark: SparkSession, table: Table, span: SourceRange) -> DataFrame:
    """Return the rows that a range of snapshots appended. The range has no other change than appends."""
    after = span.from_snapshot_id
    if after is None:
        return rows_at(spark, table, span.to_snapshot_id)
    if after == span.to_snapshot_id:
        return rows_at(spark, table, None)
    options = {"start-snapshot-id": str(after), "end-snapshot-id": str(span.to_snapshot_id)}
    return spark.read.format("iceberg").options(**options).load(f"{CATALOG}.{span.source}")


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


def rows_of_keys(rows: DataFrame, some: DataFrame, source: Source) -> DataFrame:
    """Return the rows of a source whose key occurs in some of them."""
    key = quoted(str(source.key))
    keys = some.selectExpr(f"{key} as {SAME[0]}").distinct()
    return rows.join(keys, _expression(f"{key} = {SAME[0]}"), "left_semi")


def _expression(text: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(text)


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
            return count_appended(self.table, self.span.from_snapshot_id, up_to)
        return count_in_hours(self.table, up_to, self.source.time_column, self.hours)
