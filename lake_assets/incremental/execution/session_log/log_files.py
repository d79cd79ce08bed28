"""The data files of a log table, by process. Manifests and metadata files never change, so each is read once.

All processes share a log table: without this, each of hundreds of processes would read the manifests of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.types import PrimitiveType

from lake_assets.base.recent import Recent
from lake_assets.incremental.metadata.manifests import entries

KNOWN_TABLES = 8
"""Log tables of which a process remembers the files; a catalog has two that are read often."""


@dataclass(frozen=True)
class LogFile:
    """One data file of a log table.

    Attributes:
        process: The process whose rows it has.
        path: Where it is.
        rows: How many rows it has.
        first: The least revision in it; None if its bounds do not tell.
        last: The greatest revision in it; None if its bounds do not tell.
    """

    process: str
    path: str
    rows: int
    first: int | None
    last: int | None


@dataclass
class _Known:
    """The files of one log table, of its newest state that was read."""

    location: str = ""
    by_process: Mapping[str, Sequence[LogFile]] | None = None
    by_manifest: Mapping[str, Sequence[LogFile]] = field(default_factory=dict)


_known: Recent[str, _Known] = Recent(KNOWN_TABLES)


def files_by_process(table: Table) -> Mapping[str, Sequence[LogFile]] | None:
    """Return process → its data files; None if another program has rewritten the table in a form of its own."""
    uuid = str(table.metadata.table_uuid)
    known = _known.find(uuid) or _Known()
    if known.location != table.metadata_location:
        known = _read(table, known.by_manifest)
        _known.keep(uuid, known)
    return known.by_process


def _read(table: Table, before: Mapping[str, Sequence[LogFile]]) -> _Known:
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    if not all(map(_is_own, manifests)):
        return _Known(table.metadata_location)
    found: dict[str, list[LogFile]] = {}
    by_manifest: dict[str, Sequence[LogFile]] = {}
    # A scan would evaluate the filter file by file; the partition value alone is enough.
    for manifest in manifests:
        path = manifest.manifest_path
        by_manifest[path] = before.get(path) or _files(table, manifest)
        for file in by_manifest[path]:
            found.setdefault(file.process, []).append(file)
    return _Known(table.metadata_location, found, by_manifest)


def _is_own(manifest: ManifestFile) -> bool:
    return manifest.content is ManifestContent.DATA and manifest.partition_spec_id == 0


def _files(table: Table, manifest: ManifestFile) -> list[LogFile]:
    live = entries(manifest, table.io, discard_deleted=True)
    return [_log_file(table, entry.data_file) for entry in live]


def _log_file(table: Table, file: DataFile) -> LogFile:
    return LogFile(
        process=file.partition[0],
        path=file.file_path,
        rows=file.record_count,
        first=_revision(table, file.lower_bounds),
        last=_revision(table, file.upper_bounds),
    )


def _revision(table: Table, bounds: Mapping[int, bytes] | None) -> int | None:
    column = table.schema().find_field("revision")
    encoded = (bounds or {}).get(column.field_id)
    if encoded is None:
        return None
    return cast("int", from_bytes(cast("PrimitiveType", column.field_type), encoded))
