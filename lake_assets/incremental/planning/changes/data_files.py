"""The event hours that the rows of a source's data file may lie in, from the file's partition and column bounds.

If the metadata contain neither, the rows may lie in every hour. A file is opened in two cases: its bounds show a time
that quarantine rejects, and one such row would plan the whole history; or its bounds are far apart, and the plan's
budget allows it. Of a table without landing times, which nothing limits, a file is also opened if it has no bounds, or
one after its commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import HourTransform
from pyiceberg.types import DateType, NestedField, PrimitiveType

from lake_assets.base.hours import HOUR_MICROSECONDS, LAST_HOUR, moment_at, ranges
from lake_assets.errors import HistoryCut
from lake_assets.incremental.declaration import LANDED, Source
from lake_assets.incremental.metadata.tables import complete_through
from lake_assets.incremental.planning.changes.row_hours import HourRange, HourRows, ReadBudget, RowHours

HOUR_MILLISECONDS = 3_600_000
HOURS_OF_DAY = 24
EPOCH = date(1970, 1, 1)
MOST_HOURS_AHEAD = 10 * 366 * 24
"""How far after their commit rows may be dated if nothing says which hours they are in, so that all are planned."""

READABLE = (FileFormat.PARQUET, FileFormat.ORC)
"""Formats of data files that pyiceberg reads."""

TimeRange = tuple[int, int]
"""First and last time, microseconds since 1970, both inclusive."""


@dataclass(frozen=True)
class FileChange:
    """One data file, as its manifest describes it.

    Attributes:
        path: Location of the file.
        rows: Number of rows.
        bytes: Size.
        partition: Partition field → value, dates as text; empty if its source does not tell when rows landed.
        hours: The event hours that its rows may lie in; None if no row lies in an hour that counts.
        times: Bounds of the time column; None if the metadata have none.
        row_hours: The event hours of its rows, if the file was opened; empty otherwise.
        rows_by_hour: Event hour and number of its rows, likewise; ascending.
    """

    path: str
    rows: int
    bytes: int
    partition: Mapping[str, object]
    hours: HourRange | None
    times: TimeRange | None = None
    row_hours: tuple[HourRange, ...] = ()
    rows_by_hour: HourRows = field(default=(), repr=False)


@dataclass(frozen=True)
class _PartitionLayout:
    """One partition spec of a table: its fields, and which of them is the hour of the time column."""

    names: tuple[str, ...]
    is_date: tuple[bool, ...]
    hour_position: int | None


class DataFiles:
    """The data files of one source table. Hours are those of the source's time column, from `start` on.

    Args:
        budget: How many files may be opened because their bounds are far apart; None for none.
    """

    def __init__(self, table: Table, source: Source, start: int, budget: ReadBudget | None = None) -> None:
        self.table = table
        self.start = start
        self._budget = budget or ReadBudget()
        self._changes: dict[str, FileChange] = {}
        self._described_files: dict[str, DataFile] = {}
        schema = table.schema()
        self._time_field = schema.find_field(source.time_column)
        # Rows dated after their landing are quarantined, but only if the source's rows are validated.
        landed_column = None if source.trusted else source.landed_column
        self._landed_field = None if landed_column is None else schema.find_field(landed_column)
        self._is_landed_by_partition = source.landed_column == LANDED
        # Nothing limits the times of rows that tell no landing.
        self._has_any_times = landed_column is None
        self.row_hours = RowHours(table, source.time_column, landed_column, start)
        self._layouts: dict[int, _PartitionLayout] = {}
        for spec in table.metadata.partition_specs:
            self._layouts[spec.spec_id] = _layout(spec, schema, self._time_field.field_id)

    def change(self, file: DataFile, snapshot: Snapshot) -> FileChange:
        """Describe a data file. snapshot: one that contains it."""
        if file.file_path not in self._changes:
            self._changes[file.file_path] = self._described(file, snapshot)
            self._described_files[file.file_path] = file
        return self._changes[file.file_path]

    def file(self, change: FileChange) -> DataFile:
        """Return a data file that was described."""
        return self._described_files[change.path]

    def landing_hour(self, file: DataFile) -> int | None:
        """Return the hour of a data or delete file's landing partition; None if it has no such partition."""
        partition = self._partition(file) if self._is_landed_by_partition else {}
        day, hour = partition.get("landing_date"), partition.get("landing_hour")
        if not isinstance(day, date) or not isinstance(hour, int) or hour not in range(HOURS_OF_DAY):
            return None
        return (day - EPOCH).days * HOURS_OF_DAY + hour

    def is_unpartitioned(self, file: DataFile) -> bool:
        """Whether the partition spec of a file has no field."""
        return not self._layouts[file.spec_id].names

    def last_hour(self, snapshot: Snapshot) -> int:
        """Return the last hour that rows of a snapshot may lie in, if nothing else is known.

        Rows are dated neither after their commit nor after the table's complete-through.
        """
        commit_hour = snapshot.timestamp_ms // HOUR_MILLISECONDS
        complete = complete_through(self.table, "")
        return min(max(self.start, commit_hour, complete or self.start), LAST_HOUR)

    def _described(self, file: DataFile, snapshot: Snapshot) -> FileChange:
        times = _bounds(file, self._time_field)
        described = FileChange(
            path=file.file_path,
            rows=file.record_count,
            bytes=file.file_size_in_bytes,
            partition=_as_text(self._partition(file)) if self._is_landed_by_partition else {},
            hours=None,
            times=times,
        )
        hours = self._hours_in_metadata(file, snapshot, times) if file.record_count else None
        if hours is None:
            return described
        try:
            if self._must_be_read(file, hours, snapshot, times) or self._is_worth_reading(file, hours):
                return _with_row_hours(described, self.row_hours.counts(file))
        except FileNotFoundError:
            # The file was removed from the table and from the disk. Its landing still limits its hours.
            hours = self._until_landed(file, hours)
            if hours[1] > self.last_hour(snapshot) + MOST_HOURS_AHEAD:
                raise HistoryCut(".".join(self.table.name()), snapshot.snapshot_id) from None
        return replace(described, hours=self._from_start(hours))

    def _must_be_read(self, file: DataFile, hours: HourRange, snapshot: Snapshot, times: TimeRange | None) -> bool:
        """Whether metadata may say too little: they contain rejected times, none, or some after the commit."""
        if not self._has_any_times or file.file_format not in READABLE:
            return self._has_rejected_times(file, hours, times)
        is_in_partition = self._layouts[file.spec_id].hour_position is not None
        is_after_commit = hours[1] > snapshot.timestamp_ms // HOUR_MILLISECONDS + 1
        return not is_in_partition and (times is None or is_after_commit)

    def _is_worth_reading(self, file: DataFile, hours: HourRange) -> bool:
        counted = self._from_start(hours)
        if counted is None or file.file_format is not FileFormat.PARQUET:
            return False
        return self._budget.take(file.file_size_in_bytes, counted)

    def _partition(self, file: DataFile) -> dict[str, Any]:
        """Return field name → value. A date, which manifests store as days since 1970, is returned as a date."""
        layout = self._layouts[file.spec_id]
        found: dict[str, Any] = {}
        for position, name in enumerate(layout.names):
            value = file.partition[position]
            if layout.is_date[position] and isinstance(value, int):
                value = moment_at(value * HOURS_OF_DAY * HOUR_MICROSECONDS).date()
            found[name] = value
        return found

    def _has_rejected_times(self, file: DataFile, hours: HourRange, times: TimeRange | None) -> bool:
        """Whether quarantine may reject rows of a file because of their times, by metadata."""
        if self._landed_field is None:
            return False
        return hours[0] < self.start or self._is_ahead(file, hours, times)

    def _until_landed(self, file: DataFile, hours: HourRange) -> HourRange:
        """Return the hours up to the one after the last landing, if rows are limited by it and metadata contain it."""
        landed = _bounds(file, self._landed_field) if self._landed_field else None
        limit = landed[1] // HOUR_MICROSECONDS + 1 if landed else self._last_accepted(file)
        if limit is None:
            return hours
        first, last = hours
        return first, min(last, limit)

    def _from_start(self, hours: HourRange) -> HourRange | None:
        """Return the hours from the pipeline's start up to the end of the year 9999; None if there are none."""
        first, last = max(hours[0], self.start), min(hours[1], LAST_HOUR)
        return (first, last) if first <= last else None

    def _hours_in_metadata(self, file: DataFile, snapshot: Snapshot, times: TimeRange | None) -> HourRange | None:
        """Return the hours by partition, else by bounds, else every hour; None if no row has a time."""
        position = self._layouts[file.spec_id].hour_position
        if position is not None:
            hour = file.partition[position]
            return None if hour is None else (hour, hour)
        if times is not None:
            return times[0] // HOUR_MICROSECONDS, times[1] // HOUR_MICROSECONDS
        if self._all_null(file):
            return None
        last = self._last_accepted(file) or self.last_hour(snapshot)
        return self.start, max(self.start, last)

    def _is_ahead(
        self,
        file: DataFile,
        hours: HourRange,
        times: TimeRange | None,
    ) -> bool:
        """Whether a row may be dated more than an hour after its landing."""
        landed = _bounds(file, self._landed_field) if self._landed_field else None
        if times and landed:
            return times[1] > landed[1] + HOUR_MICROSECONDS
        limit = self._last_accepted(file)
        return limit is not None and hours[1] > limit

    def _last_accepted(self, file: DataFile) -> int | None:
        """Return the last event hour that rows of a landing partition may have; later ones are quarantined."""
        if self._landed_field is None:
            return None
        landed = self.landing_hour(file)
        return None if landed is None else landed + 1

    def _all_null(self, file: DataFile) -> bool:
        nulls = (file.null_value_counts or {}).get(self._time_field.field_id)
        return nulls is not None and nulls == file.record_count


def _layout(spec: PartitionSpec, schema: Schema, time_field_id: int) -> _PartitionLayout:
    types = {field.field_id: field.field_type for field in schema.fields}
    names: list[str] = []
    is_date: list[bool] = []
    hour_position: int | None = None
    for position, of_spec in enumerate(spec.fields):
        names.append(of_spec.name)
        source_type = types.get(of_spec.source_id)
        result_type = of_spec.transform.result_type(source_type) if source_type is not None else None
        is_date.append(isinstance(result_type, DateType))
        is_hour = of_spec.source_id == time_field_id and isinstance(of_spec.transform, HourTransform)
        if is_hour and hour_position is None:
            hour_position = position
    return _PartitionLayout(tuple(names), tuple(is_date), hour_position)


def _bounds(file: DataFile, column: NestedField) -> TimeRange | None:
    """Return a file's bounds of a timestamp column; None if the metadata have none."""
    if not isinstance(column.field_type, PrimitiveType):
        return None
    lower = (file.lower_bounds or {}).get(column.field_id)
    upper = (file.upper_bounds or {}).get(column.field_id)
    if lower is None or upper is None:
        return None
    first = from_bytes(column.field_type, lower)
    last = from_bytes(column.field_type, upper)
    return int(first), int(last)


def _with_row_hours(file: FileChange, found: HourRows) -> FileChange:
    if not found:
        return file
    hours = [hour for hour, _ in found]
    return replace(file, hours=(hours[0], hours[-1]), row_hours=tuple(ranges(hours)), rows_by_hour=found)


def _as_text(partition: Mapping[str, Any]) -> dict[str, object]:
    """Return a partition with its dates as text."""
    found: dict[str, object] = {}
    for name, value in partition.items():
        found[name] = value.isoformat() if isinstance(value, date) else value
    return found
