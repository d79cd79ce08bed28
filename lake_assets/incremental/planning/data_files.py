"""One data file of a source, as its manifest describes it: above all, the event hours that its rows may lie in.

Bounds and partitions tell these. Where they are missing, every hour is meant, never none. A file is opened in one case
alone: its bounds show a time that quarantine will not let pass, and by them a single such row would plan all history.
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
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import HourTransform
from pyiceberg.types import DateType

from lake_assets.base.hours import HOUR_MICROSECONDS
from lake_assets.incremental.declaration import LANDED, Source
from lake_assets.incremental.metadata.tables import complete_through

HourRange = tuple[int, int]
"""First and last event hour, both inclusive."""


@dataclass(frozen=True)
class FileChange:
    """One data file, as its manifest describes it.

    hours: the event hours its rows may lie in; None: in none that counts.
    times: bounds of the time column, microseconds since 1970; None when the metadata have none.
    """

    path: str
    rows: int
    bytes: int
    partition: Mapping[str, object]
    hours: HourRange | None
    times: tuple[int, int] | None = None


class DataFiles:
    """The files of one table, read for one source: hours are those of its time column, from `start` on."""

    def __init__(self, table: Table, source: Source, start: int) -> None:
        self.table, self.start = table, start
        schema, specs = table.schema(), table.metadata.partition_specs
        self.time_field = schema.find_field(source.time_column)
        # Only of a source whose rows are judged is a row dated after its landing set aside.
        landed = LANDED in schema.column_names and not source.trusted
        self.landed_field = schema.find_field(LANDED) if landed else None
        self.names = {spec.spec_id: [f.name for f in spec.fields] for spec in specs}
        self.hour_position = {spec.spec_id: self._position_of_hour(spec) for spec in specs}
        types = {f.field_id: f.field_type for f in schema.fields}
        self.dates = {
            spec.spec_id: [
                f.source_id in types and isinstance(f.transform.result_type(types[f.source_id]), DateType)
                for f in spec.fields
            ]
            for spec in specs
        }

    def _position_of_hour(self, spec: PartitionSpec) -> int | None:
        for i, f in enumerate(spec.fields):
            if f.source_id == self.time_field.field_id and isinstance(f.transform, HourTransform):
                return i
        return None

    def change(self, file: DataFile, snapshot: Snapshot) -> FileChange:
        times = self._bounds(file, self.time_field)
        landed = self._bounds(file, self.landed_field) if self.landed_field else None
        return FileChange(
            path=file.file_path,
            rows=file.record_count,
            bytes=file.file_size_in_bytes,
            partition={name: _plain(value) for name, value in self._partition(file).items()},
            hours=self._hours(file, snapshot, times, landed),
            times=times,
        )

    def landing_hour(self, file: DataFile) -> int | None:
        """The hour of a file's landing partition, a delete file's too; None if it is not partitioned by landing."""
        landed = self._partition(file)
        day, hour = landed.get("landing_date"), landed.get("landing_hour")
        if not isinstance(day, date) or not isinstance(hour, int):
            return None
        return (day - date(1970, 1, 1)).days * 24 + hour

    def _partition(self, file: DataFile) -> dict[str, Any]:
        """Field name → value. Manifests hold a date as days since 1970; here it is a date."""
        fields = zip(self.names[file.spec_id], self.dates[file.spec_id], strict=True)
        values = ((name, is_date, file.partition[i]) for i, (name, is_date) in enumerate(fields))
        return {n: date(1970, 1, 1) + timedelta(days=v) if d and isinstance(v, int) else v for n, d, v in values}

    def _hours(
        self, file: DataFile, snapshot: Snapshot, times: tuple[int, int] | None, landed: tuple[int, int] | None
    ) -> HourRange | None:
        """times, landed: bounds of the two columns."""
        if not file.record_count:
            return None
        found = self._hours_held(file, snapshot, times)
        if found is None:
            return None
        if self.landed_field is None:
            return (max(found[0], self.start), found[1]) if found[1] >= self.start else None
        if found[0] >= self.start and not self._is_ahead(file, found, times, landed):
            return found
        try:
            return self._sane_hours(file)
        except FileNotFoundError:  # removed from the table, and by now from the disk; its landing limits it at least
            limit = landed[1] // HOUR_MICROSECONDS + 1 if landed else self._last_admitted(file)
            lower, upper = max(found[0], self.start), found[1] if limit is None else min(found[1], limit)
            return (lower, upper) if lower <= upper else None

    def _is_ahead(
        self, file: DataFile, hours: HourRange, times: tuple[int, int] | None, landed: tuple[int, int] | None
    ) -> bool:
        """Whether a row may be dated over an hour after its landing."""
        if times and landed:
            return times[1] > landed[1] + HOUR_MICROSECONDS
        limit = self._last_admitted(file)
        return limit is not None and hours[1] > limit

    def _hours_held(self, file: DataFile, snapshot: Snapshot, times: tuple[int, int] | None) -> HourRange | None:
        """By partition, else by bounds; None if no row has a time. Unknown means every hour, never none."""
        position = self.hour_position[file.spec_id]
        if position is not None:
            hour = file.partition[position]
            return None if hour is None else (hour, hour)
        if times is not None:
            return times[0] // HOUR_MICROSECONDS, times[1] // HOUR_MICROSECONDS
        if self._all_null(file):
            return None
        return self.start, max(self.start, self._last_admitted(file) or self.last_hour(snapshot))

    def _sane_hours(self, file: DataFile) -> HourRange | None:
        """The hours of the rows that quarantine will not take, read from the file's own time columns.

        The one case that opens a data file: its bounds show an absurd time, and by them one such row plans all history.
        """
        columns = [c.name for c in (self.time_field, self.landed_field) if c]
        with self.table.io.new_input(file.file_path).open() as opened:
            rows = pq.read_table(opened, columns=columns)
        times = rows[self.time_field.name].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        sane = pc.greater_equal(times, self.start * HOUR_MICROSECONDS)
        if self.landed_field:
            landed = rows[self.landed_field.name].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            on_time = pc.less_equal(times, pc.add(landed, HOUR_MICROSECONDS))
            sane = pc.and_(sane, pc.fill_null(on_time, False))
        span = pc.min_max(times.filter(pc.fill_null(sane, False)))
        if not span["min"].is_valid:
            return None
        return span["min"].as_py() // HOUR_MICROSECONDS, span["max"].as_py() // HOUR_MICROSECONDS

    def _all_null(self, file: DataFile) -> bool:
        nulls = (file.null_value_counts or {}).get(self.time_field.field_id)
        return nulls is not None and nulls == file.record_count

    def _bounds(self, file: DataFile, column: Any) -> tuple[int, int] | None:
        lower, upper = (b.get(column.field_id) if b else None for b in (file.lower_bounds, file.upper_bounds))
        if lower is None or upper is None:
            return None
        return int(from_bytes(column.field_type, lower)), int(from_bytes(column.field_type, upper))

    def _last_admitted(self, file: DataFile) -> int | None:
        """The last event hour that a file's landing partition admits: rows dated later are quarantined."""
        if self.landed_field is None:
            return None
        landed = self.landing_hour(file)
        return None if landed is None else landed + 1

    def last_hour(self, snapshot: Snapshot) -> int:
        """For want of anything better: rows are not dated after their commit, nor after what was called complete."""
        return max(self.start, snapshot.timestamp_ms // 3_600_000, complete_through(self.table, "") or self.start)


def _plain(value: Any) -> object:
    return value.isoformat() if isinstance(value, date) else value
