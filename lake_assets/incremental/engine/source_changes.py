"""The event hours of the rows of a data file, read from its time columns, and how many files a plan may open for that.

Bounds give the first and the last hour of a file. If these are far apart, most hours between them may have no row.

The event hours that the rows of a source's data file may lie in, from the file's partition and column bounds.

If the metadata contain neither, the rows may lie in every hour. A file is opened in two cases: its bounds show a time
that quarantine rejects, and one such row would plan the whole history; or its bounds are far apart, and the plan's
budget allows it. Of a table without landing times, which nothing limits, a file is also opened if it has no bounds, or
one after its commit.

The values that describe the changes of a source. Data only; nothing here reads or writes.

The entries of files that many snapshots appended, from the few manifests that their manifests were merged into.

A writer merges manifests after about a hundred appends. The newest manifest list then lacks the manifests that the
snapshots wrote themselves, and each older list names all manifests of the table once more. But an entry of a merged
manifest keeps the snapshot that added its file.

Reading snapshots of one source table: the files that they added and removed, and the event hours of these files.

The event hours in which earlier versions of the changed keys of a source stand, if its rows have versions.

A correction may move a row to another hour. Then the hour that the row leaves changes, too, and nothing in the new
files says which one it is. So the keys of the new files are looked up in the files before them: only the columns of
key, time and landing are read, and only of files whose bounds may include one of the keys. The hours found may be too
many, because an earlier version may be superseded already: such an hour comes out as it was published.

Reading the changes of a source: which snapshots are new, depending on what is left of the table's history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression, In
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.transforms import HourTransform
from pyiceberg.types import DateType, NestedField, PrimitiveType

from lake_assets.base.hours import FIRST_HOUR, HOUR_MICROSECONDS, LAST_HOUR, hour_key, moment_at, ranges
from lake_assets.base.recent import Recent
from lake_assets.errors import HistoryCut, SourceReplaced
from lake_assets.incremental.declaration import LANDED, Source
from lake_assets.incremental.engine.iceberg import (
    ArrowScan,
    changed_entries,
    complete_through,
    entries,
    named_data_file,
    own_manifests,
)

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


HOUR_MILLISECONDS = 3_600_000
HOURS_OF_DAY = 24
EPOCH = date(1970, 1, 1)
MOST_HOURS_AHEAD = 10 * 366 * 24
"""How far after their commit rows may be dated if nothing says which hours they are in, so that all are planned."""

READABLE = (FileFormat.PARQUET, FileFormat.ORC)
"""Formats of data files that pyiceberg reads."""

TimeRange = tuple[int, int]
"""First and last time, microseconds since 1970, both inclusive."""


LANDING_PARTITION = {"landing_date", "landing_hour", "batch_id"}
"""The fields of the partition of a landed file. Files of tables that others have created may have none of them."""


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
        place: Partition field → value as text, of a file whose partition does not tell when its rows landed.
    """

    path: str
    rows: int
    bytes: int
    partition: Mapping[str, object]
    hours: HourRange | None
    times: TimeRange | None = None
    row_hours: tuple[HourRange, ...] = ()
    rows_by_hour: HourRows = field(default=(), repr=False)
    place: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_landed(self) -> bool:
        """Whether its partition says when its rows landed, and in which batch."""
        return self.partition.keys() >= LANDING_PARTITION


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
        if not described.is_landed:
            described = replace(described, place=self._place(file))
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

    def _place(self, file: DataFile) -> dict[str, str]:
        """Return field name → value of a file's partition, as Iceberg writes them into paths."""
        types = {field.field_id: field.field_type for field in self.table.schema().fields}
        found: dict[str, str] = {}
        for position, of_spec in enumerate(self.table.specs()[file.spec_id].fields):
            value, source_type = file.partition[position], types.get(of_spec.source_id)
            text = str(value) if source_type is None else of_spec.transform.to_human_string(source_type, value)
            found[of_spec.name] = text
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


Effect = Literal["append", "rewrite", "none"]
"""`append`: rows were added, none changed or removed. `rewrite`: rows changed or were removed. `none`: compaction."""

HowFound = Literal["initial", "history", "expired", "rewound"]
"""`initial`: there is no watermark yet, and all live files are new. `history`: all snapshots after the watermark were
read. `expired`: some of these are gone, and files are new if their sequence number is higher. `rewound`: the
watermark's snapshot is no ancestor of the head, and the two sets of files were compared."""


@dataclass(frozen=True)
class Totals:
    """The sums over the live files of a snapshot.

    Attributes:
        data_files: Number of data files.
        rows: Rows of the data files.
        bytes: Size of data and delete files.
    """

    data_files: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Watermark:
    """The snapshot up to which a target has committed one source.

    Attributes:
        source: The source table, `namespace.name`.
        table_uuid: The source table's UUID.
        snapshot_id: The snapshot; None if the table had none.
        sequence_number: Of the snapshot.
        timestamp_ms: Commit time of the snapshot, milliseconds since 1970.
        complete_through: The source's complete-through, read with the snapshot; None if it was not set.
        totals: Of the snapshot; None if its summary lacks them.
        last_hour: The last event hour that any file read so far may contain rows of; None before the first file.
    """

    source: str
    table_uuid: str
    snapshot_id: int | None
    sequence_number: int = 0
    timestamp_ms: int = 0
    complete_through: int | None = None
    totals: Totals | None = None
    last_hour: int | None = None


@dataclass(frozen=True)
class SnapshotChange:
    """One snapshot after the watermark: its effect, and the event hours that it touched.

    Attributes:
        snapshot_id: The snapshot.
        operation: Iceberg's operation, or `expired` or `rollback` where several snapshots are taken together.
        committed_at_ms: Commit time, milliseconds since 1970.
        effect: The effect on rows.
        added: The data files that it added.
        hours: Event hours touched: ranges that do not overlap, ascending.
        rows_gone: Rows of the data files that it removed, and rows that its delete files name.
        files_opened: Data files that were opened, because the hours of their rows do not follow from metadata.
    """

    snapshot_id: int
    operation: str
    committed_at_ms: int
    effect: Effect
    added: tuple[FileChange, ...] = ()
    hours: tuple[HourRange, ...] = ()
    rows_gone: int = 0
    files_opened: int = 0


@dataclass(frozen=True)
class EarlierVersions:
    """Earlier versions of the keys that changed, of a source that has versions.

    Attributes:
        exist: Whether there may be any. One without an event time has no hour, and may still supersede a new one.
        hours: Their event hours: ranges that do not overlap, ascending.
    """

    exist: bool = False
    hours: tuple[HourRange, ...] = ()


@dataclass(frozen=True)
class SourceChanges:
    """Everything that is new in one source: the planner's input.

    Attributes:
        source: The source table, `namespace.name`.
        time_column: The column of the event time.
        since: The watermark; None before the first session.
        head: The watermark that a session over these changes ends at.
        how: How the changes were found.
        snapshots: The snapshots after the watermark, oldest first.
        added: The data files that they added.
        since_expired: Whether the watermark's snapshot cannot be read any more.
        earlier: Earlier versions of the keys that changed; none for a source without versions.
    """

    source: str
    time_column: str
    since: Watermark | None
    head: Watermark
    how: HowFound = "history"
    snapshots: tuple[SnapshotChange, ...] = ()
    added: tuple[FileChange, ...] = field(default=(), repr=False)
    since_expired: bool = False
    earlier: EarlierVersions = EarlierVersions()

    @property
    def effective(self) -> tuple[SnapshotChange, ...]:
        """The snapshots that changed rows."""
        return tuple(s for s in self.snapshots if s.effect != "none")

    @property
    def appends_only(self) -> bool:
        """Whether an incremental append read over the snapshots returns every change."""
        if self.how not in ("initial", "history"):
            return False
        return all(s.effect != "rewrite" for s in self.snapshots)

    @property
    def rows_added(self) -> int:
        """The rows of all new data files, in hours that count or not."""
        return sum(file.rows for file in self.added)

    @property
    def moved(self) -> bool:
        """Whether the head or complete-through differ from the watermark."""
        if self.since is None:
            return self.head.snapshot_id is not None or self.head.complete_through is not None
        if self.head.snapshot_id != self.since.snapshot_id:
            return True
        return self.head.complete_through != self.since.complete_through


@dataclass(frozen=True)
class Head:
    """A head that was read earlier: its snapshot, and the complete-through that was read with it."""

    snapshot_id: int | None
    complete_through: int | None


def describe(changes: SourceChanges, snapshot: SnapshotChange, hours: HourRange) -> str:
    """Return which snapshot touched a range of hours, and how, as a reason for people."""
    span = _span(hours)
    reason = f"{snapshot.operation} {snapshot.snapshot_id} of {changes.source}: {changes.time_column} {span}"
    if snapshot.files_opened:
        noun = "file" if snapshot.files_opened == 1 else "files"
        reason += f" (by the rows of {snapshot.files_opened} {noun})"
    return reason


def describe_earlier(changes: SourceChanges, hours: HourRange) -> str:
    """Return, as a reason for people, that earlier versions of changed keys stand in a range of hours."""
    return f"earlier versions of changed keys of {changes.source}: {changes.time_column} {_span(hours)}"


def _span(hours: HourRange) -> str:
    first, last = hours
    return hour_key(first) if first == last else f"{hour_key(first)}..{hour_key(last)}"


ENTRIES_OF_LIST = 100
"""About how many manifests an older list names. Reading one costs as much as reading as many entries."""


class MergedManifests:
    """Finds the entries of appended files in the manifests of the newest list.

    Args:
        manifests: The manifests of the newest list that snapshots of the chain wrote. A merged one is among them, as
            the appended files are new.
        snapshots: The snapshots whose own manifests the newest list lacks.
    """

    def __init__(self, manifests: Iterable[ManifestFile], io: FileIO, snapshots: Collection[int]) -> None:
        self._manifests = [each for each in manifests if each.existing_files_count]
        self._io = io
        self._snapshots = frozenset(snapshots)
        self._by_snapshot: Mapping[int, list[ManifestEntry]] | None = None

    def added_by(self, snapshot_id: int) -> Sequence[ManifestEntry]:
        """Return the entries of the live files that a snapshot added; none if it is cheaper to read its own list."""
        if self._by_snapshot is None:
            self._by_snapshot = self._read() if self._is_cheaper() else {}
        return self._by_snapshot.get(snapshot_id, [])

    def _is_cheaper(self) -> bool:
        number = sum((each.existing_files_count or 0) + (each.added_files_count or 0) for each in self._manifests)
        return number <= ENTRIES_OF_LIST * len(self._snapshots)

    def _read(self) -> dict[int, list[ManifestEntry]]:
        found: dict[int, list[ManifestEntry]] = {}
        for manifest in self._manifests:
            for entry in entries(manifest, self._io, discard_deleted=True):
                if entry.status is ManifestEntryStatus.EXISTING and entry.snapshot_id in self._snapshots:
                    found.setdefault(entry.snapshot_id, []).append(entry)
        return found


@dataclass(frozen=True)
class Chain:
    """A snapshot and its ancestors, newest first, down to a given one, which is left out.

    Attributes:
        snapshots: The retained ones.
        complete: Whether they are all: the given snapshot is the parent of the last one, whether it is retained or not.
    """

    snapshots: Sequence[Snapshot]
    complete: bool


@dataclass(frozen=True)
class LiveFile:
    """A live file of a snapshot, and the sequence number at which it was added."""

    file: DataFile
    sequence_number: int


@dataclass
class ChangeBuilder:
    """Collects what is known of one snapshot, file by file."""

    added: list[FileChange] = field(default_factory=list)
    hours: list[HourRange] = field(default_factory=list)
    rows_gone: int = 0
    opened: set[str] = field(default_factory=set)

    def add(self, file: FileChange) -> None:
        """Count a data file that was added."""
        self.added.append(file)
        self.touch(file)

    def remove(self, file: FileChange) -> None:
        """Count a data file that was removed."""
        self.rows_gone += file.rows
        self.touch(file)

    def touch(self, file: FileChange) -> None:
        """Count the hours of a file as changed."""
        if file.row_hours:
            self.opened.add(file.path)
            self.hours += file.row_hours
        elif file.hours:
            self.hours.append(file.hours)

    def build(self, snapshot: Snapshot, operation: str, effect: Effect) -> SnapshotChange:
        """Return all that was collected, as a change that this snapshot made."""
        return SnapshotChange(
            snapshot_id=snapshot.snapshot_id,
            operation=operation,
            committed_at_ms=snapshot.timestamp_ms,
            effect=effect,
            added=tuple(self.added),
            hours=merge_ranges(self.hours),
            rows_gone=self.rows_gone,
            files_opened=len(self.opened),
        )


class SnapshotReader:
    """Reads the metadata of one table. All hours are event hours of the source's time column."""

    def __init__(self, table: Table, source: Source, start: int, budget: ReadBudget | None = None) -> None:
        self.table = table
        self.io = table.io
        self.name = source.table
        self.start = start
        self.by_id = {s.snapshot_id: s for s in table.metadata.snapshots}
        self.files = DataFiles(table, source, start, budget)
        self._live_files: dict[tuple[int, ManifestContent], list[LiveFile]] = {}

    def current_head(self) -> Head:
        """Return the head of main and the complete-through, both of one state of the table."""
        main = self.table.metadata.refs.get("main")
        snapshot_id = main.snapshot_id if main else None
        return Head(snapshot_id, complete_through(self.table, self.name))

    def snapshot(self, snapshot_id: int | None) -> Snapshot | None:
        """Return a snapshot by its id; None for None. Raises `HistoryCut` if it has expired."""
        if snapshot_id is None:
            return None
        if snapshot_id not in self.by_id:
            raise HistoryCut(self.name, snapshot_id)
        return self.by_id[snapshot_id]

    def is_retained(self, snapshot_id: int | None) -> bool:
        """Whether a snapshot can be read; None, the table before its first snapshot, can."""
        return snapshot_id is None or snapshot_id in self.by_id

    def ancestors(self, head: Snapshot | None, until: int | None) -> Chain:
        """Return the head and its ancestors that come after the snapshot `until`."""
        chain: list[Snapshot] = []
        next_id = head.snapshot_id if head is not None else None
        while next_id is not None and next_id != until:
            current = self.by_id.get(next_id)
            if current is None:
                return Chain(chain, complete=False)
            chain.append(current)
            next_id = current.parent_snapshot_id
        return Chain(chain, complete=next_id is not None)

    def history(self, chain: Sequence[Snapshot]) -> Iterator[SnapshotChange]:
        """Yield what each snapshot of a chain (newest first) did, oldest first.

        A manifest list names all manifests of the table, so the newest list is usually enough. An older one is read
        only if some of its snapshot's manifests were replaced since, and the files are not all in merged manifests.
        """
        if not chain:
            return
        newest: dict[int | None, list[ManifestFile]] = {}
        for manifest in chain[0].manifests(self.io):
            newest.setdefault(manifest.added_snapshot_id, []).append(manifest)
        merged = self._merged_manifests(chain, newest)
        for snapshot in reversed(chain):
            if _operation(snapshot) is Operation.REPLACE:
                yield ChangeBuilder().build(snapshot, Operation.REPLACE.value, "none")
                continue
            manifests = newest.get(snapshot.snapshot_id, [])
            if _lists_all_appended(snapshot, manifests):
                yield self._change(snapshot, manifests)
                continue
            added = merged.added_by(snapshot.snapshot_id)
            if added and len(added) == _appended_files(snapshot):
                yield self._change_by(snapshot, added)
                continue
            manifests = own_manifests(snapshot, self.io)
            yield self._change(snapshot, manifests)

    def _merged_manifests(
        self, chain: Sequence[Snapshot], newest: Mapping[int | None, list[ManifestFile]]
    ) -> MergedManifests:
        of_chain: list[ManifestFile] = []
        missing: list[int] = []
        for snapshot in chain:
            manifests = newest.get(snapshot.snapshot_id, [])
            of_chain += manifests
            if _appended_files(snapshot) and not _lists_all_appended(snapshot, manifests):
                missing.append(snapshot.snapshot_id)
        return MergedManifests(of_chain, self.io, missing)

    def live_files(self, snapshot: Snapshot) -> list[DataFile]:
        """Return the live data files of a snapshot."""
        return [live.file for live in self._live(snapshot)]

    def all_files(self, head: Snapshot | None) -> Iterator[SnapshotChange]:
        """Yield all live files as one snapshot that appended them; nothing without a snapshot."""
        if head is None:
            return
        found = ChangeBuilder()
        for live in self._live(head):
            found.add(self.files.change(live.file, head))
        yield found.build(head, "append", "append")

    def newer_files(self, head: Snapshot, since: Watermark) -> SnapshotChange:
        """Return the files added after an expired watermark. Their rows are new, or were compacted."""
        found = ChangeBuilder()
        known_files: list[DataFile] = []
        for live in self._live(head):
            if live.sequence_number > since.sequence_number:
                found.add(self.files.change(live.file, head))
            else:
                known_files.append(live.file)
        known_deletes: list[DataFile] = []
        for delete in self._live(head, ManifestContent.DELETES):
            if delete.sequence_number > since.sequence_number:
                self._touch_deleted(found, delete.file, head)
            else:
                known_deletes.append(delete.file)
        if _sum(known_files, known_deletes) != since.totals:
            # Files that existed at the watermark are gone, and nothing says which hours they held.
            known = self.files.last_hour(head)
            last = known if since.last_hour is None else since.last_hour
            if last > known + MOST_HOURS_AHEAD:
                raise HistoryCut(self.name, since.snapshot_id or 0)
            found.hours.append((self.start, max(self.start, last)))
        return found.build(head, "expired", "rewrite")

    def difference(self, old: Snapshot, head: Snapshot) -> SnapshotChange:
        """Return the files that are in only one of two snapshots, as one change from `old` to `head`."""
        found = ChangeBuilder()
        before, after = self._live_by_path(old), self._live_by_path(head)
        for path in sorted(after.keys() - before.keys()):
            found.add(self.files.change(after[path], head))
        for path in sorted(before.keys() - after.keys()):
            found.remove(self.files.change(before[path], old))

        deletes_before = self._live_by_path(old, ManifestContent.DELETES)
        deletes_after = self._live_by_path(head, ManifestContent.DELETES)
        for path in sorted(deletes_after.keys() - deletes_before.keys()):
            self._touch_deleted(found, deletes_after[path], head)
        for path in sorted(deletes_before.keys() - deletes_after.keys()):
            self._touch_deleted(found, deletes_before[path], old)
        return found.build(head, "rollback", "rewrite")

    def _change(self, snapshot: Snapshot, manifests: list[ManifestFile]) -> SnapshotChange:
        """Return what one snapshot did. manifests: those that it wrote."""
        return self._change_by(snapshot, changed_entries(manifests, self.io, snapshot.snapshot_id))

    def _change_by(self, snapshot: Snapshot, changed: Iterable[ManifestEntry]) -> SnapshotChange:
        """Return what one snapshot did. changed: the entries of the files that it added and removed."""
        operation = _operation(snapshot)
        found = ChangeBuilder()
        only_added = True
        for entry in changed:
            file = entry.data_file
            if file.content is not DataFileContent.DATA:
                only_added = False
                found.rows_gone += file.record_count
                self._touch_deleted(found, file, snapshot)
            elif entry.status is ManifestEntryStatus.DELETED:
                only_added = False
                found.remove(self.files.change(file, snapshot))
            else:
                found.add(self.files.change(file, snapshot))
        is_append = operation is Operation.APPEND and only_added
        return found.build(snapshot, operation.value, "append" if is_append else "rewrite")

    def _live(self, snapshot: Snapshot, content: ManifestContent = ManifestContent.DATA) -> list[LiveFile]:
        key = snapshot.snapshot_id, content
        if key not in self._live_files:
            self._live_files[key] = list(self._read_live(snapshot, content))
        return self._live_files[key]

    def _read_live(self, snapshot: Snapshot, content: ManifestContent) -> Iterator[LiveFile]:
        for manifest in snapshot.manifests(self.io):
            if manifest.content is not content:
                continue
            for entry in entries(manifest, self.io, discard_deleted=True):
                added_at = entry.file_sequence_number or entry.sequence_number or 0
                yield LiveFile(entry.data_file, added_at)

    def _live_by_path(self, snapshot: Snapshot, content: ManifestContent = ManifestContent.DATA) -> dict[str, DataFile]:
        return {live.file.file_path: live.file for live in self._live(snapshot, content)}

    def _touch_deleted(self, found: ChangeBuilder, delete: DataFile, snapshot: Snapshot) -> None:
        """Count the hours of the data files that a delete file may refer to."""
        named = named_data_file(delete)
        for live in self._live(snapshot):
            if self._may_refer_to(live.file, delete, named):
                found.touch(self.files.change(live.file, snapshot))

    def _may_refer_to(self, data: DataFile, delete: DataFile, named: str | None) -> bool:
        """Whether a delete file may refer to a data file: the one that it names, else any of its partition."""
        if named is not None:
            return data.file_path == named
        if data.spec_id != delete.spec_id or self.files.is_unpartitioned(delete):
            return True
        return bool(data.partition == delete.partition)


def merge_ranges(ranges: Iterable[HourRange]) -> tuple[HourRange, ...]:
    """Return the ranges in ascending order, with overlapping and adjacent ones merged."""
    merged: list[HourRange] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            previous_first, previous_last = merged[-1]
            merged[-1] = (previous_first, max(previous_last, last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _operation(snapshot: Snapshot) -> Operation:
    """Return a snapshot's operation; a snapshot without one may have changed any row."""
    return snapshot.summary.operation if snapshot.summary else Operation.OVERWRITE


def _lists_all_appended(snapshot: Snapshot, manifests: Iterable[ManifestFile]) -> bool:
    """Whether the manifests contain all files that a snapshot appended, by its summary; False if it is no append."""
    listed = sum(manifest.added_files_count or 0 for manifest in manifests)
    return _appended_files(snapshot) == listed


def _appended_files(snapshot: Snapshot) -> int | None:
    """Return the number of files that a snapshot appended, by its summary; None if it is no append."""
    if snapshot.summary is None or _operation(snapshot) is not Operation.APPEND:
        return None
    summary = snapshot.summary.additional_properties
    added_data = summary.get("added-data-files")
    if added_data is None:
        return None
    return int(added_data) + int(summary.get("added-delete-files") or "0")


def _sum(data: Sequence[DataFile], deletes: Sequence[DataFile]) -> Totals:
    return Totals(
        data_files=len(data),
        rows=sum(file.record_count for file in data),
        bytes=sum(file.file_size_in_bytes for file in (*data, *deletes)),
    )


MAX_CHANGED_ROWS = 5_000_000
"""Up to this many new rows their keys are looked up, because they are held in memory. With more, all hours change."""

MAX_FILTERED_KEYS = 200
"""Up to this many keys are sought by the statistics of a file's row groups; above, Iceberg does not use them."""

FILES_AT_ONCE = 16
"""Number of files whose rows may be in memory at a time."""


def earlier_versions(reader: SnapshotReader, source: Source, changes: SourceChanges) -> EarlierVersions:
    """Return the earlier versions of the keys that changed after a watermark.

    If rows were removed, an earlier version may count again, and nothing says of which key: all hours are returned.
    So they are if the new rows are too many, or if a file is gone from the storage.

    Args:
        reader: Reads the source table.
        source: Its declaration, with versions.
        changes: What changed in it.
    """
    if not _had_rows(changes) or not changes.effective:
        return EarlierVersions()
    old_files = _old_files(reader, changes)
    if not changes.appends_only:
        return _all_hours(reader, changes, [*old_files, *_files(reader, changes.head.snapshot_id)])
    if changes.rows_added > MAX_CHANGED_ROWS:
        return _all_hours(reader, changes, old_files)
    lookup = _Lookup(reader, source)
    try:
        keys = lookup.keys([reader.files.file(file) for file in changes.added])
        return lookup.versions(old_files, keys)
    except FileNotFoundError:
        return _all_hours(reader, changes, old_files)


def _had_rows(changes: SourceChanges) -> bool:
    return changes.since is not None and changes.since.snapshot_id is not None


def _old_files(reader: SnapshotReader, changes: SourceChanges) -> list[DataFile]:
    """Return the files as of the watermark; those of the head, which has their rows, if its snapshot has expired."""
    assert changes.since is not None
    snapshot_id = changes.head.snapshot_id if changes.since_expired else changes.since.snapshot_id
    return _files(reader, snapshot_id)


class _Lookup:
    """Reads keys and times of a source's data files."""

    def __init__(self, reader: SnapshotReader, source: Source) -> None:
        assert source.key is not None, "a source with versions has a key"
        self.table = reader.table
        self.key = source.key
        self.row_hours = reader.files.row_hours

    def keys(self, files: Sequence[DataFile]) -> pa.Array:
        """Return the keys of the rows of some files, each once, without null."""
        found = []
        for batch in self._read(files, [self.key]):
            found.append(_plain(batch.column(self.key)).unique())
        if not found:
            return pa.array([])
        return pa.chunked_array(found).unique().drop_null()

    def versions(self, files: Sequence[DataFile], keys: pa.Array) -> EarlierVersions:
        """Return the rows of some files that have one of the keys. A row that quarantine rejects has no hour."""
        if not len(keys):
            return EarlierVersions()
        bounds = _bounds_of_keys(keys)
        may_match = [file for file in files if self._may_have(file, bounds)]
        columns = list(dict.fromkeys([self.key, *self.row_hours.columns]))
        batches = self._read(may_match, columns, self._condition(keys))
        exist = False
        hours: set[int] = set()
        for batch in _with_keys(batches, self.key, keys):
            exist = exist or batch.num_rows > 0
            hours |= self.row_hours.accepted([batch])
        return EarlierVersions(exist, tuple(ranges(hours)))

    def _read(
        self, files: Sequence[DataFile], columns: Sequence[str], condition: BooleanExpression = ALWAYS_TRUE
    ) -> Iterator[pa.RecordBatch]:
        # Delete files are not applied: a deleted version adds an hour that comes out as it was published.
        schema = self.table.schema().select(*columns)
        scan = ArrowScan(self.table.metadata, self.table.io, schema, condition)
        for start in range(0, len(files), FILES_AT_ONCE):
            tasks = [FileScanTask(file) for file in files[start : start + FILES_AT_ONCE]]
            yield from scan.to_record_batches(tasks)

    def _condition(self, keys: pa.Array) -> BooleanExpression:
        if len(keys) > MAX_FILTERED_KEYS or _bounds_of_keys(keys) is None:
            return ALWAYS_TRUE
        return In(self.key, set(keys.to_pylist()))  # type: ignore[call-arg, arg-type]

    def _may_have(self, file: DataFile, wanted: tuple[Any, Any] | None) -> bool:
        """Whether the bounds of a file may include one of the keys, of which `wanted` are the least and greatest."""
        field = self.table.schema().find_field(self.key)
        lower = (file.lower_bounds or {}).get(field.field_id)
        upper = (file.upper_bounds or {}).get(field.field_id)
        if wanted is None or lower is None or upper is None or not isinstance(field.field_type, PrimitiveType):
            return True
        least, greatest = wanted
        first, last = from_bytes(field.field_type, lower), from_bytes(field.field_type, upper)
        return bool(first <= greatest and least <= last)


def _plain(values: pa.Array) -> pa.Array:
    """Return values as they are stored: Arrow cannot compare those of an extension type, as a uuid is."""
    return values.storage if isinstance(values.type, pa.BaseExtensionType) else values


def _with_keys(batches: Iterable[pa.RecordBatch], column: str, keys: pa.Array) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = _plain(batch.column(column)).cast(keys.type)
        yield batch.filter(pc.is_in(found, value_set=keys))


def _bounds_of_keys(keys: pa.Array) -> tuple[Any, Any] | None:
    """Return the least and the greatest key; None if they are of a type whose bounds are not compared."""
    if not (pa.types.is_integer(keys.type) or pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        return None
    values = pc.min_max(keys)
    return values["min"].as_py(), values["max"].as_py()


def _files(reader: SnapshotReader, snapshot_id: int | None) -> list[DataFile]:
    snapshot = reader.snapshot(snapshot_id)
    return [] if snapshot is None else reader.live_files(snapshot)


def _all_hours(reader: SnapshotReader, changes: SourceChanges, files: Sequence[DataFile]) -> EarlierVersions:
    """Return the hours of all rows of some files, by metadata."""
    head = reader.snapshot(changes.head.snapshot_id)
    if head is None:
        return EarlierVersions()
    found: list[HourRange] = []
    for file in files:
        described = reader.files.change(file, head)
        if described.row_hours:
            found += described.row_hours
        elif described.hours:
            found.append(described.hours)
    return EarlierVersions(exist=True, hours=merge_ranges(found))


TOTALS = ("total-data-files", "total-records", "total-files-size")
"""The fields of a snapshot's summary that `Totals` is read from. They are optional in Iceberg."""


def changes(
    table: Table,
    source: Source,
    since: Watermark | None,
    *,
    start: int,
    up_to: Head | None = None,
    budget: ReadBudget | None = None,
) -> SourceChanges:
    """Return what changed in a table after a watermark. Nothing is written.

    Args:
        table: The source table.
        source: Its declaration.
        since: The watermark; None if every row is new.
        start: The pipeline's first event hour. Earlier rows are quarantined and cause no plan.
        up_to: The head to read up to; None for the table's present head.
        budget: How many data files may be opened because their bounds are far apart; None for none.

    Raises:
        SourceReplaced: The table was created again since the watermark.
        HistoryCut: The snapshots that are needed have expired.
        InvalidHourKey: The table's complete-through is no hour key.
    """
    uuid = str(table.metadata.table_uuid)
    if since is not None and since.table_uuid != uuid:
        raise SourceReplaced(source.table, expected=since.table_uuid, found=uuid)
    reader = SnapshotReader(table, source, start, budget)
    seen = up_to or reader.current_head()
    head = reader.snapshot(seen.snapshot_id)
    how, snapshots = _new_snapshots(reader, since, head)
    found = SourceChanges(
        source=source.table,
        time_column=source.time_column,
        since=since,
        head=_watermark_at(source.table, uuid, head, seen, _last_hour(since, snapshots)),
        how=how,
        snapshots=snapshots,
        added=_added_files(snapshots),
        since_expired=since is not None and not reader.is_retained(since.snapshot_id),
    )
    if not source.has_versions:
        return found
    return replace(found, earlier=earlier_versions(reader, source, found))


def hours_present(table: Table, time_column: str) -> frozenset[int]:
    """Return the hours for which the head of an hour-partitioned table has data files."""
    source = Source(table="own.own", time_column=time_column)
    present: set[int] = set()
    for snapshot in changes(table, source, None, start=FIRST_HOUR).snapshots:
        for first, last in snapshot.hours:
            present.update(range(first, last + 1))
    return frozenset(present)


def raw_history(
    table: Table,
    source: Source,
    since: int | None,
    start: int,
) -> Iterator[SnapshotChange]:
    """Yield every retained snapshot after `since`, oldest first; all of them if `since` is None or has expired."""
    reader = SnapshotReader(table, source, start)
    head = reader.snapshot(reader.current_head().snapshot_id)
    yield from reader.history(reader.ancestors(head, since).snapshots)


def _new_snapshots(
    reader: SnapshotReader, since: Watermark | None, head: Snapshot | None
) -> tuple[HowFound, tuple[SnapshotChange, ...]]:
    if since is None or since.snapshot_id is None:
        return "initial", tuple(reader.all_files(head))
    chain = reader.ancestors(head, since.snapshot_id)
    if chain.complete:
        return "history", tuple(reader.history(chain.snapshots))
    if head is None:
        raise HistoryCut(reader.name, since.snapshot_id)
    if since.snapshot_id in reader.by_id:
        return "rewound", (reader.difference(reader.by_id[since.snapshot_id], head),)
    # If the watermark's snapshot was an ancestor of the head, every retained ancestor is newer.
    oldest_retained = chain.snapshots[-1].sequence_number or 0
    if oldest_retained <= since.sequence_number:
        raise HistoryCut(reader.name, since.snapshot_id)
    return "expired", (reader.newer_files(head, since),)


def _watermark_at(
    name: str,
    uuid: str,
    head: Snapshot | None,
    seen: Head,
    last_hour: int | None,
) -> Watermark:
    if head is None:
        return Watermark(name, uuid, None, complete_through=seen.complete_through, last_hour=last_hour)
    return Watermark(
        source=name,
        table_uuid=uuid,
        snapshot_id=head.snapshot_id,
        sequence_number=head.sequence_number or 0,
        timestamp_ms=head.timestamp_ms,
        complete_through=seen.complete_through,
        totals=_totals(head),
        last_hour=last_hour,
    )


def _last_hour(since: Watermark | None, snapshots: Iterable[SnapshotChange]) -> int | None:
    last_hour = since.last_hour if since else None
    for snapshot in snapshots:
        if snapshot.hours:
            last = snapshot.hours[-1][1]
            last_hour = last if last_hour is None else max(last_hour, last)
    return last_hour


def _added_files(snapshots: Iterable[SnapshotChange]) -> tuple[FileChange, ...]:
    added: list[FileChange] = []
    for snapshot in snapshots:
        added += snapshot.added
    return tuple(added)


def _totals(snapshot: Snapshot) -> Totals | None:
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    if any(name not in summary for name in TOTALS):
        return None
    data_files, rows, size = (int(summary[name]) for name in TOTALS)
    return Totals(data_files, rows, size)
