"""The event hours that the rows of a source's data file may lie in, from the file's partition and column bounds.

If the metadata contain neither, the rows may lie in every hour. A file is opened in one case only: its bounds show a
time that quarantine rejects, and one such row would plan the whole history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import HourTransform
from pyiceberg.types import DateType, NestedField, PrimitiveType

from lake_assets.base.hours import HOUR_MICROSECONDS
from lake_assets.incremental.declaration import LANDED, Source
from lake_assets.incremental.metadata.tables import complete_through

HOUR_MILLISECONDS = 3_600_000
HOURS_OF_DAY = 24
EPOCH = date(1970, 1, 1)

HourRange = tuple[int, int]
"""First and last event hour, both inclusive."""

TimeRange = tuple[int, int]
"""First and last time, microseconds since 1970, both inclusive."""


@dataclass(frozen=True)
class FileChange:
    """One data file, as its manifest describes it.

    Attributes:
        path: Location of the file.
        rows: Number of rows.
        bytes: Size.
        partition: Partition field → value; dates as text.
        hours: The event hours that its rows may lie in; None if no row lies in an hour that counts.
        times: Bounds of the time column; None if the metadata have none.
    """

    path: str
    rows: int
    bytes: int
    partition: Mapping[str, object]
    hours: HourRange | None
    times: TimeRange | None = None


@dataclass(frozen=True)
class _PartitionLayout:
    """One partition spec of a table: its fields, and which of them is the hour of the time column."""

    names: tuple[str, ...]
    is_date: tuple[bool, ...]
    hour_position: int | None


class DataFiles:
    """The data files of one source table. Hours are those of the source's time column, from `start` on."""

    def __init__(self, table: Table, source: Source, start: int) -> None:
        self.table = table
        self.start = start
        schema = table.schema()
        self._time_field = schema.find_field(source.time_column)
        # Rows dated after their landing are quarantined, but only if the source's rows are validated.
        is_validated = LANDED in schema.column_names and not source.trusted
        self._landed_field = schema.find_field(LANDED) if is_validated else None
        self._layouts: dict[int, _PartitionLayout] = {}
        for spec in table.metadata.partition_specs:
            self._layouts[spec.spec_id] = _layout(spec, schema, self._time_field.field_id)

    def change(self, file: DataFile, snapshot: Snapshot) -> FileChange:
        """Describe a data file. snapshot: one that contains it."""
        times = _bounds(file, self._time_field)
        return FileChange(
            path=file.file_path,
            rows=file.record_count,
            bytes=file.file_size_in_bytes,
            partition=_as_text(self._partition(file)),
            hours=self._hours(file, snapshot, times),
            times=times,
        )

    def landing_hour(self, file: DataFile) -> int | None:
        """Return the hour of a data or delete file's landing partition; None if it has no such partition."""
        partition = self._partition(file)
        day, hour = partition.get("landing_date"), partition.get("landing_hour")
        if not isinstance(day, date) or not isinstance(hour, int):
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
        return max(self.start, commit_hour, complete or self.start)

    def _partition(self, file: DataFile) -> dict[str, Any]:
        """Return field name → value. A date, which manifests store as days since 1970, is returned as a date."""
        layout = self._layouts[file.spec_id]
        found: dict[str, Any] = {}
        for position, name in enumerate(layout.names):
            value = file.partition[position]
            if layout.is_date[position] and isinstance(value, int):
                value = EPOCH + timedelta(days=value)
            found[name] = value
        return found

    def _hours(self, file: DataFile, snapshot: Snapshot, times: TimeRange | None) -> HourRange | None:
        if not file.record_count:
            return None
        hours = self._hours_in_metadata(file, snapshot, times)
        if hours is None:
            return None
        if self._landed_field is None:
            return self._from_start(hours)
        landed = _bounds(file, self._landed_field)
        starts_in_time = hours[0] >= self.start
        if starts_in_time and not self._is_ahead(file, hours, times, landed):
            return hours
        try:
            return self._accepted_hours(file, self._landed_field)
        except FileNotFoundError:
            # The file was removed from the table and from the disk. Its landing still limits its hours.
            return self._from_start(self._until_landed(file, hours, landed))

    def _until_landed(self, file: DataFile, hours: HourRange, landed: TimeRange | None) -> HourRange:
        """Return the hours up to the one after the last landing, if the metadata contain the landing."""
        limit = landed[1] // HOUR_MICROSECONDS + 1 if landed else self._last_accepted(file)
        if limit is None:
            return hours
        first, last = hours
        return first, min(last, limit)

    def _from_start(self, hours: HourRange) -> HourRange | None:
        """Return the hours that are not before the pipeline's start; None if there are none."""
        first, last = max(hours[0], self.start), hours[1]
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
        landed: TimeRange | None,
    ) -> bool:
        """Whether a row may be dated more than an hour after its landing."""
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

    def _accepted_hours(self, file: DataFile, landed_field: NestedField) -> HourRange | None:
        """Return the hours of the rows that quarantine accepts, read from the two time columns of the file."""
        columns = [self._time_field.name, landed_field.name]
        with self.table.io.new_input(file.file_path).open() as opened:
            rows = pq.read_table(opened, columns=columns)
        times = _microseconds(rows, self._time_field.name)
        landed = _microseconds(rows, landed_field.name)
        not_too_early = pc.greater_equal(times, self.start * HOUR_MICROSECONDS)
        not_too_late = pc.less_equal(times, pc.add(landed, HOUR_MICROSECONDS))
        is_accepted = pc.and_(not_too_early, pc.fill_null(not_too_late, False))
        accepted = pc.min_max(times.filter(pc.fill_null(is_accepted, False)))
        if not accepted["min"].is_valid:
            return None
        return accepted["min"].as_py() // HOUR_MICROSECONDS, accepted["max"].as_py() // HOUR_MICROSECONDS

    def _all_null(self, file: DataFile) -> bool:
        nulls = (file.null_value_counts or {}).get(self._time_field.field_id)
        return nulls is not None and nulls == file.record_count


def _layout(spec: PartitionSpec, schema: Schema, time_field_id: int) -> _PartitionLayout:
    types = {field.field_id: field.field_type for field in schema.fields}
    names: list[str] = []
    is_date: list[bool] = []
    hour_position: int | None = None
    for position, field in enumerate(spec.fields):
        names.append(field.name)
        source_type = types.get(field.source_id)
        result_type = field.transform.result_type(source_type) if source_type is not None else None
        is_date.append(isinstance(result_type, DateType))
        is_hour = field.source_id == time_field_id and isinstance(field.transform, HourTransform)
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


def _microseconds(rows: pa.Table, column: str) -> pa.ChunkedArray:
    times = rows[column].cast(pa.timestamp("us", "UTC"))
    return times.cast(pa.int64())


def _as_text(partition: Mapping[str, Any]) -> dict[str, object]:
    """Return a partition with its dates as text."""
    found: dict[str, object] = {}
    for name, value in partition.items():
        found[name] = value.isoformat() if isinstance(value, date) else value
    return found
