"""What changed in a source since a watermark, from Iceberg metadata: no Spark, and no data file but one with absurd times.

Snapshots are walked by parent id from the head of `main`, never by clock (commit times may go back, and a publish keeps
the time of its staging). Manifests are the truth; partition summaries of snapshots are off by default and not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.transforms import HourTransform
from pyiceberg.types import DateType

from lake_assets.errors import HistoryCut, SourceReplaced
from lake_assets.incremental.hours import HOUR_MICROSECONDS, hour_key
from lake_assets.incremental.tables import complete_through

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import Source

LANDED = "landed_at"
FILE_PATH_FIELD = 2147483546
"""Field id of `file_path` in a position delete file (Iceberg specification, reserved field ids)."""

HourRange = tuple[int, int]
"""First and last event hour, both inclusive."""


@dataclass(frozen=True)
class Watermark:
    """How far a process has committed one source. Counts are of the snapshot it stands at, 0 without one."""

    source: str
    table_uuid: str
    snapshot_id: int | None
    sequence_number: int = 0
    timestamp_ms: int = 0
    complete_through: int | None = None
    data_files: int = 0


@dataclass(frozen=True)
class FileChange:
    """One data file, as its manifest describes it.

    hours: the event hours its rows may lie in; None: in none that counts. landed_from: least landed_at;
    times: bounds of the time column; both microseconds since 1970, None when the metadata have none.
    """

    path: str
    rows: int
    bytes: int
    partition: Mapping[str, object]
    hours: HourRange | None
    landed_from: int | None = None
    times: tuple[int, int] | None = None


@dataclass(frozen=True)
class SnapshotChange:
    """One snapshot since the watermark: what it did, and which event hours it touched.

    effect: `append` (rows came, none changed or went), `rewrite` (rows changed or went), `none` (compaction).
    """

    snapshot_id: int
    operation: str
    committed_at_ms: int
    effect: Literal["append", "rewrite", "none"]
    added: tuple[FileChange, ...] = ()
    hours: tuple[HourRange, ...] = ()


@dataclass(frozen=True)
class SourceChanges:
    """All that is new in one source: data for the planner.

    how: `initial` (no watermark yet), `history` (the snapshots since it), `expired` (its snapshot is gone, files are told
        apart by sequence number), `rewound` (it is no ancestor of the head: the file sets were compared).
    """

    source: str
    time_column: str
    since: Watermark | None
    head: Watermark
    how: Literal["initial", "history", "expired", "rewound"] = "history"
    snapshots: tuple[SnapshotChange, ...] = ()
    added: tuple[FileChange, ...] = field(default=(), repr=False)

    @property
    def effective(self) -> tuple[SnapshotChange, ...]:
        return tuple(s for s in self.snapshots if s.effect != "none")

    @property
    def appends_only(self) -> bool:
        """Whether an incremental append read over the range is the whole truth."""
        return self.how in ("initial", "history") and all(s.effect != "rewrite" for s in self.snapshots)

    @property
    def moved(self) -> bool:
        """Whether head or complete-through differ from the watermark."""
        if self.since is None:
            return self.head.snapshot_id is not None or self.head.complete_through is not None
        return (self.since.snapshot_id, self.since.complete_through) != (self.head.snapshot_id, self.head.complete_through)


@dataclass(frozen=True)
class Head:
    """A head that was seen earlier: its snapshot and the complete-through that was read with it."""

    snapshot_id: int | None
    complete_through: int | None


def changes(
    table: Table, source: Source, since: Watermark | None, *, start: int, up_to: Head | None = None
) -> SourceChanges:
    """What changed in `table` after the watermark `since` (None: everything is new), up to the head, or an earlier one.

    start: the first event hour; what lies before is quarantined, and plans nothing.
    Raises `SourceReplaced`, `HistoryCut`, `InvalidHourKey`; nothing is written.
    """
    reader = _Reader(table, source.time_column, start)
    seen = up_to or reader.current(source.table)
    head = reader.snapshot(seen.snapshot_id, source.table)
    mark = _mark(table, source.table, head, seen)
    if since is not None and since.table_uuid != mark.table_uuid:
        raise SourceReplaced(source.table, expected=since.table_uuid, found=mark.table_uuid)
    how, snapshots = _since(reader, source.table, since, head)
    added = tuple(f for s in snapshots for f in s.added)
    return SourceChanges(source.table, source.time_column, since, mark, how, snapshots, added)


def _mark(table: Table, name: str, head: Snapshot | None, seen: Head) -> Watermark:
    return Watermark(
        source=name,
        table_uuid=str(table.metadata.table_uuid),
        snapshot_id=head.snapshot_id if head else None,
        sequence_number=(head.sequence_number or 0) if head else 0,
        timestamp_ms=head.timestamp_ms if head else 0,
        complete_through=seen.complete_through,
        data_files=_total(head, "total-data-files"),
    )


def _total(snapshot: Snapshot | None, name: str) -> int:
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary.additional_properties.get(name, 0))


def _since(
    reader: _Reader, name: str, since: Watermark | None, head: Snapshot | None
) -> tuple[Literal["initial", "history", "expired", "rewound"], tuple[SnapshotChange, ...]]:
    if since is None or since.snapshot_id is None:
        return "initial", tuple(reader.everything(head))
    chain, reached = reader.walk(head, since.snapshot_id)
    if reached:
        return "history", tuple(reader.change(s) for s in reversed(chain))
    if head is None:
        raise HistoryCut(name, since.snapshot_id)
    if since.snapshot_id in reader.by_id:
        return "rewound", (reader.difference(reader.by_id[since.snapshot_id], head),)
    cut = chain[-1].parent_snapshot_id is not None
    if not cut or (head.sequence_number or 0) <= since.sequence_number:
        raise HistoryCut(name, since.snapshot_id)
    return "expired", (reader.newer(head, since),)


class _Reader:
    """Reads one table's metadata; all answers are about event hours of one time column."""

    def __init__(self, table: Table, time_column: str, start: int) -> None:
        self.table, self.metadata, self.io = table, table.metadata, table.io
        self.by_id = {s.snapshot_id: s for s in self.metadata.snapshots}
        self.start = start
        schema = table.schema()
        self.time_field = schema.find_field(time_column)
        self.landed_field = schema.find_field(LANDED) if LANDED in schema.column_names else None
        self.names = {spec.spec_id: [f.name for f in spec.fields] for spec in self.metadata.partition_specs}
        types = {f.field_id: f.field_type for f in schema.fields}
        self.dates = {
            spec.spec_id: [
                f.source_id in types and isinstance(f.transform.result_type(types[f.source_id]), DateType)
                for f in spec.fields
            ]
            for spec in self.metadata.partition_specs
        }
        self.hour_position = {spec.spec_id: self._position_of_hour(spec) for spec in self.metadata.partition_specs}

    def _position_of_hour(self, spec: Any) -> int | None:
        for i, f in enumerate(spec.fields):
            if f.source_id == self.time_field.field_id and isinstance(f.transform, HourTransform):
                return i
        return None

    def current(self, name: str) -> Head:
        """The head of main and the complete-through, both of one state of the table."""
        main = self.metadata.refs.get("main")
        return Head(main.snapshot_id if main else None, complete_through(self.table, name))

    def snapshot(self, snapshot_id: int | None, name: str) -> Snapshot | None:
        if snapshot_id is None:
            return None
        if snapshot_id not in self.by_id:
            raise HistoryCut(name, snapshot_id)
        return self.by_id[snapshot_id]

    def walk(self, head: Snapshot | None, until: int) -> tuple[list[Snapshot], bool]:
        """Ancestors of head, newest first, before `until`; and whether `until` was met."""
        chain: list[Snapshot] = []
        current = head
        while current is not None:
            if current.snapshot_id == until:
                return chain, True
            chain.append(current)
            parent = current.parent_snapshot_id
            current = self.by_id.get(parent) if parent is not None else None
        return chain, False

    def change(self, snapshot: Snapshot) -> SnapshotChange:
        """What one snapshot did, from the manifests it wrote."""
        operation = snapshot.summary.operation if snapshot.summary else Operation.OVERWRITE
        if operation is Operation.REPLACE:
            return _snapshot_change(snapshot, operation, "none")
        own = [m for m in snapshot.manifests(self.io) if m.added_snapshot_id == snapshot.snapshot_id]
        added, gone, hours = [], False, []
        for manifest, file, status in self._entries(own, snapshot.snapshot_id):
            if manifest.content is ManifestContent.DELETES:
                gone = True
                hours += self._hours_of_delete(file, snapshot)
                continue
            change = self._file(file, snapshot)
            hours += [change.hours] if change.hours else []
            if status is ManifestEntryStatus.ADDED:
                added.append(change)
            else:
                gone = True
        effect: Literal["append", "rewrite"] = "append" if operation is Operation.APPEND and not gone else "rewrite"
        return _snapshot_change(snapshot, operation, effect, added, hours)

    def everything(self, head: Snapshot | None) -> Iterator[SnapshotChange]:
        """All live files as if one snapshot had appended them."""
        if head is not None:
            files = [self._file(f, head) for f, _ in self._live(head)]
            yield _snapshot_change(head, "append", "append", files, [f.hours for f in files if f.hours])

    def newer(self, head: Snapshot, since: Watermark) -> SnapshotChange:
        """Files added after an expired watermark: new rows, or old ones compacted."""
        live = list(self._live(head))
        new = [self._file(f, head) for f, sequence in live if sequence > since.sequence_number]
        hours = [f.hours for f in new if f.hours]
        if len(live) - len(new) < since.data_files:
            # Files that the watermark knew are gone, and with them every trace of which hours they held.
            hours.append((self.start, self._last_hour(head)))
        for file, sequence in self._live(head, ManifestContent.DELETES):
            if sequence > since.sequence_number:
                hours += self._hours_of_delete(file, head)
        return _snapshot_change(head, "expired", "rewrite", new, hours)

    def difference(self, old: Snapshot, head: Snapshot) -> SnapshotChange:
        """The files that one of two snapshots has and the other lacks."""
        before = {f.file_path: f for f, _ in self._live(old)}
        after = {f.file_path: f for f, _ in self._live(head)}
        added = [self._file(after[p], head) for p in sorted(after.keys() - before.keys())]
        gone = [self._file(before[p], old) for p in sorted(before.keys() - after.keys())]
        hours = [f.hours for f in (*added, *gone) if f.hours]
        deletes_before = {f.file_path: f for f, _ in self._live(old, ManifestContent.DELETES)}
        deletes_after = {f.file_path: f for f, _ in self._live(head, ManifestContent.DELETES)}
        for path in sorted(deletes_after.keys() - deletes_before.keys()):
            hours += self._hours_of_delete(deletes_after[path], head)
        for path in sorted(deletes_before.keys() - deletes_after.keys()):
            hours += self._hours_of_delete(deletes_before[path], old)
        return _snapshot_change(head, "rollback", "rewrite", added, hours)

    def _entries(
        self, manifests: Iterable[ManifestFile], snapshot_id: int
    ) -> Iterator[tuple[ManifestFile, DataFile, ManifestEntryStatus]]:
        for manifest in manifests:
            for entry in manifest.fetch_manifest_entry(self.io, discard_deleted=False):
                if entry.status is not ManifestEntryStatus.EXISTING and entry.snapshot_id == snapshot_id:
                    yield manifest, entry.data_file, entry.status

    def _live(
        self, snapshot: Snapshot, content: ManifestContent = ManifestContent.DATA
    ) -> Iterator[tuple[DataFile, int]]:
        """Live files of a snapshot with the sequence number at which each was added."""
        for manifest in snapshot.manifests(self.io):
            if manifest.content is content:
                for entry in manifest.fetch_manifest_entry(self.io, discard_deleted=True):
                    yield entry.data_file, entry.file_sequence_number or entry.sequence_number or 0

    def _hours_of_delete(self, file: DataFile, snapshot: Snapshot) -> list[HourRange]:
        """Hours of the data files that a delete file may refer to: the one it names, else all of its partition."""
        named = self._named_data_file(file)
        hours = []
        for data, _ in self._live(snapshot):
            near = data.spec_id != file.spec_id or data.partition == file.partition or not self.names[file.spec_id]
            if (data.file_path == named) if named else near:
                change = self._file(data, snapshot)
                hours += [change.hours] if change.hours else []
        return hours

    def _named_data_file(self, file: DataFile) -> str | None:
        if file.content is not DataFileContent.POSITION_DELETES:
            return None
        lower, upper = (b.get(FILE_PATH_FIELD) if b else None for b in (file.lower_bounds, file.upper_bounds))
        return lower.decode() if lower is not None and lower == upper else None

    def _file(self, file: DataFile, snapshot: Snapshot) -> FileChange:
        landed = self._bounds(file, self.landed_field) if self.landed_field else None
        return FileChange(
            path=file.file_path,
            rows=file.record_count,
            bytes=file.file_size_in_bytes,
            partition={name: _plain(value) for name, value in self._partition(file).items()},
            hours=self._hours(file, snapshot, landed),
            landed_from=landed[0] if landed else None,
            times=self._bounds(file, self.time_field),
        )

    def _partition(self, file: DataFile) -> dict[str, Any]:
        """Field name → value. Manifests hold a date as days since 1970; here it is a date."""
        fields = zip(self.names[file.spec_id], self.dates[file.spec_id], strict=True)
        values = ((name, is_date, file.partition[i]) for i, (name, is_date) in enumerate(fields))
        return {n: date(1970, 1, 1) + timedelta(days=v) if d and isinstance(v, int) else v for n, d, v in values}

    def _hours(self, file: DataFile, snapshot: Snapshot, landed: tuple[int, int] | None) -> HourRange | None:
        position = self.hour_position[file.spec_id]
        if position is not None:
            hour = file.partition[position]
            return None if hour is None else (hour, hour)
        bounds = self._bounds(file, self.time_field)
        if bounds is None:
            if self._all_null(file):
                return None
            # Unknown means every hour, never none.
            return self.start, max(self.start, self._landing_hour(file) or self._last_hour(snapshot))
        lower, upper = (b // HOUR_MICROSECONDS for b in bounds)
        if lower < self.start or (landed is not None and bounds[1] > landed[1] + HOUR_MICROSECONDS):
            return self._sane_hours(file)
        return lower, upper

    def _sane_hours(self, file: DataFile) -> HourRange | None:
        """The hours of the rows that quarantine will not take, read from the file's own time columns.

        The one case that opens a data file: its bounds show an absurd time, and by them one such row plans all history.
        """
        columns = [c.name for c in (self.time_field, self.landed_field) if c]
        with self.io.new_input(file.file_path).open() as opened:
            rows = pq.read_table(opened, columns=columns)
        times = rows[self.time_field.name].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        sane = pc.greater_equal(times, self.start * HOUR_MICROSECONDS)
        if self.landed_field:
            landed = rows[self.landed_field.name].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            on_time = pc.less_equal(times, pc.add(landed, HOUR_MICROSECONDS))
            sane = pc.and_(sane, pc.fill_null(on_time, True))
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
        return from_bytes(column.field_type, lower), from_bytes(column.field_type, upper)

    def _landing_hour(self, file: DataFile) -> int | None:
        """The last event hour that a file's landing partition admits: rows dated later are quarantined."""
        landed = self._partition(file)
        day, hour = landed.get("landing_date"), landed.get("landing_hour")
        if not isinstance(day, date) or not isinstance(hour, int):
            return None
        return (day - date(1970, 1, 1)).days * 24 + hour + 1

    def _last_hour(self, snapshot: Snapshot) -> int:
        return max(self.start, snapshot.timestamp_ms // 3_600_000)

    def hours_present(self) -> frozenset[int]:
        head = self.snapshot(self.current("").snapshot_id, "") if self.metadata.refs.get("main") else None
        found = (self._file(f, head).hours for f, _ in self._live(head)) if head else iter(())
        return frozenset(h for r in found if r for h in range(r[0], r[1] + 1))


def hours_present(table: Table, time_column: str) -> frozenset[int]:
    """The hours for which an hour-partitioned table's head has data files."""
    return _Reader(table, time_column, 0).hours_present()


def raw_history(table: Table, source: Source, since: int | None, start: int) -> Iterator[SnapshotChange]:
    """Every retained snapshot after `since`, oldest first; all of them when `since` is None or gone."""
    reader = _Reader(table, source.time_column, start)
    head = reader.snapshot(reader.current(source.table).snapshot_id, source.table)
    chain, _ = reader.walk(head, -1 if since is None else since)
    yield from map(reader.change, reversed(chain))


def _snapshot_change(
    snapshot: Snapshot,
    operation: Operation | str,
    effect: Literal["append", "rewrite", "none"],
    added: Iterable[FileChange] = (),
    hours: Iterable[HourRange] = (),
) -> SnapshotChange:
    return SnapshotChange(
        snapshot_id=snapshot.snapshot_id,
        operation=operation.value if isinstance(operation, Operation) else operation,
        committed_at_ms=snapshot.timestamp_ms,
        effect=effect,
        added=tuple(added),
        hours=_merged(hours),
    )


def _merged(found: Iterable[HourRange]) -> tuple[HourRange, ...]:
    """Overlapping or adjoining ranges as one, ascending."""
    merged: list[HourRange] = []
    for lower, upper in sorted(found):
        if merged and lower <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], upper))
        else:
            merged.append((lower, upper))
    return tuple(merged)


def _plain(value: Any) -> object:
    return value.isoformat() if isinstance(value, date) else value


def describe(changes: SourceChanges, snapshot: SnapshotChange) -> str:
    """Which snapshot did what to which hours, in words: a reason of a plan."""
    spans = ", ".join(hour_key(a) if a == b else f"{hour_key(a)}..{hour_key(b)}" for a, b in snapshot.hours)
    return f"{snapshot.operation} {snapshot.snapshot_id} of {changes.source}: {changes.time_column} {spans or 'no hours'}"
