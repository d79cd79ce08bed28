"""What changed in a source since a watermark, from Iceberg metadata: no Spark; no data file, but one of absurd times.

Snapshots are walked by parent id from the head of `main`, never by clock (commit times may go back, and a publish keeps
the time of its staging). Manifests are the truth; partition summaries of snapshots are off by default and not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from lake_assets.base.hours import hour_key
from lake_assets.errors import HistoryCut, SourceReplaced
from lake_assets.incremental.declaration import Source
from lake_assets.incremental.metadata.manifests import entries, own_manifests
from lake_assets.incremental.metadata.tables import complete_through
from lake_assets.incremental.planning.data_files import DataFiles, FileChange, HourRange

FILE_PATH_FIELD = 2147483546
"""Field id of `file_path` in a position delete file (Iceberg specification, reserved field ids)."""


@dataclass(frozen=True)
class Totals:
    """What a snapshot's live files sum up to. bytes: delete files are counted, too."""

    data_files: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Watermark:
    """How far a process has committed one source.

    totals: of the snapshot it stands at, None when its summary does not tell. last_hour: the last event hour that any
    file seen so far may hold rows of; None before the first.
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
    """One snapshot since the watermark: what it did, and which event hours it touched.

    effect: `append` (rows came, none changed or went), `rewrite` (rows changed or went), `none` (compaction).
    rows_gone: of the data files it removed, and those its delete files name.
    """

    snapshot_id: int
    operation: str
    committed_at_ms: int
    effect: Literal["append", "rewrite", "none"]
    added: tuple[FileChange, ...] = ()
    hours: tuple[HourRange, ...] = ()
    rows_gone: int = 0


@dataclass(frozen=True)
class SourceChanges:
    """All that is new in one source: data for the planner.

    how: `initial` (no watermark yet), `history` (the snapshots since it), `expired` (its snapshot is gone; files are
        told apart by sequence number), `rewound` (it is no ancestor of the head: the file sets were compared).
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
        return (self.since.snapshot_id, self.since.complete_through) != (
            self.head.snapshot_id,
            self.head.complete_through,
        )


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
    uuid = str(table.metadata.table_uuid)
    if since is not None and since.table_uuid != uuid:
        raise SourceReplaced(source.table, expected=since.table_uuid, found=uuid)
    reader = _Reader(table, source, start)
    seen = up_to or reader.current(source.table)
    head = reader.snapshot(seen.snapshot_id, source.table)
    how, snapshots = _since(reader, source.table, since, head)
    added = tuple(f for s in snapshots for f in s.added)
    last_hour = max(
        (h for h in (since.last_hour if since else None, *_lasts(snapshots)) if h is not None), default=None
    )
    mark = _mark(source.table, uuid, head, seen, last_hour)
    return SourceChanges(source.table, source.time_column, since, mark, how, snapshots, added)


def _mark(name: str, uuid: str, head: Snapshot | None, seen: Head, last_hour: int | None) -> Watermark:
    return Watermark(
        source=name,
        table_uuid=uuid,
        snapshot_id=head.snapshot_id if head else None,
        sequence_number=(head.sequence_number or 0) if head else 0,
        timestamp_ms=head.timestamp_ms if head else 0,
        complete_through=seen.complete_through,
        totals=_totals(head),
        last_hour=last_hour,
    )


def _lasts(snapshots: Iterable[SnapshotChange]) -> Iterator[int]:
    return (s.hours[-1][1] for s in snapshots if s.hours)


def _totals(snapshot: Snapshot | None) -> Totals | None:
    """Of a snapshot's summary; its fields are optional, and a missing one is unknown, not zero."""
    told = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    found = [told.get(name) for name in ("total-data-files", "total-records", "total-files-size")]
    return None if None in found else Totals(*(int(n) for n in found if n is not None))


def _since(
    reader: _Reader, name: str, since: Watermark | None, head: Snapshot | None
) -> tuple[Literal["initial", "history", "expired", "rewound"], tuple[SnapshotChange, ...]]:
    if since is None or since.snapshot_id is None:
        return "initial", tuple(reader.everything(head))
    chain, reached = reader.walk(head, since.snapshot_id)
    if reached:
        return "history", tuple(reader.history(chain))
    if head is None:
        raise HistoryCut(name, since.snapshot_id)
    if since.snapshot_id in reader.by_id:
        return "rewound", (reader.difference(reader.by_id[since.snapshot_id], head),)
    # Had the watermark's snapshot been an ancestor, all that is left of the chain would have come after it.
    if (chain[-1].sequence_number or 0) <= since.sequence_number:
        raise HistoryCut(name, since.snapshot_id)
    return "expired", (reader.newer(head, since),)


class _Reader:
    """Reads one table's metadata; all answers are about event hours of the source's time column."""

    def __init__(self, table: Table, source: Source, start: int) -> None:
        self.table, self.metadata, self.io = table, table.metadata, table.io
        self.by_id = {s.snapshot_id: s for s in self.metadata.snapshots}
        self.start = start
        self.files = DataFiles(table, source, start)
        self.live_files: dict[tuple[int, ManifestContent], list[tuple[DataFile, int]]] = {}

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

    def history(self, chain: Sequence[Snapshot]) -> Iterator[SnapshotChange]:
        """What each snapshot of a chain did. The chain: newest first; what is told of it: oldest first.

        A manifest list names all manifests of the table, so the newest is read, and another only where that one lacks
        manifests that a snapshot wrote, because others took their place since.
        """
        newest: dict[int | None, list[ManifestFile]] = {}
        for manifest in chain[0].manifests(self.io) if chain else ():
            newest.setdefault(manifest.added_snapshot_id, []).append(manifest)
        for snapshot in reversed(chain):
            found = newest.get(snapshot.snapshot_id, [])
            yield self._change(snapshot, found if _all_appended(snapshot, found) else None)

    def _change(self, snapshot: Snapshot, own: list[ManifestFile] | None) -> SnapshotChange:
        """What one snapshot did, from the manifests it wrote; None: those are read from its own list."""
        operation = snapshot.summary.operation if snapshot.summary else Operation.OVERWRITE
        if operation is Operation.REPLACE:
            return _snapshot_change(snapshot, operation, "none")
        if own is None:
            own = own_manifests(snapshot, self.io)
        added, gone, rows_gone, hours = [], False, 0, []
        for manifest, file, status in self._entries(own, snapshot.snapshot_id):
            if manifest.content is ManifestContent.DELETES:
                gone, rows_gone = True, rows_gone + file.record_count
                hours += self._hours_of_delete(file, snapshot)
                continue
            change = self.files.change(file, snapshot)
            hours += [change.hours] if change.hours else []
            if status is ManifestEntryStatus.ADDED:
                added.append(change)
            else:
                gone, rows_gone = True, rows_gone + file.record_count
        effect: Literal["append", "rewrite"] = "append" if operation is Operation.APPEND and not gone else "rewrite"
        return _snapshot_change(snapshot, operation, effect, added, hours, rows_gone)

    def everything(self, head: Snapshot | None) -> Iterator[SnapshotChange]:
        """All live files as if one snapshot had appended them."""
        if head is not None:
            files = [self.files.change(f, head) for f, _ in self._live(head)]
            yield _snapshot_change(head, "append", "append", files, [f.hours for f in files if f.hours])

    def newer(self, head: Snapshot, since: Watermark) -> SnapshotChange:
        """Files added after an expired watermark: new rows, or old ones compacted."""
        live, deletes = self._live(head), self._live(head, ManifestContent.DELETES)
        new = [self.files.change(f, head) for f, sequence in live if sequence > since.sequence_number]
        hours = [f.hours for f in new if f.hours]
        for file, sequence in deletes:
            if sequence > since.sequence_number:
                hours += self._hours_of_delete(file, head)
        known = [f for f, sequence in live if sequence <= since.sequence_number]
        known_deletes = [f for f, sequence in deletes if sequence <= since.sequence_number]
        if _sum(known, known_deletes) != since.totals:
            # Files that the watermark knew are gone, and with them every trace of which hours they held.
            last = self.files.last_hour(head) if since.last_hour is None else since.last_hour
            hours.append((self.start, max(self.start, last)))
        return _snapshot_change(head, "expired", "rewrite", new, hours)

    def difference(self, old: Snapshot, head: Snapshot) -> SnapshotChange:
        """The files that one of two snapshots has and the other lacks."""
        before = {f.file_path: f for f, _ in self._live(old)}
        after = {f.file_path: f for f, _ in self._live(head)}
        added = [self.files.change(after[p], head) for p in sorted(after.keys() - before.keys())]
        gone = [self.files.change(before[p], old) for p in sorted(before.keys() - after.keys())]
        hours = [f.hours for f in (*added, *gone) if f.hours]
        deletes_before = {f.file_path: f for f, _ in self._live(old, ManifestContent.DELETES)}
        deletes_after = {f.file_path: f for f, _ in self._live(head, ManifestContent.DELETES)}
        for path in sorted(deletes_after.keys() - deletes_before.keys()):
            hours += self._hours_of_delete(deletes_after[path], head)
        for path in sorted(deletes_before.keys() - deletes_after.keys()):
            hours += self._hours_of_delete(deletes_before[path], old)
        return _snapshot_change(head, "rollback", "rewrite", added, hours, sum(f.rows for f in gone))

    def _entries(
        self, manifests: Iterable[ManifestFile], snapshot_id: int
    ) -> Iterator[tuple[ManifestFile, DataFile, ManifestEntryStatus]]:
        for manifest in manifests:
            for entry in entries(manifest, self.io, discard_deleted=False):
                if entry.status is not ManifestEntryStatus.EXISTING and entry.snapshot_id == snapshot_id:
                    yield manifest, entry.data_file, entry.status

    def _live(self, snapshot: Snapshot, content: ManifestContent = ManifestContent.DATA) -> list[tuple[DataFile, int]]:
        """Live files of a snapshot with the sequence number at which each was added."""
        key = snapshot.snapshot_id, content
        if key not in self.live_files:
            self.live_files[key] = [
                (entry.data_file, entry.file_sequence_number or entry.sequence_number or 0)
                for manifest in snapshot.manifests(self.io)
                if manifest.content is content
                for entry in entries(manifest, self.io, discard_deleted=True)
            ]
        return self.live_files[key]

    def _hours_of_delete(self, file: DataFile, snapshot: Snapshot) -> list[HourRange]:
        """Hours of the data files that a delete file may refer to: the one it names, else all of its partition."""
        named = self._named_data_file(file)
        hours = []
        for data, _ in self._live(snapshot):
            near = (
                data.spec_id != file.spec_id or data.partition == file.partition or not self.files.names[file.spec_id]
            )
            if (data.file_path == named) if named else near:
                change = self.files.change(data, snapshot)
                hours += [change.hours] if change.hours else []
        return hours

    def _named_data_file(self, file: DataFile) -> str | None:
        if file.content is not DataFileContent.POSITION_DELETES:
            return None
        lower, upper = (b.get(FILE_PATH_FIELD) if b else None for b in (file.lower_bounds, file.upper_bounds))
        return lower.decode() if lower is not None and lower == upper else None


def hours_present(table: Table, time_column: str) -> frozenset[int]:
    """The hours for which an hour-partitioned table's head has data files."""
    found = changes(table, Source("own.own", time_column), None, start=0).snapshots
    return frozenset(h for s in found for a, b in s.hours for h in range(a, b + 1))


def raw_history(table: Table, source: Source, since: int | None, start: int) -> Iterator[SnapshotChange]:
    """Every retained snapshot after `since`, oldest first; all of them when `since` is None or gone."""
    reader = _Reader(table, source, start)
    head = reader.snapshot(reader.current(source.table).snapshot_id, source.table)
    chain, _ = reader.walk(head, -1 if since is None else since)
    yield from reader.history(chain)


def _all_appended(snapshot: Snapshot, manifests: Iterable[ManifestFile]) -> bool:
    """Whether the manifests hold all files that a snapshot appended, as its summary tells; False for any other."""
    if snapshot.summary is None or snapshot.summary.operation is not Operation.APPEND:
        return False
    told = snapshot.summary.additional_properties
    added = [told.get("added-data-files"), told.get("added-delete-files", "0")]
    return None not in added and sum(int(n) for n in added if n) == sum(m.added_files_count or 0 for m in manifests)


def _snapshot_change(
    snapshot: Snapshot,
    operation: Operation | str,
    effect: Literal["append", "rewrite", "none"],
    added: Iterable[FileChange] = (),
    hours: Iterable[HourRange] = (),
    rows_gone: int = 0,
) -> SnapshotChange:
    return SnapshotChange(
        snapshot_id=snapshot.snapshot_id,
        operation=operation.value if isinstance(operation, Operation) else operation,
        committed_at_ms=snapshot.timestamp_ms,
        effect=effect,
        added=tuple(added),
        hours=_merged(hours),
        rows_gone=rows_gone,
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


def _sum(data: Sequence[DataFile], deletes: Sequence[DataFile]) -> Totals:
    size = sum(f.file_size_in_bytes for f in (*data, *deletes))
    return Totals(len(data), sum(f.record_count for f in data), size)


def describe(changes: SourceChanges, snapshot: SnapshotChange) -> str:
    """Which snapshot did what to which hours, in words: a reason of a plan."""
    spans = ", ".join(hour_key(a) if a == b else f"{hour_key(a)}..{hour_key(b)}" for a, b in snapshot.hours)
    return (
        f"{snapshot.operation} {snapshot.snapshot_id} of {changes.source}: {changes.time_column} {spans or 'no hours'}"
    )
