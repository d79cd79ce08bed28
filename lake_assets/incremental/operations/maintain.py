"""Files as a table's storage has them: listing a location, removing a file, and paths that can be compared.

Which snapshots maintenance expires, and which partitions it compacts. Pure: no table, no clock.

The planner walks from the head of main to a watermark by parent id. So a snapshot that a process needs is kept together
with all later snapshots of main: a gap would make the watermark unreachable.

The size of a table, from its metadata alone.

Removal of what a table held in the past: manifest entries of deleted files, old snapshots, and their files.

Nothing here changes a row. A file is removed only if it is under the table's own location and the table's present
version does not refer to it, and if a committed version referred to it or it is old. A file that another writer is
about to commit fulfils neither of the last two. Orphans stay while the folder also holds the metadata of another table:
they may be the rows of a table that a lost catalog had under this name.

Which snapshots of a table are still needed, according to `etl.high_watermark`.

Every process in this table counts, also one that no pipeline declares any more: it may belong to another program. A row
may be older than the state of its target, if a process died before it wrote the next one: a snapshot that expires
meanwhile costs a rebuild, and no row.

Maintenance of tables: compaction, expiry of snapshots, removal of orphans, by Iceberg's procedures.

`policy.py` decides what to do. Every step is a commit of its own and leaves a correct table, so maintenance may die
anywhere and be repeated. A session that meets a compaction is planned and staged again. After a compaction of a target,
a session without rows carries the state on: else the tag of the last session would keep the files of before. Expiry
names snapshots by id: what a process plans meanwhile starts at a watermark, and the snapshots from there to the head
are kept. Files are removed only if nothing in the table's metadata refers to them.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileSelector, FileType
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import EMPTY_DICT
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from lake_assets.base.failpoints import reach
from lake_assets.base.hours import parse_hour
from lake_assets.connections.catalog import HIGH_WATERMARK_TABLE, SESSION_TABLE
from lake_assets.errors import ConfigurationError, UsageError
from lake_assets.errors.texts import text_of
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.erasures import ERASURE
from lake_assets.incremental.engine.iceberg import (
    HIGH_WATERMARK,
    QUARANTINE,
    SESSION,
    entries,
    high_watermark_table,
    naming_damaged_file,
)
from lake_assets.incremental.engine.session_log import FORGETS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LOCAL = "file"
_NEVER_OLD = datetime.max.replace(tzinfo=UTC)
"""Modification time of a file for which the storage has none: such a file is never old enough to be removed."""


@dataclass(frozen=True)
class ListedFile:
    """A file that a listing returned.

    Attributes:
        path: Without scheme, as `bare_path` returns it. To be compared.
        location: As the file IO opens it. In an object store, a path alone would be one of this machine.
        bytes: Its size.
        modified_at: When it was last written, with a time zone.
    """

    path: str
    location: str
    bytes: int
    modified_at: datetime


def list_files(io: FileIO, location: str) -> Iterator[ListedFile]:
    """Yield every file under a location by path, including hidden ones; none if the location does not exist.

    Raises:
        ConfigurationError: The catalog's file IO cannot list files.
    """
    if not isinstance(io, PyArrowFileIO):
        raise ConfigurationError(
            f"The files of {location} are read by {type(io).__name__}, which cannot list them.",
            remedy="Set the catalog's py-io-impl to pyiceberg.io.pyarrow.PyArrowFileIO.",
        )
    scheme, netloc, path = io.parse_location(location, io.properties)
    selector = FileSelector(path, recursive=True, allow_not_found=True)
    found = io.fs_by_scheme(scheme, netloc).get_file_info(selector)
    before = location.removesuffix(path.removeprefix(netloc)) if scheme != _LOCAL else ""
    for info in sorted(found, key=lambda each: each.path):
        if info.type is FileType.File:
            address = before + info.path.removeprefix(netloc) if before else info.path
            yield ListedFile(info.path, address, info.size, info.mtime or _NEVER_OLD)


def bare_path(location: str) -> str:
    """Return a file's path without its scheme, because Spark and pyiceberg write the scheme in different ways."""
    return PyArrowFileIO.parse_location(location)[2]


def is_local(location: str) -> bool:
    """Return whether a location is a path of this machine."""
    return PyArrowFileIO.parse_location(location)[0] == _LOCAL


def checksum_path(path: str) -> str:
    """Return the path of the checksum file that Hadoop keeps next to a local file."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def read_bytes(io: FileIO, path: str) -> bytes:
    """Return the content of a file."""
    with io.new_input(path).open() as opened:
        return opened.read()


def remove_file(io: FileIO, path: str) -> None:
    """Remove a file, and on this machine its checksum file, if they exist."""
    checksum = [checksum_path(bare_path(path))] if is_local(path) else []
    for each in (path, *checksum):
        with suppress(FileNotFoundError):
            io.delete(each)


@dataclass(frozen=True)
class Policy:
    """How much maintenance keeps, and when it rewrites.

    Attributes:
        retain: Snapshots younger than this are kept.
        newest: How many of main's newest snapshots are kept, however old they are.
        orphan_age: Files that nothing refers to are removed when they are older; no writer takes longer than this to
            commit its files. Iceberg refuses less than a day.
        compact_files: Number of small data files from which on a partition is compacted.
        small_bytes: Data files below this size are small.
        target_bytes: Size of the files that a compaction writes.
        many_manifests: A head with more small manifests than this gets its manifests rewritten.
    """

    retain: timedelta = timedelta(days=3)
    newest: int = 10
    orphan_age: timedelta = timedelta(days=3)
    compact_files: int = 5
    small_bytes: int = 96 * 1024 * 1024
    target_bytes: int = 128 * 1024 * 1024
    many_manifests: int = 20


@dataclass(frozen=True)
class Link:
    """A snapshot in the history of a table.

    Attributes:
        snapshot_id: Its id.
        parent_id: Id of its parent; None for the first snapshot.
        committed_at_ms: When it was committed, in milliseconds since 1970-01-01 UTC.
    """

    snapshot_id: int
    parent_id: int | None
    committed_at_ms: int


def snapshots_to_expire(
    links: Sequence[Link],
    main: int | None,
    pinned: Collection[int],
    *,
    young_ms: int,
    newest: int,
) -> tuple[int, ...]:
    """Return the snapshots that nothing needs any more, in the order of `links`.

    The kept part of main has no gap: it goes from the head to the oldest snapshot that is pinned, young or among the
    newest.

    Args:
        links: All snapshots of the table.
        main: Head of main, which is always kept; None if main has no snapshot.
        pinned: Ids that watermarks, sessions, branches and tags name; ids of snapshots that are gone do no harm.
        young_ms: Snapshots committed at this moment or later are kept, in milliseconds since 1970-01-01 UTC.
        newest: How many snapshots of main are kept, counted from its head.
    """
    needed = {link.snapshot_id for link in links if link.snapshot_id in pinned or link.committed_at_ms >= young_ms}
    chain = list(_ancestors(links, main))
    length = min(len(chain), max(1, newest))
    for position, snapshot_id in enumerate(chain):
        if snapshot_id in needed:
            length = max(length, position + 1)
    kept = needed.union(chain[:length])
    return tuple(link.snapshot_id for link in links if link.snapshot_id not in kept)


def partitions_to_compact(
    files: Iterable[tuple[Hashable, int]], *, small_bytes: int, min_files: int
) -> Mapping[Hashable, int]:
    """Return the partitions with at least `min_files` small data files, but not fewer than two.

    Args:
        files: The partition and the size in bytes of each data file.
        small_bytes: Data files below this size are small.
        min_files: Number of small files from which on a partition is compacted.

    Returns:
        Partition → number of its small files.
    """
    small = Counter(partition for partition, size in files if size < small_bytes)
    return {partition: count for partition, count in small.items() if count >= max(2, min_files)}


def _ancestors(links: Sequence[Link], main: int | None) -> Iterator[int]:
    """Yield the snapshots of main that still exist, newest first."""
    parents = {link.snapshot_id: link.parent_id for link in links}
    current = main
    while current is not None and current in parents:
        yield current
        current = parents[current]


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
    for attempt in iceberg.retrying():
        with attempt:
            table = iceberg.load(catalog, name)
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
    for attempt in iceberg.retrying():
        with attempt:
            table = iceberg.load(catalog, name)
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
    table = iceberg.load(catalog, name)
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
    before = iceberg.load(catalog, name)
    listed = list(list_files(before.io, before.location()))
    kept = _kept_paths(iceberg.load(catalog, name))
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


Row = Mapping[str, Any]

_COLUMNS = (
    "process_name",
    "source",
    "revision",
    "table_uuid",
    "latest_snapshot_id",
    "previous_snapshot_id",
    "complete_through",
    "session_id",
    "metadata",
    "target_snapshot_id",
)


@dataclass(frozen=True)
class SnapshotReferences:
    """What all processes refer to.

    Attributes:
        watermarks: Newest rows of `etl.high_watermark`: one for each process and source.
    """

    watermarks: tuple[Row, ...]

    def complete_through(self, name: str) -> int | None:
        """Return the last hour through which a table was complete, as its sessions or its readers recorded it."""
        keys = []
        for watermark in self.watermarks:
            if watermark["source"] == name:
                keys.append(watermark["complete_through"])
            if watermark["process_name"] == name:
                keys.append(json.loads(watermark["metadata"]).get("complete_through"))
        hours = [parse_hour(key) for key in keys if key is not None]
        return max(hours, default=None)

    def pinned(self, table: Table, name: str) -> frozenset[int]:
        """Return the ids of the snapshots of a table that must not expire.

        These are the snapshots that
        - a watermark names, at present or before its last move, or as the one after which rows wait,
        - a process published last,
        - a branch or tag names: also the tag that every session of a target moves.
        """
        ids = {ref.snapshot_id for ref in table.metadata.refs.values()}
        ids.update(self._at_watermarks(name))
        ids.update(self._published(name))
        return frozenset(ids)

    def next_reads(self, name: str) -> dict[int, str]:
        """Return the snapshots of a table that are the start of the next read: id → the process at whose watermark."""
        processes = {}
        for watermark in self.watermarks:
            if watermark["source"] == name and watermark["latest_snapshot_id"] is not None:
                processes[watermark["latest_snapshot_id"]] = watermark["process_name"]
        return processes

    def _at_watermarks(self, name: str) -> Iterator[int]:
        for watermark in self.watermarks:
            if watermark["source"] == name:
                yield from _known(watermark["latest_snapshot_id"], watermark["previous_snapshot_id"])
                for deferred in json.loads(watermark["metadata"]).get("deferred", ()):
                    yield from _known(deferred.get("after"))

    def _published(self, name: str) -> Iterator[int]:
        for watermark in self.watermarks:
            if watermark["process_name"] == name:
                published = json.loads(watermark["metadata"]).get("published_snapshot_id")
                yield from _known(published, watermark.get("target_snapshot_id"))


def read_references(catalog: Catalog) -> SnapshotReferences:
    """Return the present references of all processes.

    Read a table's metadata before calling this: then they include every session that was committed on that metadata.
    """
    return SnapshotReferences(_newest(catalog, high_watermark_table(catalog), _COLUMNS))


def _newest(catalog: Catalog, name: str, columns: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows of each process's newest revision. A table of an older version lacks some columns."""
    with naming_damaged_file(catalog, name, repair=FORGETS):
        table = iceberg.load(catalog, name)
        present = [column for column in columns if column in table.schema().column_names]
        scan = table.scan(selected_fields=tuple(present))
        rows: list[Row] = scan.to_arrow().to_pylist()
    newest: dict[str, int] = {}
    for row in rows:
        process = row["process_name"]
        newest[process] = max(row["revision"], newest.get(process, 0))
    return tuple(row for row in rows if row["revision"] == newest[row["process_name"]])


def _known(*snapshot_ids: int | None) -> Iterator[int]:
    for snapshot_id in snapshot_ids:
        if snapshot_id is not None:
            yield snapshot_id


ENGINE_TABLES = (SESSION, HIGH_WATERMARK, QUARANTINE, ERASURE)
"""The engine's own tables, unless settings name the first two."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SMALL_MANIFEST_BYTES = 4 * 1024 * 1024
"""Half of the size to which Iceberg fills a manifest by default."""

ATTEMPTS = 5
"""How often a step is tried if other writers commit meanwhile: the engine's log tables switch Iceberg's retries off."""


@dataclass(frozen=True)
class MaintenanceReport:
    """What maintenance did to one table, or would do.

    Attributes:
        table: Its full name.
        dry_run: Whether nothing was changed; then `after` equals `before`.
        before: Figures before maintenance.
        after: Figures after maintenance.
        partitions_compacted: Number of partitions that were chosen for compaction.
        manifests_rewritten: Whether the manifests of the head were rewritten.
        snapshots_expired: Number of expired snapshots.
        orphans_removed: Number of removed files that nothing referred to.
        seconds: Wall time of each step.
        notes: What a person should know, in sentences.
    """

    table: str
    dry_run: bool
    before: Figures
    after: Figures
    partitions_compacted: int = 0
    manifests_rewritten: bool = False
    snapshots_expired: int = 0
    orphans_removed: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Maintainer:
    """Maintains the tables of a pipeline and the engine's own tables.

    Args:
        catalog: The catalog of the tables.
        pipeline: Declares raw tables and targets.
        clock: The present moment, for the age of snapshots and files.
        spark: Called when there is something to do, not before.
        policy: What is kept; None for the defaults.
    """

    def __init__(
        self,
        catalog: Catalog,
        pipeline: Pipeline,
        *,
        clock: Callable[[], datetime],
        spark: Callable[[], SparkSession],
        policy: Policy | None = None,
    ) -> None:
        self.catalog = catalog
        self.pipeline = pipeline
        self.clock = clock
        self.spark = spark
        self.policy = policy or Policy()

    def table(self, name: str) -> str:
        """Return the full name of a table.

        Args:
            name: The table's full name, or its name without namespace.

        Raises:
            UsageError: No table, or more than one, has this name.
        """
        known = tables_of(self.pipeline, self.catalog.properties)
        wanted = name.replace("/", ".")
        raw = self.pipeline.raw_table(wanted)
        if raw is not None and raw.exists_already:
            raise UsageError(
                f"{wanted} belongs to the program that has created it, and is not maintained here.",
                remedy="Maintain it with that program. The declaration names no columns of it.",
            )
        found = [table for table in known if table == wanted or table.split(".")[1] == wanted]
        if len(found) != 1:
            raise UsageError(f"There is no table {name!r}.", remedy=f"Name one of: {', '.join(known)}.")
        return found[0]

    def maintain(self, name: str, *, dry_run: bool = False) -> MaintenanceReport:
        """Compact a table, expire its snapshots and remove its orphans.

        Args:
            name: As for `table`.
            dry_run: Report what would be done and change nothing.

        Raises:
            TableMissing: The catalog does not have the table.
            UsageError: No table has this name.
        """
        return _TableMaintenance(self, self.table(name), dry_run).run()

    def carry(self, name: str) -> None:
        """Carry the state of a target on; nothing if the table is no target."""
        from lake_assets.incremental.engine.engine import Engine

        engine = Engine(self.catalog, self.pipeline, clock=self.clock)
        for target in self.pipeline.targets:
            if target.table == name and engine.problem(target) is None:
                engine.carry(target, why="maintenance", run_id="maintenance")


def engine_tables(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the engine's own tables in a catalog with these properties."""
    session, high_watermark, *others = ENGINE_TABLES
    return properties.get(SESSION_TABLE, session), properties.get(HIGH_WATERMARK_TABLE, high_watermark), *others


def tables_of(pipeline: Pipeline, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return all tables to maintain: raw tables, targets, and the engine's own in a catalog with these properties.

    A table that another program has created is left to that program, whose readers and settings nobody here knows.
    """
    raw_tables = [raw.table for raw in pipeline.raw if not raw.exists_already]
    targets = [target.table for target in pipeline.targets]
    return (*raw_tables, *targets, *engine_tables(properties))


class _TableMaintenance:
    """One maintenance of one table."""

    def __init__(self, maintainer: Maintainer, name: str, dry_run: bool) -> None:
        self.catalog = maintainer.catalog
        self.policy = maintainer.policy
        self.spark = maintainer.spark
        self.name = name
        self.dry_run = dry_run
        self.carry_state = maintainer.carry
        self.now = maintainer.clock()
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []

    def run(self) -> MaintenanceReport:
        before = table_figures(self.load())
        with self.timed("rewrite"):
            partitions, rewritten = self.rewrite()
        with self.timed("expire"):
            expired = self.expire_snapshots()
        with self.timed("orphans"):
            orphans = self.remove_orphans()
        return MaintenanceReport(
            table=self.name,
            dry_run=self.dry_run,
            before=before,
            after=before if self.dry_run else table_figures(self.load()),
            partitions_compacted=partitions,
            manifests_rewritten=rewritten,
            snapshots_expired=expired,
            orphans_removed=orphans,
            seconds=self.seconds,
            notes=tuple(self.notes),
        )

    def rewrite(self) -> tuple[int, bool]:
        """Compact data files and rewrite manifests, if needed; a table that needs neither gets no commit.

        Returns:
            The number of compacted partitions, and whether manifests were rewritten.
        """
        partitions = len(self.partitions_to_compact())
        if not partitions and not self.has_many_manifests():
            self.carry()
            return 0, False
        if partitions:
            self.call("rewrite_data_files", f"options => map({self.compaction_options()})")
        has_many_manifests = self.has_many_manifests()  # a compaction adds some of its own
        if has_many_manifests:
            self.call("rewrite_manifests")
        self.carry()
        return partitions, has_many_manifests

    def carry(self) -> None:
        """Let the tag of a target's last session go of files that a compaction has replaced, by whomever."""
        if not self.dry_run and publish.lags_behind(self.load()):
            self.carry_state(self.name)

    def has_many_manifests(self) -> bool:
        """Return whether the head has many small manifests; a large table keeps many full ones after any rewrite."""
        manifests = head_manifests(self.load())
        small = [manifest for manifest in manifests if manifest.manifest_length < SMALL_MANIFEST_BYTES]
        return len(small) > self.policy.many_manifests

    def partitions_to_compact(self) -> Mapping[object, int]:
        table = self.load()
        files = []
        for file in files_of(table, head_manifests(table)):
            if file.content is DataFileContent.DATA:
                partition = (file.spec_id, str(file.partition))
                files.append((partition, file.file_size_in_bytes))
        return partitions_to_compact(
            files,
            small_bytes=self.policy.small_bytes,
            min_files=self.policy.compact_files,
        )

    def compaction_options(self) -> str:
        options = {
            "min-input-files": self.policy.compact_files,
            "min-file-size-bytes": self.policy.small_bytes,
            "target-file-size-bytes": self.policy.target_bytes,
        }
        return ", ".join(f"'{name}', '{value}'" for name, value in options.items())

    def expire_snapshots(self) -> int:
        """Expire old snapshots and return how many. The procedure's own age limit is off: only named ones expire."""
        table = self.load()  # before the references: see `read_references`
        ids = self.old_snapshots(table, read_references(self.catalog))
        if ids:
            listed = ", ".join(f"{snapshot_id}L" for snapshot_id in ids)
            older_than = _timestamp_literal(_EPOCH)
            self.call("expire_snapshots", f"snapshot_ids => array({listed}), older_than => {older_than}")
        return len(ids)

    def old_snapshots(self, table: Table, references: SnapshotReferences) -> tuple[int, ...]:
        links = [
            Link(snapshot.snapshot_id, snapshot.parent_snapshot_id, snapshot.timestamp_ms)
            for snapshot in table.metadata.snapshots
        ]
        young_since = self.now - self.policy.retain
        return snapshots_to_expire(
            links,
            publish.main_id(table),
            references.pinned(table, self.name),
            young_ms=int(young_since.timestamp() * 1000),
            newest=self.policy.newest,
        )

    def remove_orphans(self) -> int:
        """Remove the old files that nothing refers to, which dead writers and expiry without Spark leave behind.

        Returns:
            How many files were removed.
        """
        table = self.load()
        former = former_tables(table)
        if former:
            listed = ", ".join(sorted(former.values()))
            self.notes.append(
                f"Orphans were not removed, because {table.location()} also holds another table's metadata: {listed}. "
                "If that table is not needed, delete these files; otherwise move its files away, or register it."
            )
            return 0
        older_than = _timestamp_literal(self.now - self.policy.orphan_age)
        dry_run = str(self.dry_run).lower()
        # Of an object store, Iceberg's own client lists the files. By default Spark looks for one of Hadoop's.
        lists_itself = str(not is_local(table.location())).lower()
        arguments = f"older_than => {older_than}, dry_run => {dry_run}, prefix_listing => {lists_itself}"
        return len(self.call("remove_orphan_files", arguments, also_dry=True))

    def call(self, procedure: str, arguments: str = "", *, also_dry: bool = False) -> list[Any]:
        """Call one of Iceberg's procedures and return its rows; none in a dry run, unless `also_dry`.

        The SQL text contains only declared names and numbers.
        """
        if self.dry_run and not also_dry:
            return []
        more = f", {arguments}" if arguments else ""
        sql = f"CALL lake.system.{procedure}(table => 'lake.{self.name}'{more})"
        for attempt in Retrying(
            retry=retry_if_exception(_is_conflict),
            wait=wait_random_exponential(multiplier=0.2, max=5),
            stop=stop_after_attempt(ATTEMPTS),
            reraise=True,
        ):
            with attempt:
                return list(self.spark().sql(sql).collect())
        raise AssertionError("unreachable: the last attempt returns or raises")

    def load(self) -> Table:
        return iceberg.load(self.catalog, self.name)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = time.perf_counter() - began


def _is_conflict(error: BaseException) -> bool:
    """Return whether another writer's commit came first. Spark passes Iceberg's error on as text."""
    return any(name in text_of(error) for name in ("CommitFailedException", "ValidationException"))


def _timestamp_literal(moment: datetime) -> str:
    """Return a SQL literal that does not depend on the time zone of the session."""
    return f"TIMESTAMP '{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}+00:00'"
