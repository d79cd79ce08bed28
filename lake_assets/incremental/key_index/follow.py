"""Following a table: what an index learns from the snapshots after the one that it describes.

Only the manifests that these snapshots wrote are read, and the column of the files that they added. If the described
snapshot is no ancestor any more, everything is read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.manifest import DataFile, FileFormat, ManifestEntryStatus
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.incremental.key_index.postings import Described, IndexedFile, Postings
from lake_assets.incremental.metadata import publish
from lake_assets.incremental.metadata.arrow_scan import ArrowScan
from lake_assets.incremental.metadata.manifests import changed_entries, entries, own_manifests

READERS = 8
"""Data files that are read at a time: those of an object store wait more than they compute."""

FILES_IN_MEMORY = 256
"""Data files whose values are in memory before they are stored."""


class NotIndexable(Exception):
    """A data file has a format that the index does not read."""


def follow(postings: Postings, table: Table, column: str, snapshot: Snapshot) -> bool:
    """Bring an index to a snapshot, unless it describes it already.

    Returns:
        Whether the index describes the snapshot. It does not if it describes a later one, and the files that the
        snapshot has are not all known.

    Raises:
        FileNotFoundError: A file of the snapshot is gone.
        NotIndexable: A file is no Parquet file.
    """
    known = postings.described()
    chain = None if known is None else _since(table, known, snapshot)
    if known is not None and chain is None and _describes(table, known, snapshot):
        return _number(snapshot) >= known.first_sequence_number
    if known is None or chain is None:
        postings.clear()
        _build(postings, table, column, snapshot)
        return True
    if chain:
        _advance(postings, table, column, known, chain)
    return True


def _since(table: Table, known: Described, snapshot: Snapshot) -> list[Snapshot] | None:
    """Return the ancestors of a snapshot after the described one, oldest first; None if that is no ancestor."""
    chain: list[Snapshot] = []
    for each in publish.ancestors(table, snapshot.snapshot_id):
        if each.snapshot_id == known.snapshot_id:
            return chain[::-1]
        chain.append(each)
    return None


def _describes(table: Table, known: Described, snapshot: Snapshot) -> bool:
    """Whether a snapshot is an ancestor of the described one."""
    if table.snapshot_by_id(known.snapshot_id) is None:
        return False
    return any(each.snapshot_id == snapshot.snapshot_id for each in publish.ancestors(table, known.snapshot_id))


def _build(postings: Postings, table: Table, column: str, snapshot: Snapshot) -> None:
    number = _number(snapshot)
    files: list[DataFile] = []
    for manifest in snapshot.manifests(table.io):
        files += [entry.data_file for entry in entries(manifest, table.io, discard_deleted=True)]
    _add_files(postings, table, column, [(file, number) for file in files])
    postings.describe(Described(snapshot.snapshot_id, number, number))


def _advance(postings: Postings, table: Table, column: str, known: Described, chain: Iterable[Snapshot]) -> None:
    added: dict[str, tuple[DataFile, int]] = {}
    last, first = known, known.first_sequence_number
    for snapshot in chain:
        number = _number(snapshot)
        for file, is_added in _changed_files(table, snapshot):
            if is_added:
                added[file.file_path] = file, number
            elif added.pop(file.file_path, None) is not None:
                first = number  # the file may be gone: the snapshots that had it are not described
            else:
                postings.remove(file.file_path, at=number)
        last = Described(snapshot.snapshot_id, number, first)
    _add_files(postings, table, column, list(added.values()))
    oldest = min(_number(each) for each in table.metadata.snapshots)
    postings.forget(before=oldest)
    postings.describe(last)


def _add_files(postings: Postings, table: Table, column: str, files: Sequence[tuple[DataFile, int]]) -> None:
    """Add data files, each with the sequence number of the snapshot that added it. Several are read at a time."""
    reader = _ValueReader(table, column)
    # pyiceberg's own threads serve these ones, so they are others.
    with ThreadPoolExecutor(READERS) as readers:
        for start in range(0, len(files), FILES_IN_MEMORY):
            part = files[start : start + FILES_IN_MEMORY]
            values = readers.map(reader.values, [file for file, _ in part])
            for (file, number), of_file in zip(part, values, strict=True):
                postings.add(_indexed(file), of_file, at=number)


def _changed_files(table: Table, snapshot: Snapshot) -> Iterator[tuple[DataFile, bool]]:
    """Yield the files that a snapshot removed, then those that it added, each with whether it was added."""
    changed = list(changed_entries(own_manifests(snapshot, table.io), table.io, snapshot.snapshot_id))
    for status in (ManifestEntryStatus.DELETED, ManifestEntryStatus.ADDED):
        for entry in changed:
            if entry.status is status:
                yield entry.data_file, status is ManifestEntryStatus.ADDED


def _indexed(file: DataFile) -> IndexedFile:
    values = [file.partition[place] for place in range(len(file.partition))]
    partition = json.dumps(values, default=str)
    return IndexedFile(file.file_path, file.record_count, file.file_size_in_bytes, file.spec_id, partition)


def _number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


class _ValueReader:
    """Reads the values of one column of data files."""

    def __init__(self, table: Table, column: str) -> None:
        self._column = column
        self._scan = ArrowScan(table.metadata, table.io, table.schema().select(column), ALWAYS_TRUE)

    def values(self, file: DataFile) -> set[object]:
        """Return the values that are not null, each once."""
        if file.file_format is not FileFormat.PARQUET:
            raise NotIndexable(file.file_path)
        found: set[object] = set()
        for batch in self._scan.to_record_batches([FileScanTask(file)]):
            found.update(batch.column(self._column).drop_null().unique().to_pylist())
        return found
