"""Reading snapshots of one source table: the files that they added and removed, and the event hours of these files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from lake_assets.errors import HistoryCut
from lake_assets.incremental.declaration import Source
from lake_assets.incremental.metadata.manifests import changed_entries, entries, named_data_file, own_manifests
from lake_assets.incremental.metadata.tables import complete_through
from lake_assets.incremental.planning.changes.data_files import MOST_HOURS_AHEAD, DataFiles, FileChange
from lake_assets.incremental.planning.changes.merged_manifests import MergedManifests
from lake_assets.incremental.planning.changes.row_hours import HourRange, ReadBudget
from lake_assets.incremental.planning.changes.source_changes import Effect, Head, SnapshotChange, Totals, Watermark


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
