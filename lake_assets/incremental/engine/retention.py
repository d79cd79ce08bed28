"""Which snapshots of a table are still needed, and the files that only others refer to. Changes no row.

Sessions keep the history of the tables that they read and write short; maintenance and erasures expire and remove by
the same functions. All of it reads and writes metadata alone, may die anywhere, and may be repeated.

A snapshot that a process needs is kept together with all later snapshots of main, because the planner walks from the
head of main to a watermark by parent id. What a process plans meanwhile starts at a watermark, too.

A file is removed only if it is under the table's own location and the table's present version does not refer to it,
and if a former version referred to it or it is old. A file that another writer is about to commit fulfils neither of
the last two. Orphans stay while the folder also holds the metadata of another table: they may be the rows of a table
that a lost catalog had under this name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyarrow.fs import FileSelector, FileType
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate, TableRequirement
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import EMPTY_DICT

from lake_assets.base.failpoints import reach
from lake_assets.base.hours import parse_hour
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.iceberg import (
    changed_entries,
    entries,
    high_watermark_table,
    naming_damaged_file,
)
from lake_assets.incremental.engine.session_log import FORGETS

# Files of a table's storage

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


def read_bytes(io: FileIO, path: str) -> bytes:
    """Return the content of a file."""
    with io.new_input(path).open() as opened:
        return opened.read()


def remove_file(io: FileIO, location: str) -> None:
    """Remove a file, and before it the checksum file that Hadoop keeps next to a local one, if they exist."""
    scheme, _, path = PyArrowFileIO.parse_location(location)
    folder, _, name = path.rpartition("/")
    checksum = [f"{folder}/.{name}{_CHECKSUM}"] if scheme == _LOCAL else []
    for each in (*checksum, location):
        with suppress(FileNotFoundError):
            io.delete(each)


_CHECKSUM = ".crc"
_METADATA = ".metadata.json"
_ICEBERG_SUFFIXES = (".parquet", ".orc", ".puffin", ".avro", _METADATA)
"""Suffixes of the files that Iceberg's writers leave. Other files in a table's folder are never removed."""


# What the metadata of a table refer to


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


@dataclass(frozen=True)
class Inventory:
    """The files that a version of a table refers to, by their paths as `bare_path` returns them.

    Attributes:
        paths: Data and delete files, manifests, manifest lists and statistics; no metadata files.
        manifests: The manifests among them.
        figures: The size of the table.
    """

    paths: frozenset[str]
    manifests: frozenset[str]
    figures: Figures


def inventory(io: FileIO, metadata: TableMetadata, *, former: bool = False, known: Collection[str] = ()) -> Inventory:
    """Return the files that a version of a table refers to. Reads each manifest of its snapshots once.

    Args:
        io: Reads manifests.
        metadata: A version of the table.
        former: Whether it is a former version: manifests may be gone, and files that its snapshots deleted count too.
        known: Manifests whose files are known, and need not be returned.

    Raises:
        FileNotFoundError: A manifest of the present version is gone, so nobody knows which files it refers to.
    """
    may_be_gone = suppress(FileNotFoundError) if former else nullcontext()
    others = {bare_path(each.statistics_path) for each in (*metadata.statistics, *metadata.partition_statistics)}
    manifests: dict[str, ManifestFile] = {}
    of_head: set[str] = set()
    for snapshot in metadata.snapshots:
        if snapshot.manifest_list:
            others.add(bare_path(snapshot.manifest_list))
        with may_be_gone:
            listed = {bare_path(each.manifest_path): each for each in snapshot.manifests(io)}
            manifests |= listed
            if snapshot.snapshot_id == metadata.current_snapshot_id:
                of_head = set(listed)
    head: dict[str, int] = {}
    stored: dict[str, int] = {}
    for path, manifest in manifests.items():
        if path in known:
            continue
        with may_be_gone:
            found = entries(manifest, io, discard_deleted=not former)
            sizes = {bare_path(entry.data_file.file_path): entry.data_file.file_size_in_bytes for entry in found}
            stored |= sizes
            if path in of_head:
                head |= sizes
    return Inventory(
        paths=frozenset({*stored, *manifests, *others}),
        manifests=frozenset(manifests),
        figures=Figures(
            files=len(head),
            bytes=sum(head.values()),
            stored_files=len(stored),
            stored_bytes=sum(stored.values()),
            snapshots=len(metadata.snapshots),
            manifests=len(of_head),
        ),
    )


@dataclass(frozen=True)
class Unneeded:
    """Files in a table's folder that its present version does not refer to.

    Attributes:
        figures: The size of the present version.
        released: Those that a former version referred to, in the order of removal: data files, then manifests, then
            manifest lists, so that after a death the next removal still finds what is left.
        orphans: Old ones to which nobody ever referred; none while the folder also holds a former table.
        former_tables: Uuid of another table whose metadata is in the folder → one of its metadata files.
    """

    figures: Figures
    released: tuple[ListedFile, ...] = ()
    orphans: tuple[ListedFile, ...] = ()
    former_tables: Mapping[str, str] = field(default_factory=dict)


def unneeded_files(
    catalog: Catalog, name: str, former: TableMetadata | None = None, *, orphaned_before: datetime
) -> Unneeded:
    """Return the files that may be removed from a table's folder.

    Args:
        catalog: The catalog.
        name: The table.
        former: The version before the snapshots expired; None for all versions whose metadata still exists.
        orphaned_before: Orphans were last written before this moment.
    """
    table, listed = _listed(catalog, name)
    present = inventory(table.io, table.metadata)
    released: set[str] = set()
    manifests = set[str]() if former is None else set(present.manifests)
    for version in _former_versions(table) if former is None else [former]:
        found = inventory(table.io, version, former=True, known=manifests)
        released |= found.paths
        manifests |= found.manifests
    if all(file.path != bare_path(table.metadata_location) for file in listed):
        return Unneeded(present.figures)  # paths of the listing cannot be compared with those of the metadata
    needed = {*present.paths, *_metadata_paths(table)}
    former_found = former_tables(table, listed)
    unreferenced = [file for file in listed if file.path not in needed]
    orphans = []
    for file in unreferenced if not former_found else ():
        is_old = file.modified_at < orphaned_before
        if is_old and file.path.endswith(_ICEBERG_SUFFIXES) and file.path not in released:
            orphans.append(file)

    def is_manifest_or_list(file: ListedFile) -> tuple[bool, bool]:
        name = file.path.rpartition("/")[2]
        return name.endswith(".avro"), name.startswith("snap-")

    in_order = sorted((file for file in unreferenced if file.path in released), key=is_manifest_or_list)
    return Unneeded(present.figures, tuple(in_order), tuple(orphans), former_found)


def _former_versions(table: Table) -> Iterator[TableMetadata]:
    """Yield the former versions of a table's metadata that still exist."""
    for entry in table.metadata.metadata_log:
        with suppress(FileNotFoundError):
            yield FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))


def _listed(catalog: Catalog, name: str) -> tuple[Table, list[ListedFile]]:
    """Return a table, loaded after its folder was listed: a file that was committed meanwhile is not unneeded."""
    before = iceberg.load(catalog, name)
    listed = list(list_files(before.io, before.location()))
    return iceberg.load(catalog, name), listed


def former_tables(table: Table, listed: Iterable[ListedFile] | None = None) -> dict[str, str]:
    """Return the other tables whose metadata is in a table's folder: a lost catalog, or a drop, left them there.

    Args:
        table: The table.
        listed: The files of the folder; None to list its metadata.

    Returns:
        Uuid of a table → location of one of its metadata files.
    """
    found: dict[str, str] = {}
    own = _metadata_paths(table)
    for file in list_files(table.io, f"{table.location()}/metadata") if listed is None else listed:
        if file.path.endswith(_METADATA) and file.path not in own:
            # A writer that died may have left a damaged file, which belongs to no table.
            with suppress(OSError, ValueError, ValidationError):
                metadata = FromInputFile.table_metadata(table.io.new_input(file.location))
                if metadata.snapshots:  # an empty table has nothing to lose
                    found[str(metadata.table_uuid)] = file.location
    found.pop(str(table.metadata.table_uuid), None)
    return found


def _metadata_paths(table: Table) -> set[str]:
    """Return the metadata files of a table's present version and of its log."""
    log = {bare_path(entry.metadata_file) for entry in table.metadata.metadata_log}
    return log | {bare_path(table.metadata_location)}


# Which snapshots are still needed

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
    """What all processes refer to, also those that no pipeline declares any more: they may belong to another program.

    Attributes:
        watermarks: Newest rows of `etl.high_watermark`: one for each process and source. If a process died before it
            wrote the next, a row is older than the state of its target: a snapshot that expires meanwhile costs a
            rebuild, and no row.
    """

    watermarks: tuple[Row, ...]

    def complete_through(self, name: str) -> int | None:
        """Return the last hour through which a table was complete, as its sessions or its readers recorded it."""
        keys = []
        for row in self.watermarks:
            if row["source"] == name:
                keys.append(row["complete_through"])
            if row["process_name"] == name:
                keys.append(json.loads(row["metadata"]).get("complete_through"))
        return max((parse_hour(key) for key in keys if key is not None), default=None)

    def pinned(self, table: Table, name: str) -> set[int]:
        """Return the ids of the snapshots of a table that must not expire.

        These are the snapshots that
        - a watermark names, at present or before its last move, or as the one after which rows wait,
        - a process published last,
        - a branch or tag names: also the tag that every session of a target moves.
        """
        ids: set[int | None] = {ref.snapshot_id for ref in table.metadata.refs.values()}
        for row in self.watermarks:
            metadata = json.loads(row["metadata"])
            if row["source"] == name:
                ids |= {row["latest_snapshot_id"], row["previous_snapshot_id"]}
                ids |= {late.get("after") for late in metadata.get("deferred", ())}
            if row["process_name"] == name:
                ids.add(row["target_snapshot_id"])
        return {each for each in ids if each is not None}

    def next_reads(self, name: str) -> dict[int, str]:
        """Return the snapshots of a table that are the start of the next read: id → the process at whose watermark."""
        of_table = [row for row in self.watermarks if row["source"] == name]
        return {row["latest_snapshot_id"]: row["process_name"] for row in of_table if row["latest_snapshot_id"]}


def read_references(catalog: Catalog) -> SnapshotReferences:
    """Return the present references of all processes.

    Read a table's metadata before calling this: then they include every session that was committed on that metadata.
    """
    name = high_watermark_table(catalog)
    with naming_damaged_file(catalog, name, repair=FORGETS):
        table = iceberg.load(catalog, name)
        rows = table.scan(selected_fields=_COLUMNS).to_arrow()
    key = ["process_name", "revision"]
    newest = rows.group_by(key[0]).aggregate([(key[1], "max")]).rename_columns(key)
    found: list[Row] = rows.join(newest, key, join_type="left semi").to_pylist()
    return SnapshotReferences(tuple(found))


def snapshots_to_expire(
    snapshots: Sequence[Snapshot], main: int | None, pinned: Collection[int], *, young_ms: int, newest: int
) -> list[int]:
    """Return the ids of the snapshots that nothing needs any more, in their order.

    The kept part of main has no gap: it goes from the head to the oldest snapshot that is pinned, young or among the
    newest.

    Args:
        snapshots: All snapshots of the table.
        main: Head of main, which is always kept; None if main has no snapshot.
        pinned: Ids that watermarks, sessions, branches and tags name; ids of snapshots that are gone do no harm.
        young_ms: Snapshots committed at this moment or later are kept, in milliseconds since 1970-01-01 UTC.
        newest: How many snapshots of main are kept, counted from its head.
    """
    parents = {each.snapshot_id: each.parent_snapshot_id for each in snapshots}
    chain: list[int] = []
    while main is not None and main in parents:
        chain.append(main)
        main = parents[main]
    needed = {each.snapshot_id for each in snapshots if each.snapshot_id in pinned or each.timestamp_ms >= young_ms}
    length = max(1, newest, *(place + 1 for place, each in enumerate(chain) if each in needed))
    kept = needed.union(chain[:length])
    return [each for each in parents if each not in kept]


@iceberg.retrying().wraps
def expire(catalog: Catalog, name: str, choose: Callable[[Table], Iterable[int]]) -> tuple[TableMetadata, int]:
    """Expire snapshots of a table, except the heads of branches and tags. Their files stay.

    Args:
        choose: Returns the ids of the snapshots to expire.

    Returns:
        The version of the table before, and how many snapshots were expired.
    """
    table = iceberg.load(catalog, name)
    heads = {ref: found.snapshot_id for ref, found in table.metadata.refs.items()}
    ids = [each for each in choose(table) if each not in heads.values()]
    if ids:
        # A catalog would remove a branch together with a snapshot that it was moved to meanwhile.
        required: list[TableRequirement] = [AssertTableUUID(uuid=table.metadata.table_uuid)]
        for ref in {"main", publish.TAG, *heads}:
            required.append(AssertRefSnapshotId(ref=ref, snapshot_id=heads.get(ref)))  # type: ignore[call-arg]
        update = RemoveSnapshotsUpdate(snapshot_ids=ids)  # type: ignore[call-arg]
        after = catalog.commit_table(table, tuple(required), (update,)).metadata
        Catalog._delete_old_metadata(table.io, table.metadata, after)
    return table.metadata, len(ids)


def shorten(catalog: Catalog, name: str, *, newest: int) -> int:
    """Expire the oldest snapshots of main that nothing needs, and remove the files that no other snapshot refers to.

    Each snapshot that a table has makes all commits to it slower. No file is listed: maintenance finds what a process
    leaves that dies here.

    Args:
        newest: How many snapshots of main are kept, counted from its head.

    Returns:
        How many snapshots were expired.
    """

    def oldest(table: Table) -> list[int]:
        line = [each.snapshot_id for each in publish.ancestors(table)]
        if len(line) <= newest:
            return []
        pinned = read_references(catalog).pinned(table, name)
        return line[max([newest, *(place + 1 for place, each in enumerate(line) if each in pinned)]) :]

    former, expired = expire(catalog, name, oldest)
    if not expired:
        return 0
    table = iceberg.load(catalog, name)
    kept = {each.snapshot_id: each for each in table.metadata.snapshots}
    gone = [each for each in former.snapshots if each.snapshot_id not in kept]
    first_kept = list(publish.ancestors(table))[-1]
    needed = {manifest.manifest_path for each in kept.values() for manifest in each.manifests(table.io)}
    files, manifests = [], set[str]()
    for snapshot in (*gone, first_kept):
        listed = snapshot.manifests(table.io)
        manifests.update(manifest.manifest_path for manifest in listed)
        for entry in changed_entries(snapshot, table.io, listed):
            if entry.status is ManifestEntryStatus.DELETED:
                files.append(entry.data_file.file_path)
    # A snapshot beside main, of a branch or of a writer at work, may have files that main has not got any more, unless
    # it follows the part of main that is kept.
    if all(each.parent_snapshot_id in kept for each in kept.values() if each is not first_kept):
        for path in (*files, *(manifests - needed), *(each.manifest_list for each in gone)):
            remove_file(table.io, path)
    return expired


# What an erasure needs besides


def remove_unreferenced_files(catalog: Catalog, name: str, *, orphaned_before: datetime) -> int:
    """Remove the files that only former versions of a table refer to, of whatever age, and old orphans.

    Former versions are those whose metadata still exists.

    Args:
        orphaned_before: Orphans that were last written before this moment are removed.

    Returns:
        How many files were removed.
    """
    io = iceberg.load(catalog, name).io
    unneeded = unneeded_files(catalog, name, orphaned_before=orphaned_before)
    removable = (*unneeded.released, *unneeded.orphans)
    for file in removable:
        remove_file(io, file.location)
        reach("erasure-files-half-removed")
    return len(removable)


def unreferenced_files(catalog: Catalog, name: str) -> list[ListedFile]:
    """Return the files in a table's folder, of whatever age, that its present version does not refer to.

    They include files of a writer that has not committed yet. A file that is committed meanwhile is left out, because
    the folder is listed before the metadata is read.
    """
    table, listed = _listed(catalog, name)
    kept = {*inventory(table.io, table.metadata).paths, *_metadata_paths(table)}
    return [file for file in listed if file.path not in kept and not file.path.endswith(_CHECKSUM)]


def files_outside(table: Table) -> dict[str, bool]:
    """Return the data and delete files that are outside of a table's folder, also those of former versions.

    A program has added them from there (`add_files`), or the table wrote there. They are never removed: only a person
    knows what else needs them.

    Returns:
        Location of a file → whether the head refers to it.
    """
    versions = [table.metadata, *_former_versions(table)]
    folder = f"{bare_path(table.location()).rstrip('/')}/"
    found: dict[str, bool] = {}
    seen = set[str]()
    for snapshot in [table.current_snapshot(), *(each for version in versions for each in version.snapshots)]:
        if snapshot is None or snapshot.manifest_list in seen:
            continue
        is_head = not seen
        seen.add(snapshot.manifest_list)
        with suppress(FileNotFoundError):
            for manifest in snapshot.manifests(table.io):
                if manifest.manifest_path in seen:
                    continue
                seen.add(manifest.manifest_path)
                with suppress(FileNotFoundError):
                    for each in entries(manifest, table.io, discard_deleted=False):
                        location = each.data_file.file_path
                        if not bare_path(location).startswith(folder):
                            is_live = is_head and each.status is not ManifestEntryStatus.DELETED
                            found[location] = found.get(location, False) or is_live
    return found


def head_has_delete_files(table: Table) -> bool:
    """Return whether delete files hide rows of the head, so that its data files still contain these rows."""
    return any(manifest.content is ManifestContent.DELETES for manifest in head_manifests(table))


@iceberg.retrying().wraps
def drop_deleted_entries(catalog: Catalog, name: str) -> bool:
    """Remove the entries of deleted files from the manifests of the head, because they contain the files' bounds.

    This commits one `replace` snapshot, which changes no row.

    Returns:
        Whether there were such entries.
    """
    table = iceberg.load(catalog, name)
    if not any(map(_has_deleted_entries, head_manifests(table))):
        return False
    with table.transaction() as transaction:
        _DropDeletedEntries(Operation.REPLACE, transaction, table.io).commit()
    return True


class _DropDeletedEntries(_FastAppendFiles):
    """A snapshot of the same files, whose manifests have no entry of a deleted one. Uses private parts of pyiceberg."""

    def _existing_manifests(self) -> list[ManifestFile]:
        manifests = []
        for manifest in super()._existing_manifests():
            if not _has_deleted_entries(manifest):
                manifests.append(manifest)
                continue
            live = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
            if live:
                with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
                    for entry in live:
                        existing = ManifestEntry.from_args(
                            status=ManifestEntryStatus.EXISTING,
                            snapshot_id=entry.snapshot_id,
                            sequence_number=entry.sequence_number,
                            file_sequence_number=entry.file_sequence_number,
                            data_file=entry.data_file,
                        )
                        writer.add_entry(existing)
                manifests.append(writer.to_manifest_file())
        return manifests

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        """Return the totals of the parent, because no file was added or removed."""
        parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id or 0)
        before = publish.summary_of(parent) if parent else {}
        totals = {name: value for name, value in before.items() if name.startswith("total-")}
        return Summary(Operation.REPLACE, **totals, **snapshot_properties)


def _has_deleted_entries(manifest: ManifestFile) -> bool:
    if manifest.content is ManifestContent.DELETES:
        return False  # pyiceberg cannot write manifests of delete files; their entries contain paths, not ids
    return manifest.deleted_files_count is None or manifest.deleted_files_count > 0


def head_manifests(table: Table) -> list[ManifestFile]:
    head = table.current_snapshot()
    return head.manifests(table.io) if head else []
