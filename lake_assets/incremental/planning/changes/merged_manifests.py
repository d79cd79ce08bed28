"""The entries of files that many snapshots appended, from the few manifests that their manifests were merged into.

A writer merges manifests after about a hundred appends. The newest manifest list then lacks the manifests that the
snapshots wrote themselves, and each older list names all manifests of the table once more. But an entry of a merged
manifest keeps the snapshot that added its file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile

from lake_assets.incremental.metadata.manifests import entries

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
