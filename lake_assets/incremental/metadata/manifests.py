"""The entries of manifests, as pyiceberg reads them, but what the schema of a file means is found out once.

pyiceberg does so anew for each file, which takes longer than to read the few entries of a small one. A plan over many
new snapshots reads as many small manifests: of one table, and so of one schema. Built on inner parts of pyiceberg.
"""

from __future__ import annotations

import json
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

_SCHEMAS = 256
"""So many schemas are remembered: one for each partitioning of each table."""


def entries(manifest: ManifestFile, io: FileIO, *, discard_deleted: bool) -> list[ManifestEntry]:
    """All entries of a manifest, or the live ones; `ManifestFile.fetch_manifest_entry` gives the same."""
    with _Entries(io.new_input(manifest.manifest_path)) as file:
        found = [_inherit_from_manifest(entry, manifest) for entry in file]
    return [e for e in found if not discard_deleted or e.status is not ManifestEntryStatus.DELETED]


def own_manifests(snapshot: Snapshot, io: FileIO) -> list[ManifestFile]:
    """The manifests that a snapshot wrote itself: they tell what it added and removed."""
    return [m for m in snapshot.manifests(io) if m.added_snapshot_id == snapshot.snapshot_id]


class _Entries(AvroFile[ManifestEntry]):
    def __enter__(self) -> Self:
        with self.input_file.open() as file:
            self.decoder = new_decoder(file.read())
        self.header = self._read_header()
        self.reader = _reader(self.header.meta["avro.schema"])
        return self


@lru_cache(maxsize=_SCHEMAS)
def _reader(avro_schema: str) -> Reader:
    """Reads entries of files of an Avro schema, in JSON. It keeps nothing of a file."""
    return resolve_reader(
        AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema)),
        MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
        {-1: ManifestEntry, 2: DataFile},
        {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )
