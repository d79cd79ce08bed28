"""The size of a table, from its metadata alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.incremental.metadata.manifests import entries


@dataclass(frozen=True)
class Figures:
    """The size of a table.

    Attributes:
        files: Number of data and delete files of the head.
        bytes: Their size.
        stored_files: Number of data and delete files of all snapshots together, including staged ones.
        stored_bytes: Their size: what the table takes on disk.
        snapshots: Number of snapshots.
        manifests: Number of manifests of the head.
    """

    files: int
    bytes: int
    stored_files: int
    stored_bytes: int
    snapshots: int
    manifests: int


def table_figures(table: Table) -> Figures:
    """Return the present size of a table. Reads each manifest of its snapshots once."""
    head = head_manifests(table)
    stored: dict[str, ManifestFile] = {}
    for snapshot in table.metadata.snapshots:
        for manifest in _manifests(table, snapshot):
            stored[manifest.manifest_path] = manifest
    live_sizes = _sizes(table, head)
    stored_sizes = _sizes(table, stored.values())
    return Figures(
        files=len(live_sizes),
        bytes=sum(live_sizes.values()),
        stored_files=len(stored_sizes),
        stored_bytes=sum(stored_sizes.values()),
        snapshots=len(table.metadata.snapshots),
        manifests=len(head),
    )


def head_manifests(table: Table) -> list[ManifestFile]:
    """Return the manifests of a table's head; none if it has no snapshot."""
    return _manifests(table, table.current_snapshot())


def files_of(table: Table, manifests: Iterable[ManifestFile]) -> Iterator[DataFile]:
    """Yield the data and delete files that manifests list, without deleted ones."""
    for manifest in manifests:
        for entry in entries(manifest, table.io, discard_deleted=True):
            yield entry.data_file


def _manifests(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    return snapshot.manifests(table.io) if snapshot else []


def _sizes(table: Table, manifests: Iterable[ManifestFile]) -> dict[str, int]:
    return {file.file_path: file.file_size_in_bytes for file in files_of(table, manifests)}
