"""Removal of what a table held in the past: manifest entries of deleted files, old snapshots, and their files.

Nothing here changes a row. A file is removed only if it is under the table's own location and the table's present
version does not refer to it, and if a committed version referred to it or it is old. A file that another writer is
about to commit fulfils neither of the last two. Orphans stay while the folder also holds the metadata of another table:
they may be the rows of a table that a lost catalog had under this name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import EMPTY_DICT

from lake_assets.base.failpoints import reach
from lake_assets.incremental.maintenance.figures import head_manifests
from lake_assets.incremental.maintenance.stored_files import (
    ListedFile,
    bare_path,
    checksum_path,
    list_files,
    remove_file,
)
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.manifests import entries

_TOTALS = "total-"
"""Prefix of the summary properties that count a whole table."""

_METADATA_SUFFIX = ".metadata.json"
_ICEBERG_SUFFIXES = (".parquet", ".orc", ".puffin", ".avro", _METADATA_SUFFIX, ".crc")
"""Suffixes of the files that Iceberg's writers leave. Other files in a table's folder are never removed."""


def drop_deleted_entries(catalog: Catalog, name: str) -> bool:
    """Remove the entries of deleted files from the manifests of the head, because they contain the files' bounds.

    This commits one `replace` snapshot, which changes no row.

    Returns:
        Whether there were such entries.
    """
    for attempt in tables.retrying():
        with attempt:
            table = tables.load(catalog, name)
            if not any(map(_has_deleted_entries, head_manifests(table))):
                return False
            with table.transaction() as transaction:
                _DropDeletedEntries(Operation.REPLACE, transaction, table.io).commit()
            return True
    raise AssertionError("unreachable: the last attempt returns or raises")


def expire_snapshots_except(catalog: Catalog, name: str, keep: Iterable[int]) -> int:
    """Expire all snapshots, including staged ones, except the heads of branches and tags and those to keep.

    Returns:
        How many snapshots were expired.
    """
    for attempt in tables.retrying():
        with attempt:
            table = tables.load(catalog, name)
            ids = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
            heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
            old = sorted(ids.difference(heads, keep))
            if old:
                table.maintenance.expire_snapshots().by_ids(old).commit()
            return len(old)
    raise AssertionError("unreachable: the last attempt returns or raises")


def remove_unreferenced_files(catalog: Catalog, name: str, *, orphaned_before: datetime) -> int:
    """Remove the files that only former versions of a table refer to, and old orphans.

    Data files are removed first, then manifests, then manifest lists, so that the next call finishes one that died.

    Args:
        catalog: The table's catalog.
        name: The table.
        orphaned_before: Orphans that were last written before this moment are removed, if the folder holds no metadata
            of another table.

    Returns:
        How many files were removed.
    """
    table = tables.load(catalog, name)
    kept = _kept_paths(table)
    former = _former_files(table)
    listed = list(list_files(table.io, table.location()))
    existing = {file.path for file in listed}
    removed = _remove_former(table, former, removable=existing - kept)
    known = kept | {bare_path(path) for path in removed}
    orphans = []
    if not former_tables(table, listed, kept):
        orphans = [file for file in listed if file.path not in known and _is_old(file, orphaned_before)]
    for orphan in orphans:
        remove_file(table.io, orphan.location)
    return len(removed) + len(orphans)


def _remove_former(table: Table, former: Iterable[str], *, removable: Collection[str]) -> set[str]:
    """Remove the files that are removable, under the table's location. Return the paths of those removed.

    removable: as `bare_path` returns them.
    """
    inside = bare_path(table.location()).rstrip("/") + "/"
    removed = set()
    for path in _in_order_of_removal(former):
        bare = bare_path(path)
        if bare in removable and bare.startswith(inside):
            remove_file(table.io, path)
            reach("erasure-files-half-removed")
            removed.add(path)
    return removed


def _is_old(file: ListedFile, orphaned_before: datetime) -> bool:
    return file.path.endswith(_ICEBERG_SUFFIXES) and file.modified_at < orphaned_before


def unreferenced_files(catalog: Catalog, name: str) -> list[ListedFile]:
    """Return the files in a table's folder, of whatever age, that its present version does not refer to.

    They include files of a writer that has not committed yet. A file that is committed meanwhile is left out, because
    the folder is listed before the metadata is read.
    """
    before = tables.load(catalog, name)
    listed = list(list_files(before.io, before.location()))
    kept = _kept_paths(tables.load(catalog, name))
    return [file for file in listed if file.path not in kept]


def former_tables(
    table: Table,
    listed: Iterable[ListedFile] | None = None,
    kept: Collection[str] | None = None,
) -> dict[str, str]:
    """Return the other tables whose metadata is in a table's folder: a lost catalog, or a drop, left them there.

    Args:
        table: The table.
        listed: The files of the folder; None to list its metadata.
        kept: The files that the table refers to, as `bare_path` returns them; None for its metadata files.

    Returns:
        Uuid of a table → path of one of its metadata files.
    """
    found: dict[str, str] = {}
    referenced = _metadata_paths(table) if kept is None else kept
    for file in list_files(table.io, f"{table.location()}/metadata") if listed is None else listed:
        if file.path.endswith(_METADATA_SUFFIX) and file.path not in referenced:
            # A writer that died may have left a damaged file, which belongs to no table.
            with suppress(OSError, ValueError, ValidationError):
                metadata = FromInputFile.table_metadata(table.io.new_input(file.location))
                if metadata.snapshots:  # an empty table has nothing to lose
                    found[str(metadata.table_uuid)] = file.location
    found.pop(str(table.metadata.table_uuid), None)
    return found


def referenced_paths(io: FileIO, metadata: TableMetadata, *, former: bool) -> set[str]:
    """Return the files that a version of a table refers to, as `bare_path` returns them.

    Args:
        io: Reads manifests.
        metadata: A version of the table.
        former: Whether it is a former version: it may lack manifests, and files that its snapshots deleted count too.
    """
    return {bare_path(path) for path in _files_of(io, metadata, former=former)}


def head_has_delete_files(table: Table) -> bool:
    """Return whether delete files hide rows of the head, so that its data files still contain these rows."""
    return any(manifest.content is ManifestContent.DELETES for manifest in head_manifests(table))


class _DropDeletedEntries(_FastAppendFiles):
    """A snapshot of the same files, whose manifests have no entry of a deleted one. Uses private parts of pyiceberg."""

    def _existing_manifests(self) -> list[ManifestFile]:
        manifests = []
        for manifest in super()._existing_manifests():
            rewritten = self._without_deleted(manifest)
            if rewritten is not None:
                manifests.append(rewritten)
        return manifests

    def _without_deleted(self, manifest: ManifestFile) -> ManifestFile | None:
        if not _has_deleted_entries(manifest):
            return manifest
        live = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
        if not live:
            return None
        with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
            for entry in live:
                writer.add_entry(_existing(entry))
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        """Return the totals of the parent, because no file was added or removed."""
        parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id or 0)
        properties = parent.summary.additional_properties if parent and parent.summary else {}
        totals = {}
        for name, value in properties.items():
            if name.startswith(_TOTALS):
                totals[name] = value
        return Summary(Operation.REPLACE, **totals, **snapshot_properties)


def _has_deleted_entries(manifest: ManifestFile) -> bool:
    if manifest.content is ManifestContent.DELETES:
        return False  # pyiceberg cannot write manifests of delete files; their entries contain paths, not ids
    return manifest.deleted_files_count is None or manifest.deleted_files_count > 0


def _existing(entry: ManifestEntry) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.EXISTING,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _former_files(table: Table) -> list[str]:
    """Return the files of all former versions of a table whose metadata still exists, each once."""
    paths: dict[str, None] = {}
    for entry in table.metadata.metadata_log:
        with suppress(FileNotFoundError):
            metadata = FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
            paths |= dict.fromkeys(_files_of(table.io, metadata, former=True))
    return list(paths)


def _files_of(io: FileIO, metadata: TableMetadata, *, former: bool) -> Iterator[str]:
    """Yield data and delete files, then manifests, manifest lists and statistics, as the metadata names them.

    Manifests of a former version may be gone. If one of the present version is gone, nobody knows which files it
    refers to, and `FileNotFoundError` is raised.
    """
    may_be_gone = (FileNotFoundError,) if former else ()
    manifests = _manifests_of(io, metadata, may_be_gone)
    for manifest in manifests.values():
        with suppress(*may_be_gone):
            for entry in entries(manifest, io, discard_deleted=not former):
                yield entry.data_file.file_path
    yield from manifests
    for snapshot in metadata.snapshots:
        if snapshot.manifest_list:
            yield snapshot.manifest_list
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        yield statistics.statistics_path


def _manifests_of(
    io: FileIO,
    metadata: TableMetadata,
    may_be_gone: Iterable[type[FileNotFoundError]],
) -> dict[str, ManifestFile]:
    """Return path → manifest, for the manifests of all snapshots."""
    manifests: dict[str, ManifestFile] = {}
    for snapshot in metadata.snapshots:
        with suppress(*may_be_gone):
            for manifest in snapshot.manifests(io):
                manifests[manifest.manifest_path] = manifest
    return manifests


def _in_order_of_removal(paths: Iterable[str]) -> list[str]:
    """Sort the files of several versions: data files, manifests, manifest lists, by the names that Iceberg gives."""

    def rank(path: str) -> int:
        name = path.rpartition("/")[2]
        if not name.endswith(".avro"):
            return 0
        return 2 if name.startswith("snap-") else 1

    return sorted(paths, key=rank)


def _kept_paths(table: Table) -> set[str]:
    """Return the files of a table's present version, with its metadata log, and their checksum files."""
    kept = referenced_paths(table.io, table.metadata, former=False) | _metadata_paths(table)
    return kept | {checksum_path(path) for path in kept}


def _metadata_paths(table: Table) -> set[str]:
    """Return the metadata files of a table's present version and of its log."""
    log = {bare_path(entry.metadata_file) for entry in table.metadata.metadata_log}
    return log | {bare_path(table.metadata_location)}
