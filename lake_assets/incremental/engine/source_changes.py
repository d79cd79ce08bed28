"""What changed in a source after a watermark: which snapshots are new, and the event hours that their files touch.

Of an append, the new files count; of any other snapshot, also the files that it removed, and those that its delete
files may refer to. If snapshots of the history have expired, files are new if their sequence number is higher than the
watermark's; if the watermark is no ancestor of the head, the two sets of files are compared.

The hours of a file follow from its partition, else from the bounds of its time column; without both, its rows may lie
in every hour. A file is opened in two cases: its bounds show a time that quarantine rejects, and one such row would
plan the whole history; or its bounds are far apart, and the plan's budget allows it. Unless its partition says when it
landed, a file is also opened if it has no bounds, or one after its commit: nothing else limits the times of its rows.

If the rows of a source have versions, a correction may move a row to another hour. Then the hour that the row leaves
changes, too, and nothing in the new files says which one it is. So the keys of the new files are looked up in the files
before them. The hours found may be too many, because an earlier version may be superseded already: such an hour comes
out as it was published.

Nothing here writes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression, In
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import ALWAYS_TRUE, Table
from pyiceberg.table.snapshots import Operation, Snapshot

from lake_assets.base.hours import HOUR, HOUR_MICROSECONDS, LAST_HOUR, hour_key, parse_hour, ranges
from lake_assets.base.recent import Recent
from lake_assets.errors import InvalidHourKey, history_cut, source_replaced
from lake_assets.incremental.declaration import LANDED, Source
from lake_assets.incremental.engine.iceberg import (
    RAW_PARTITIONS,
    bounds,
    changed_entries,
    complete_through,
    entries,
    live_entries,
    microseconds,
    named_data_file,
    partition_text,
    rows_of_files,
    time_partition,
)
from lake_assets.incremental.engine.publish import ancestors, main_id, operation_of, summary_of

HourRange = tuple[int, int]
"""First and last event hour, both inclusive."""

TimeRange = tuple[int, int]
"""First and last time, microseconds since 1970, both inclusive."""

HourRows = tuple[tuple[int, int], ...]
"""Event hours and their numbers of rows, ascending."""

HOUR_MILLISECONDS = 3_600_000
HOURS_OF_DAY = 24

END_MICROSECONDS = (LAST_HOUR + 1) * HOUR_MICROSECONDS
"""The end of the year 9999. A row from then on is in no hour that counts."""

MOST_HOURS_AHEAD = 10 * 366 * 24
"""How far after their commit rows may be dated if nothing says which hours they are in, so that all are planned."""

READABLE = (FileFormat.PARQUET, FileFormat.ORC)
"""Formats of data files that pyiceberg reads."""

WIDE_HOURS = 4
"""A file is opened to learn its exact hours if its bounds span more hours than this."""

FILES_IN_PLAN = 32
"""Number of files that one plan opens at most to learn their exact hours."""

LARGEST_FILES_IN_PLAN = 8
"""The files that one plan opens are together at most as large as this number of the largest files allowed."""

ENTRIES_OF_LIST = 100
"""About how many manifests an older list names. Reading one costs as much as reading as many entries."""

MAX_CHANGED_ROWS = 5_000_000
"""Up to this many new rows their keys are looked up, because they are held in memory. With more, all hours change."""

MAX_FILTERED_KEYS = 200
"""Up to this many keys are sought by the statistics of a file's row groups; above, Iceberg does not use them."""

TOTALS = ("total-data-files", "total-records", "total-files-size")
"""The fields of a snapshot's summary that `Totals` is read from. They are optional in Iceberg."""

CACHED_FILES = 1024
"""Number of files whose hours are remembered: a sensor plans the same files again and again."""

_cache: Recent[tuple[str, int, tuple[str, ...]], HourRows] = Recent(CACHED_FILES)

Effect = Literal["append", "rewrite", "none"]
"""`append`: rows were added, none changed or removed. `rewrite`: rows changed or were removed. `none`: compaction."""

HowFound = Literal["initial", "history", "expired", "rewound"]
"""`initial`: there is no watermark yet, and all live files are new. `history`: all snapshots after the watermark were
read. `expired`: some of these are gone, and files are new if their sequence number is higher. `rewound`: the
watermark's snapshot is no ancestor of the head, and the two sets of files were compared."""


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
        is_small = size <= min(self.file_bytes, self.bytes)
        if last - first < WIDE_HOURS or not is_small or not self.files:
            return False
        self.files -= 1
        self.bytes -= size
        return True


@dataclass(frozen=True)
class FileChange:
    """One data file, as its manifest describes it.

    Attributes:
        path: Location of the file.
        rows: Number of rows.
        bytes: Size.
        partition: Partition field → value as text; the hour of a landing as a number.
        hours: The event hours that its rows may lie in; None if no row lies in an hour that counts.
        times: Bounds of the time column; None if the metadata have none.
        rows_by_hour: Event hour and number of its rows, if the file was opened; empty otherwise.
        is_landed: Whether its partition says when its rows landed, and in which batch.
    """

    path: str
    rows: int
    bytes: int
    partition: Mapping[str, object]
    hours: HourRange | None
    times: TimeRange | None = None
    rows_by_hour: HourRows = field(default=(), repr=False)
    is_landed: bool = False

    @property
    def touched(self) -> tuple[HourRange, ...]:
        """The event hours of its rows, as exactly as they are known."""
        if self.rows_by_hour:
            return tuple(ranges(hour for hour, _ in self.rows_by_hour))
        return (self.hours,) if self.hours else ()


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
        since_expired: Whether the watermark's snapshot cannot be read any more.
        earlier: Earlier versions of the keys that changed; none for a source without versions.
    """

    source: str
    time_column: str
    since: Watermark | None
    head: Watermark
    how: HowFound = "history"
    snapshots: tuple[SnapshotChange, ...] = ()
    since_expired: bool = False
    earlier: EarlierVersions = EarlierVersions()

    @cached_property
    def added(self) -> tuple[FileChange, ...]:
        """The data files that the snapshots added."""
        return tuple(file for snapshot in self.snapshots for file in snapshot.added)

    @property
    def effective(self) -> tuple[SnapshotChange, ...]:
        """The snapshots that changed rows."""
        return tuple(s for s in self.snapshots if s.effect != "none")

    @property
    def appends_only(self) -> bool:
        """Whether an incremental append read over the snapshots returns every change."""
        return self.how in ("initial", "history") and all(s.effect != "rewrite" for s in self.snapshots)

    @property
    def rows_added(self) -> int:
        """The rows of all new data files, in hours that count or not."""
        return sum(file.rows for file in self.added)

    @property
    def moved(self) -> bool:
        """Whether the head or complete-through differ from the watermark."""
        then = (self.since.snapshot_id, self.since.complete_through) if self.since else (None, None)
        return then != (self.head.snapshot_id, self.head.complete_through)


@dataclass(frozen=True)
class Head:
    """A head that was read earlier: its snapshot, and the complete-through that was read with it."""

    snapshot_id: int | None
    complete_through: int | None


def describe(changes: SourceChanges, snapshot: SnapshotChange | None, hours: HourRange) -> str:
    """Return which snapshot touched a range of hours, as a reason for people; None: earlier versions stand there."""
    first, last = map(hour_key, hours)
    span = f"{changes.source}: {changes.time_column} {first if first == last else f'{first}..{last}'}"
    if snapshot is None:
        return f"earlier versions of changed keys of {span}"
    opened = snapshot.files_opened
    by_rows = f" (by the rows of {opened} {'file' if opened == 1 else 'files'})" if opened else ""
    return f"{snapshot.operation} {snapshot.snapshot_id} of {span}{by_rows}"


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
        HistoryCut: The table was created again since the watermark, or the snapshots that are needed have expired.
        InvalidHourKey: The table's complete-through is no hour key.
    """
    name = source.table
    uuid = str(table.metadata.table_uuid)
    if since is not None and since.table_uuid != uuid:
        raise source_replaced(name, expected=since.table_uuid, found=uuid)
    reader = SnapshotReader(table, source, start, budget)
    seen = up_to or Head(main_id(table), complete_through(table, name))
    head = reader.snapshot(seen.snapshot_id)
    how: HowFound = "initial"
    snapshots: Sequence[SnapshotChange]
    if since is None or since.snapshot_id is None:
        live = [reader.file(each.data_file, head) for each in reader.live(head)] if head else []
        snapshots = [_built(head, "append", "append", live)] if head else []
    elif head is None:
        raise history_cut(name, since.snapshot_id)
    else:
        chain = reader.chain(head, since.snapshot_id)
        # Retained or not, the watermark's snapshot is an ancestor of the head if it is the parent of the oldest one.
        if (chain[-1].parent_snapshot_id if chain else head.snapshot_id) == since.snapshot_id:
            how, snapshots = "history", list(reader.history(chain))
        elif since.snapshot_id in reader.by_id:
            how, snapshots = "rewound", [reader.difference(reader.by_id[since.snapshot_id], head)]
        # If the watermark's snapshot was an ancestor of the head, every retained ancestor is newer.
        elif (chain[-1].sequence_number or 0) <= since.sequence_number:
            raise history_cut(name, since.snapshot_id)
        else:
            how, snapshots = "expired", [reader.newer_files(head, since)]
    last_hours = [snapshot.hours[-1][1] for snapshot in snapshots if snapshot.hours]
    if since is not None and since.last_hour is not None:
        last_hours.append(since.last_hour)
    totals = [summary_of(head).get(each) for each in TOTALS] if head else [None]
    mark = Watermark(
        name,
        uuid,
        seen.snapshot_id,
        sequence_number=head.sequence_number or 0 if head else 0,
        timestamp_ms=head.timestamp_ms if head else 0,
        complete_through=seen.complete_through,
        totals=None if None in totals else Totals(*(int(each or 0) for each in totals)),
        last_hour=max(last_hours, default=None),
    )
    expired = since is not None and since.snapshot_id is not None and since.snapshot_id not in reader.by_id
    found = SourceChanges(name, source.time_column, since, mark, how, tuple(snapshots), expired)
    return replace(found, earlier=earlier_versions(reader, source, found)) if source.has_versions else found


class SnapshotReader:
    """Reads the metadata of one table. All hours are event hours of the source's time column, from `start` on.

    Args:
        table: The table.
        source: Its declaration.
        start: The first hour that counts; earlier rows are quarantined, or no hour of the pipeline.
        budget: How many files may be opened because their bounds are far apart; None for none.
    """

    def __init__(self, table: Table, source: Source, start: int, budget: ReadBudget | None = None) -> None:
        self.table = table
        self.name = source.table
        self.start = start
        self.by_id = {s.snapshot_id: s for s in table.metadata.snapshots}
        self._budget = budget or ReadBudget()
        schema = table.schema()
        # Rows dated after their landing are quarantined, but only if the source's rows are validated.
        landed_column = None if source.trusted else source.landed_column
        self.columns = (source.time_column,) if landed_column is None else (source.time_column, landed_column)
        self._time = schema.find_field(source.time_column)
        self._landed = None if landed_column is None else schema.find_field(landed_column)
        self._is_landed_by_partition = source.landed_column == LANDED
        self._changes: dict[str, FileChange] = {}
        self.data_files: dict[str, DataFile] = {}
        self._live: dict[tuple[int, ManifestContent], list[ManifestEntry]] = {}

    def snapshot(self, snapshot_id: int | None) -> Snapshot | None:
        """Return a snapshot by its id; None for None. Raises `HistoryCut` if it has expired."""
        if snapshot_id is not None and snapshot_id not in self.by_id:
            raise history_cut(self.name, snapshot_id)
        return None if snapshot_id is None else self.by_id[snapshot_id]

    def chain(self, head: Snapshot, until: int | None) -> list[Snapshot]:
        """Return the retained snapshots from the head back to the one after `until`, newest first."""
        return list(takewhile(lambda each: each.snapshot_id != until, ancestors(self.table, head.snapshot_id)))

    def live(self, snapshot: Snapshot, content: ManifestContent = ManifestContent.DATA) -> list[ManifestEntry]:
        """Return the entries of the live data files of a snapshot, or of its live delete files."""
        key = snapshot.snapshot_id, content
        if key not in self._live:
            self._live[key] = list(live_entries(self.table, snapshot, content))
        return self._live[key]

    # Snapshots

    def history_since(self, since: int | None) -> Iterator[SnapshotChange]:
        """Yield what every retained snapshot after one did, oldest first; after None, or one that has expired, all."""
        head = self.snapshot(main_id(self.table))
        return self.history(self.chain(head, since) if head else [])

    def history(self, chain: Sequence[Snapshot]) -> Iterator[SnapshotChange]:
        """Yield what each snapshot of a chain (newest first) did, oldest first.

        A manifest list names all manifests of the table, so the newest list is usually enough. A writer merges
        manifests after about a hundred appends: then the newest list lacks those that the snapshots wrote themselves,
        but an entry of a merged manifest keeps the snapshot that added its file. An older list is read only if the
        files of its snapshot are not all in merged manifests, or if reading those costs more.
        """
        own: defaultdict[int | None, list[ManifestFile]] = defaultdict(list)
        for manifest in chain[0].manifests(self.table.io) if chain else []:
            own[manifest.added_snapshot_id].append(manifest)
        appended: dict[int, int | None] = {}  # by the summary; None of a snapshot that is no append
        for snapshot in chain:
            summary = summary_of(snapshot)
            is_append = operation_of(snapshot) is Operation.APPEND and "added-data-files" in summary
            files = int(summary.get("added-data-files", 0)) + int(summary.get("added-delete-files", 0))
            appended[snapshot.snapshot_id] = files if is_append else None
        listed = {each: sum(manifest.added_files_count or 0 for manifest in own[each]) for each in appended}
        missing = {each for each, files in appended.items() if files and files != listed[each]}
        merged = [manifest for each in appended for manifest in own[each] if manifest.existing_files_count]
        found: defaultdict[int | None, list[ManifestEntry]] = defaultdict(list)
        size = sum((each.existing_files_count or 0) + (each.added_files_count or 0) for each in merged)
        for manifest in merged if size <= ENTRIES_OF_LIST * len(missing) else []:
            for entry in entries(manifest, self.table.io):
                if entry.status is ManifestEntryStatus.EXISTING and entry.snapshot_id in missing:
                    found[entry.snapshot_id].append(entry)
        for snapshot in reversed(chain):
            snapshot_id = snapshot.snapshot_id
            if operation_of(snapshot) is Operation.REPLACE:
                yield _built(snapshot, Operation.REPLACE.value, "none")
            elif appended[snapshot_id] == listed[snapshot_id]:
                yield self.change(snapshot, changed_entries(snapshot, self.table.io, own[snapshot_id]))
            elif snapshot_id in missing and appended[snapshot_id] == len(found[snapshot_id]):
                yield self.change(snapshot, found[snapshot_id])
            else:
                yield self.change(snapshot, changed_entries(snapshot, self.table.io))

    def change(self, snapshot: Snapshot, changed: Iterable[ManifestEntry]) -> SnapshotChange:
        """Return what one snapshot did. changed: the entries of the files that it added and removed."""
        added: list[FileChange] = []
        others: list[FileChange] = []
        rows_gone = 0
        is_append = operation_of(snapshot) is Operation.APPEND
        for entry in changed:
            file = entry.data_file
            if file.content is DataFileContent.DATA and entry.status is not ManifestEntryStatus.DELETED:
                added.append(self.file(file, snapshot))
                continue
            is_append = False
            rows_gone += file.record_count
            is_data = file.content is DataFileContent.DATA
            others += [self.file(file, snapshot)] if is_data else self.referred(file, snapshot)
        effect: Effect = "append" if is_append else "rewrite"
        return _built(snapshot, operation_of(snapshot).value, effect, added, others, rows_gone=rows_gone)

    def newer_files(self, head: Snapshot, since: Watermark) -> SnapshotChange:
        """Return the files added after an expired watermark. Their rows are new, or were compacted."""

        def is_new(entry: ManifestEntry) -> bool:
            return (entry.file_sequence_number or entry.sequence_number or 0) > since.sequence_number

        data, deletes = self.live(head), self.live(head, ManifestContent.DELETES)
        added = [self.file(each.data_file, head) for each in data if is_new(each)]
        others = [file for each in deletes if is_new(each) for file in self.referred(each.data_file, head)]
        known = [each.data_file for each in data if not is_new(each)]
        totals = Totals(
            data_files=len(known),
            rows=sum(file.record_count for file in known),
            bytes=sum(each.data_file.file_size_in_bytes for each in (*data, *deletes) if not is_new(each)),
        )
        hours = []
        if totals != since.totals:
            # Files that existed at the watermark are gone, and nothing says which hours they held.
            latest = self.last_hour(head)
            last = latest if since.last_hour is None else since.last_hour
            if last > latest + MOST_HOURS_AHEAD:
                raise history_cut(self.name, since.snapshot_id or 0)
            hours.append((self.start, max(self.start, last)))
        return _built(head, "expired", "rewrite", added, others, hours)

    def difference(self, old: Snapshot, head: Snapshot) -> SnapshotChange:
        """Return the files that are in only one of two snapshots, as one change from `old` to `head`."""

        def only_in(one: Snapshot, other: Snapshot, content: ManifestContent) -> list[DataFile]:
            known = {each.data_file.file_path for each in self.live(other, content)}
            files = {each.data_file.file_path: each.data_file for each in self.live(one, content)}
            return [files[path] for path in sorted(files.keys() - known)]

        added = [self.file(each, head) for each in only_in(head, old, ManifestContent.DATA)]
        gone = [self.file(each, old) for each in only_in(old, head, ManifestContent.DATA)]
        others = list(gone)
        for one, other in ((head, old), (old, head)):
            for delete in only_in(one, other, ManifestContent.DELETES):
                others += self.referred(delete, one)
        return _built(head, "rollback", "rewrite", added, others, rows_gone=sum(file.rows for file in gone))

    def referred(self, delete: DataFile, snapshot: Snapshot) -> list[FileChange]:
        """Return the live data files that a delete file may refer to: the one that it names, else any of its partition.

        A data file of another partition spec may have been in that partition under the delete file's spec.
        """
        named = named_data_file(delete)
        found = []
        for entry in self.live(snapshot):
            file = entry.data_file
            is_near = file.spec_id != delete.spec_id or not len(delete.partition) or file.partition == delete.partition
            if file.file_path == named if named is not None else is_near:
                found.append(self.file(file, snapshot))
        return found

    # Files

    def file(self, file: DataFile, snapshot: Snapshot) -> FileChange:
        """Describe a data file. snapshot: one that contains it."""
        known = self._changes.get(file.file_path)
        if known is None:
            known = self._changes[file.file_path] = self._described(file, snapshot)
            self.data_files[file.file_path] = file
        return known

    def _described(self, file: DataFile, snapshot: Snapshot) -> FileChange:
        times = bounds(file, self._time)
        partition: dict[str, object] = {**partition_text(self.table, file)}
        is_landed = self._is_landed_by_partition and partition.keys() >= {*RAW_PARTITIONS}
        landing_hour = self.landing_hour(file)
        if is_landed and landing_hour is not None:
            partition["landing_hour"] = landing_hour % HOURS_OF_DAY
        size = file.file_size_in_bytes
        described = FileChange(file.file_path, file.record_count, size, partition, None, times, (), is_landed)
        # The latest event time that quarantine accepts, an hour after the landing; None for any.
        latest: int | None = None
        if self._landed is not None:
            landed = bounds(file, self._landed)
            if landed is not None:
                latest = int(landed[1]) + HOUR_MICROSECONDS
            elif landing_hour is not None:
                latest = (landing_hour + 2) * HOUR_MICROSECONDS - 1
        by_time = time_partition(self.table, file.spec_id, self._time.name)
        is_by_hour = by_time is not None and by_time[1] == HOUR
        if by_time is not None and is_by_hour:
            number = file.partition[by_time[0]]
            hours = None if number is None else (number, number)
        elif times is not None:
            hours = times[0] // HOUR_MICROSECONDS, times[1] // HOUR_MICROSECONDS
        elif (file.null_value_counts or {}).get(self._time.field_id) == file.record_count:
            hours = None
        else:
            limit = None if self._landed is None else landing_hour
            hours = self.start, max(self.start, self.last_hour(snapshot) if limit is None else limit + 1)
        if hours is None or not file.record_count:
            return described

        is_after_commit = hours[1] > snapshot.timestamp_ms // HOUR_MILLISECONDS + 1
        if self._landed is not None:  # quarantine may reject rows because of their times
            newest = times[1] if times else hours[1] * HOUR_MICROSECONDS
            is_late = is_after_commit if latest is None else newest > latest
            is_unknown = times is None and not is_by_hour and landing_hour is None
            must_be_read = hours[0] < self.start or is_late or is_unknown
        else:  # nothing limits the times of rows that tell no landing
            must_be_read = not is_by_hour and (times is None or is_after_commit) and file.file_format in READABLE
        counted = self._from_start(hours)
        try:
            if must_be_read or (
                counted is not None and file.file_format is FileFormat.PARQUET and self._budget.take(size, counted)
            ):
                key = (file.file_path, self.start, self.columns)
                rows = _cache.find(key)
                if rows is None:
                    rows = tuple(sorted(self.accepted(rows_of_files(self.table, [file], self.columns)).items()))
                    _cache.keep(key, rows)
                return replace(described, hours=(rows[0][0], rows[-1][0]), rows_by_hour=rows) if rows else described
        except FileNotFoundError:
            # The file was removed from the table and from the disk. Its landing still limits its hours.
            first, last = hours
            hours = first, last if latest is None else min(last, latest // HOUR_MICROSECONDS)
            if hours[1] > self.last_hour(snapshot) + MOST_HOURS_AHEAD:
                raise history_cut(".".join(self.table.name()), snapshot.snapshot_id) from None
        return replace(described, hours=self._from_start(hours))

    def last_hour(self, snapshot: Snapshot) -> int:
        """Return the last hour that rows of a snapshot may lie in, if nothing else is known.

        Rows are dated neither after their commit nor after the table's complete-through.
        """
        commit_hour = snapshot.timestamp_ms // HOUR_MILLISECONDS
        complete = complete_through(self.table, "")
        return min(max(self.start, commit_hour, complete or self.start), LAST_HOUR)

    def landing_hour(self, file: DataFile) -> int | None:
        """Return the hour of a data or delete file's landing partition; None if it has no such partition."""
        partition = partition_text(self.table, file) if self._is_landed_by_partition else {}
        day, hour = partition.get("landing_date"), partition.get("landing_hour")
        try:
            return parse_hour(f"{day}-{int(hour or ''):02}:00")
        except (ValueError, InvalidHourKey):
            return None

    def _from_start(self, hours: HourRange) -> HourRange | None:
        """Return the hours from the pipeline's start up to the end of the year 9999; None if there are none."""
        first, last = max(hours[0], self.start), min(hours[1], LAST_HOUR)
        return (first, last) if first <= last else None

    # Rows

    def accepted(self, batches: Iterable[pa.RecordBatch]) -> Counter[int]:
        """Return hour → rows that quarantine accepts, of batches with the columns of the time and the landing."""
        found: Counter[int] = Counter()
        for batch in batches:
            times, *landings = (microseconds(batch, name) for name in self.columns)
            is_accepted = pc.and_(
                pc.greater_equal(times, self.start * HOUR_MICROSECONDS), pc.less(times, END_MICROSECONDS)
            )
            for landed in landings:
                latest = pc.add(pc.min_element_wise(landed, END_MICROSECONDS, skip_nulls=False), HOUR_MICROSECONDS)
                is_accepted = pc.and_(is_accepted, pc.less_equal(times, latest))
            accepted = times.filter(pc.fill_null(is_accepted, False)).to_numpy(zero_copy_only=False)
            hours, rows = np.unique(accepted // HOUR_MICROSECONDS, return_counts=True)
            found.update(dict(zip(hours.tolist(), rows.tolist(), strict=True)))
        return found


def earlier_versions(reader: SnapshotReader, source: Source, changes: SourceChanges) -> EarlierVersions:
    """Return the earlier versions of the keys that changed after a watermark.

    If rows were removed, an earlier version may count again, and nothing says of which key: all hours are returned.
    So they are if the new rows are too many, or if a file is gone from the storage.

    Args:
        reader: Reads the source table.
        source: Its declaration, with versions.
        changes: What changed in it.
    """
    head = reader.snapshot(changes.head.snapshot_id)
    if changes.since is None or changes.since.snapshot_id is None or not changes.effective or head is None:
        return EarlierVersions()
    # If the watermark's snapshot has expired, the head has its rows.
    before = head if changes.since_expired else reader.by_id[changes.since.snapshot_id]
    old = [entry.data_file for entry in reader.live(before)]
    new = [reader.data_files[file.path] for file in changes.added]
    if changes.appends_only and changes.rows_added <= MAX_CHANGED_ROWS:
        try:
            return _versions_of_keys(reader, source, old, new)
        except FileNotFoundError:
            pass
    if not changes.appends_only:
        old += [entry.data_file for entry in reader.live(head)]
    return EarlierVersions(True, merge_ranges(hours for file in old for hours in reader.file(file, head).touched))


def _versions_of_keys(
    reader: SnapshotReader, source: Source, old: Sequence[DataFile], new: Sequence[DataFile]
) -> EarlierVersions:
    """Return the rows of old files whose key is that of a new row. A row that quarantine rejects has no hour.

    Only the columns of key, time and landing are read, and only of files whose bounds may include one of the keys. A
    version that a delete file removes counts, too: it adds an hour that comes out as it was published.
    """
    assert source.key is not None, "a source with versions has a key"
    name = source.key
    found = [_plain(batch.column(name)).unique() for batch in rows_of_files(reader.table, new, [name])]
    keys = pa.chunked_array(found).unique().drop_null() if found else pa.array([])
    if not len(keys):
        return EarlierVersions()
    condition: BooleanExpression = ALWAYS_TRUE
    may_match = list(old)
    if pa.types.is_integer(keys.type) or pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type):
        least, greatest = (each.as_py() for each in pc.min_max(keys).values())
        column = reader.table.schema().find_field(name)
        limits = [(file, bounds(file, column)) for file in old]
        may_match = [file for file, of in limits if of is None or (of[0] <= greatest and least <= of[1])]
        if len(keys) <= MAX_FILTERED_KEYS:
            condition = In(name, set(keys.to_pylist()))  # type: ignore[call-arg, arg-type]
    exist = False
    hours: set[int] = set()
    for batch in rows_of_files(reader.table, may_match, {name, *reader.columns}, condition):
        versions = batch.filter(pc.is_in(_plain(batch.column(name)).cast(keys.type), value_set=keys))
        exist = exist or versions.num_rows > 0
        hours |= reader.accepted([versions]).keys()
    return EarlierVersions(exist, tuple(ranges(hours)))


def _plain(values: pa.Array) -> pa.Array:
    """Return values as they are stored: Arrow cannot compare those of an extension type, as a uuid is."""
    return values.storage if isinstance(values.type, pa.BaseExtensionType) else values


def _built(
    snapshot: Snapshot,
    operation: str,
    effect: Effect,
    added: Sequence[FileChange] = (),
    others: Sequence[FileChange] = (),
    hours: Sequence[HourRange] = (),
    rows_gone: int = 0,
) -> SnapshotChange:
    """Return a change that a snapshot made: it touched the hours of the files that it added, of others, and more."""
    files = [*added, *others]
    touched = merge_ranges([*hours, *(each for file in files for each in file.touched)])
    opened = len({file.path for file in files if file.rows_by_hour})
    at = snapshot.timestamp_ms
    return SnapshotChange(snapshot.snapshot_id, operation, at, effect, tuple(added), touched, rows_gone, opened)


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
