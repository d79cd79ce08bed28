"""The event hours of the rows of a data file, read from its time columns, and how many files a plan may open for that.

Bounds give the first and the last hour of a file. If these are far apart, most hours between them may have no row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table

from lake_assets.base.hours import HOUR_MICROSECONDS, LAST_HOUR, ranges
from lake_assets.base.recent import Recent
from lake_assets.incremental.metadata.arrow_scan import ArrowScan

HourRange = tuple[int, int]
"""First and last event hour, both inclusive."""

WIDE_HOURS = 4
"""A file is opened to learn its exact hours if its bounds span more hours than this."""

FILES_IN_PLAN = 32
"""Number of files that one plan opens at most to learn their exact hours."""

LARGEST_FILES_IN_PLAN = 8
"""The files that one plan opens are together at most as large as this number of the largest files allowed."""

CACHED_FILES = 1024
"""Number of files whose hours are remembered: a sensor plans the same files again and again."""

END_MICROSECONDS = (LAST_HOUR + 1) * HOUR_MICROSECONDS
"""The end of the year 9999. A row from then on is in no hour that counts."""

HourRows = tuple[tuple[int, int], ...]
"""Event hours and their numbers of rows, ascending."""

_cache: Recent[tuple[str, int, str, str | None], HourRows] = Recent(CACHED_FILES)


@dataclass
class ReadBudget:
    """How many files one plan may still open to learn their exact hours.

    The budget counts what metadata say, whether a file is remembered or not, so every process plans the same hours.

    Attributes:
        file_bytes: Size up to which a file is opened; 0 for none.
        files: Number of files that may still be opened.
        bytes: Size of all files that may still be opened; default: `LARGEST_FILES_IN_PLAN` times `file_bytes`.
    """

    file_bytes: int = 0
    files: int = FILES_IN_PLAN
    bytes: int = field(default=-1)

    def __post_init__(self) -> None:
        if self.bytes < 0:
            self.bytes = LARGEST_FILES_IN_PLAN * self.file_bytes

    def take(self, size: int, hours: HourRange) -> bool:
        """Return whether a file of this size, whose bounds span these hours, is opened. If so, it is counted."""
        first, last = hours
        is_wide = last - first + 1 > WIDE_HOURS
        is_small = size <= min(self.file_bytes, self.bytes)
        if not (is_wide and is_small and self.files):
            return False
        self.files -= 1
        self.bytes -= size
        return True


@dataclass(frozen=True)
class RowHours:
    """Reads the hours of the rows of one table's files.

    Attributes:
        table: The table.
        time_column: The column of the event time.
        landed_column: The column of the landing, if rows dated over an hour after their landing are quarantined.
        start: The first hour that counts; earlier rows are quarantined, or no hour of the pipeline.
    """

    table: Table
    time_column: str
    landed_column: str | None
    start: int

    @property
    def columns(self) -> list[str]:
        """The columns that tell the hour of a row, and whether it is accepted."""
        columns = [self.time_column]
        if self.landed_column is not None:
            columns.append(self.landed_column)
        return columns

    def of(self, file: DataFile) -> tuple[HourRange, ...]:
        """Return the hours of the rows of a file that quarantine accepts, as ranges that do not adjoin; ascending.

        Raises:
            FileNotFoundError: The file is gone from the storage.
        """
        return tuple(ranges(hour for hour, _ in self.counts(file)))

    def counts(self, file: DataFile) -> HourRows:
        """Return the hours of the rows of a file that quarantine accepts, each with its number of rows; ascending.

        Raises:
            FileNotFoundError: The file is gone from the storage.
        """
        key = (file.file_path, self.start, self.time_column, self.landed_column)
        known = _cache.find(key)
        if known is None:
            known = tuple(sorted(self._read(file).items()))
            _cache.keep(key, known)
        return known

    def _read(self, file: DataFile) -> Counter[int]:
        # By field id, so that a column that was renamed since the file was written is found.
        schema = self.table.schema().select(*self.columns)
        scan = ArrowScan(self.table.metadata, self.table.io, schema, ALWAYS_TRUE)
        return self._accepted_rows(scan.to_record_batches([FileScanTask(file)]))

    def accepted(self, batches: Iterable[pa.RecordBatch]) -> set[int]:
        """Return the hours of those rows that quarantine accepts. The rows have the columns of the time and landing."""
        return set(self._accepted_rows(batches))

    def _accepted_rows(self, batches: Iterable[pa.RecordBatch]) -> Counter[int]:
        found: Counter[int] = Counter()
        for batch in batches:
            times = _microseconds(batch, self.time_column)
            is_after_start = pc.greater_equal(times, self.start * HOUR_MICROSECONDS)
            is_accepted = pc.and_(is_after_start, pc.less(times, END_MICROSECONDS))
            if self.landed_column is not None:
                landed = _microseconds(batch, self.landed_column)
                landed = pc.min_element_wise(landed, END_MICROSECONDS, skip_nulls=False)
                is_accepted = pc.and_(is_accepted, pc.less_equal(times, pc.add(landed, HOUR_MICROSECONDS)))
            accepted = times.filter(pc.fill_null(is_accepted, False))
            numbers = accepted.to_numpy(zero_copy_only=False)
            hours, rows = np.unique(numbers // HOUR_MICROSECONDS, return_counts=True)
            found.update(dict(zip(hours.tolist(), rows.tolist(), strict=True)))
        return found


def _microseconds(rows: pa.RecordBatch, column: str) -> pa.Array:
    times = rows.column(column)
    in_microseconds = times.cast(pa.timestamp("us", times.type.tz))
    return in_microseconds.cast(pa.int64())
