"""Reading the entries of manifests as pyiceberg does, but small ones once, and resolving each Avro schema once.

A manifest never changes. A session looks into the same small ones many times: those of the log of sessions.

pyiceberg resolves the schema again for each file, which takes longer than reading the few entries of a small manifest.
A plan over many new snapshots reads many small manifests of one schema. This module uses internal parts of pyiceberg.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Self

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    _inherit_from_manifest,
)
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from lake_assets.base.recent import Recent

CACHED_SCHEMAS = 256
"""Number of schemas in the cache. Each partitioning of each table has one."""

REMEMBERED_ENTRIES = 8_192
ENTRIES_OF_SMALL = 32
"""Most entries that are kept, some 10 MB, and most entries of a manifest that is small. Others are not kept."""

FILE_PATH_FIELD = 2147483546
"""Field id of `file_path` in a position delete file (Iceberg specification, reserved field ids)."""

_remembered: Recent[tuple[object, ...], tuple[ManifestEntry, ...]] = Recent(REMEMBERED_ENTRIES)


def entries(manifest: ManifestFile, io: FileIO, *, discard_deleted: bool) -> list[ManifestEntry]:
    """Return the entries of a manifest, equal to those of `ManifestFile.fetch_manifest_entry`.

    Args:
        manifest: The manifest to read.
        io: The table's file IO.
        discard_deleted: Whether entries of deleted files are left out.
    """
    found = []
    for entry in _all_entries(manifest, io):
        if not discard_deleted or entry.status is not ManifestEntryStatus.DELETED:
            found.append(entry)
    return found


def _all_entries(manifest: ManifestFile, io: FileIO) -> Sequence[ManifestEntry]:
    """Return the entries of a manifest. Nobody may change them: several readers share those of a small one."""
    file = io.new_input(manifest.manifest_path)
    # Its size shows whether a file that was read before is gone, or damaged since.
    key = (manifest.manifest_path, len(file), manifest.added_snapshot_id, manifest.sequence_number)
    known = _remembered.find(key)
    if known is not None:
        return known
    with _EntriesFile(file) as opened:
        found = tuple(_inherit_from_manifest(entry, manifest) for entry in opened)
    if len(found) <= ENTRIES_OF_SMALL:
        _remembered.keep(key, found, weight=1 + len(found))
    return found


def own_manifests(snapshot: Snapshot, io: FileIO) -> list[ManifestFile]:
    """Return the manifests that a snapshot wrote itself: they name the files that it added and removed."""
    return [m for m in snapshot.manifests(io) if m.added_snapshot_id == snapshot.snapshot_id]


def changed_entries(manifests: Iterable[ManifestFile], io: FileIO, snapshot_id: int) -> Iterator[ManifestEntry]:
    """Yield the entries of the data and delete files that a snapshot added or removed.

    Args:
        manifests: The manifests to read: those that the snapshot wrote.
        io: The table's file IO.
        snapshot_id: The snapshot.
    """
    for manifest in manifests:
        for entry in entries(manifest, io, discard_deleted=False):
            if entry.status is not ManifestEntryStatus.EXISTING and entry.snapshot_id == snapshot_id:
                yield entry


def named_data_file(delete: DataFile) -> str | None:
    """Return the one data file that a position delete file names by its bounds; None if it may name several."""
    if delete.content is not DataFileContent.POSITION_DELETES:
        return None
    lower = (delete.lower_bounds or {}).get(FILE_PATH_FIELD)
    upper = (delete.upper_bounds or {}).get(FILE_PATH_FIELD)
    if lower is None or lower != upper:
        return None
    return lower.decode()


class _EntriesFile(AvroFile[ManifestEntry]):
    def __enter__(self) -> Self:
        with self.input_file.open() as file:
            self.decoder = new_decoder(file.read())
        self.header = self._read_header()
        self.reader = _reader(self.header.meta["avro.schema"])
        return self


@lru_cache(maxsize=CACHED_SCHEMAS)
def _reader(avro_schema: str) -> Reader:
    """Return a reader for an Avro schema, given as JSON. A reader keeps no state of a file."""
    return resolve_reader(
        AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema)),
        MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
        {-1: ManifestEntry, 2: DataFile},
        {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )
