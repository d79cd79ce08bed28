"""Letting go of what a table once held: of its head's memory of replaced files, of old snapshots, and of their files.

Nothing here changes a row. A file is removed only if it lies under the table's own location, a committed version of the
table referred to it, and the present one does not; or if nobody ever did, and it is old. What another writer is about
to commit is neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pyarrow.fs import FileSelector, FileType
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import EMPTY_DICT

from lake_assets.base.failpoints import reach
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.metadata import publish, tables

_TOTALS = "total-"
_WRITTEN = (".parquet", ".orc", ".puffin", ".avro", ".metadata.json", ".crc")
"""What writers of Iceberg leave behind. Anything else in a table's folder is somebody's, and only told."""

_NEVER_OLD = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class ListedFile:
    """A file as it lies there. path: without its scheme, as `place` gives it."""

    path: str
    bytes: int
    modified_at: datetime


def scrub(catalog: Catalog, name: str) -> bool:
    """Take the entries of deleted files out of the head's manifests, for these still tell their bounds.

    One snapshot, a `replace`, which changes no row; none if there are no such entries. Whether there were.
    """
    for attempt in tables.retrying():
        with attempt:
            table = tables.load(catalog, name)
            head = table.snapshot_by_id(publish.main_id(table) or 0)
            if head is None or not any(_tells_deleted(m) for m in head.manifests(table.io)):
                return False
            with table.transaction() as transaction:
                _Scrub(Operation.REPLACE, transaction, table.io).commit()
            return True
    raise AssertionError("unreachable: the last attempt returns or raises")


def forget(catalog: Catalog, name: str, keep: Iterable[int]) -> int:
    """Expire every snapshot that no branch or tag names, staged ones too, but for those to keep; how many went."""
    for attempt in tables.retrying():
        with attempt:
            table = tables.load(catalog, name)
            held = {ref.snapshot_id for ref in table.metadata.refs.values()} | set(keep)
            old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in held]
            if old:
                table.maintenance.expire_snapshots().by_ids(old).commit()
            return len(old)
    raise AssertionError("unreachable: the last attempt returns or raises")


def remove_files(catalog: Catalog, name: str, *, orphaned_before: datetime) -> int:
    """Remove the files that only former versions of a table refer to, and orphans last written before a moment.

    Data files first, then manifests, then lists of manifests: so a call that was cut short is finished by the next.
    """
    table = tables.load(catalog, name)
    kept = _kept(table)
    former: dict[str, None] = {}
    for entry in table.metadata.metadata_log:
        with suppress(FileNotFoundError):
            metadata = FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
            former |= dict.fromkeys(_files_of(table.io, metadata, former=True))
    inside = place(table.location()).rstrip("/") + "/"
    gone = [path for path in _in_order(former) if place(path) not in kept and place(path).startswith(inside)]
    listed = list(listing(table.io, table.location()))
    there = {f.path for f in listed}
    paths = [path for path in gone if place(path) in there]
    for path in paths:
        remove(table.io, path)
        reach("erasure-files-half-removed")
    known = kept | {place(path) for path in paths}
    old = [f.path for f in listed if f.path.endswith(_WRITTEN) and f.modified_at < orphaned_before]
    orphans = [path for path in old if path not in known]
    for path in orphans:
        remove(table.io, path)
    return len(paths) + len(orphans)


def unreferenced(catalog: Catalog, name: str) -> list[ListedFile]:
    """The files in a table's folder, of whatever age, that its present version does not refer to.

    Some may be those of a write at work. One that is committed meanwhile is not among them: the folder is listed first.
    """
    before = tables.load(catalog, name)
    listed = list(listing(before.io, before.location()))
    kept = _kept(tables.load(catalog, name))
    return [file for file in listed if file.path not in kept]


def referenced(io: FileIO, metadata: TableMetadata, *, former: bool) -> set[str]:
    """The files that a version of a table refers to, as `place` gives them. former: those its snapshots deleted too."""
    return {place(path) for path in _files_of(io, metadata, former=former)}


def listing(io: FileIO, location: str) -> Iterator[ListedFile]:
    """Every file under a location, hidden ones too. `ConfigurationError` if the store cannot be listed."""
    if not isinstance(io, PyArrowFileIO):
        raise ConfigurationError(
            f"The files of {location} are read by {type(io).__name__}, which cannot list them.",
            remedy="Set the catalog's py-io-impl to pyiceberg.io.pyarrow.PyArrowFileIO.",
        )
    scheme, netloc, path = io.parse_location(location, io.properties)
    found = io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    for info in sorted(found, key=lambda f: f.path):
        if info.type is FileType.File:
            yield ListedFile(info.path, info.size, info.mtime or _NEVER_OLD)


def place(location: str) -> str:
    """Where a file lies, without the scheme: Spark and pyiceberg spell one file in several ways."""
    return PyArrowFileIO.parse_location(location)[2]


def sidecar(path: str) -> str:
    """The checksums that Hadoop keeps beside a local file."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


class _Scrub(_FastAppendFiles):
    """A snapshot of the same files, whose manifests know no deleted one. Built on inner parts of pyiceberg."""

    def _existing_manifests(self) -> list[ManifestFile]:
        return [m for manifest in super()._existing_manifests() if (m := self._scrubbed(manifest)) is not None]

    def _scrubbed(self, manifest: ManifestFile) -> ManifestFile | None:
        if not _tells_deleted(manifest) or manifest.content is ManifestContent.DELETES:
            return manifest  # pyiceberg writes no manifest of delete files; those tell paths, not ids
        live = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
        if not live:
            return None
        with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
            for entry in live:
                writer.add_entry(_existing(entry))
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        """Nothing came and nothing went: the totals are those of the parent."""
        parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id or 0)
        told = parent.summary.additional_properties if parent and parent.summary else {}
        totals = {name: value for name, value in told.items() if name.startswith(_TOTALS)}
        return Summary(Operation.REPLACE, **totals, **snapshot_properties)


def _tells_deleted(manifest: ManifestFile) -> bool:
    if manifest.content is ManifestContent.DELETES:
        return False
    return manifest.deleted_files_count is None or manifest.deleted_files_count > 0


def _existing(entry: ManifestEntry) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.EXISTING,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _files_of(io: FileIO, metadata: TableMetadata, *, former: bool) -> Iterator[str]:
    """Data and delete files, then manifests, then lists of manifests, then statistics, as they are spelled there.

    Of a former version some may be gone. If one of the present version is, nobody knows what it needs: that raises.
    """
    gone = (FileNotFoundError,) if former else ()
    lists = [s.manifest_list for s in metadata.snapshots if s.manifest_list]
    manifests: dict[str, ManifestFile] = {}
    for snapshot in metadata.snapshots:
        with suppress(*gone):
            manifests |= {m.manifest_path: m for m in snapshot.manifests(io)}
    for manifest in manifests.values():
        with suppress(*gone):
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=not former):
                yield entry.data_file.file_path
    yield from manifests
    yield from lists
    yield from (s.statistics_path for s in (*metadata.statistics, *metadata.partition_statistics))


def _in_order(paths: Iterable[str]) -> list[str]:
    """Of several versions together: again data files, manifests, lists, by their names as Iceberg gives them."""

    def rank(path: str) -> int:
        name = path.rpartition("/")[2]
        return 0 if not name.endswith(".avro") else 2 if name.startswith("snap-") else 1

    return sorted(paths, key=rank)


def _kept(table: Table) -> set[str]:
    """What the present version of a table refers to, with the log of its metadata, and the checksums beside it."""
    kept = referenced(table.io, table.metadata, former=False)
    kept |= {place(table.metadata_location), *(place(e.metadata_file) for e in table.metadata.metadata_log)}
    return kept | {sidecar(path) for path in kept}


def remove(io: FileIO, path: str) -> None:
    """Remove a file, if it is there, and the checksums beside it."""
    for each in (path, sidecar(place(path))):
        with suppress(FileNotFoundError):
            io.delete(each)


def head_has_deletes(table: Table) -> bool:
    """Whether rows of the head are deleted by delete files alone, so that its data files still hold them."""
    head = table.snapshot_by_id(publish.main_id(table) or 0)
    return head is not None and any(m.content is ManifestContent.DELETES for m in head.manifests(table.io))
