"""The names of the engine's own tables.

Finding the file of a table that cannot be read, so that an error names it: metadata, manifests, data files.

Files are searched for only after a read has failed, or when a person asks.

Reading data files by pyiceberg, with INT96 times in microseconds.

pyarrow reads INT96 times, which Spark and Hive wrote in former times, as nanoseconds, and wraps those outside of the
years 1677 to 2262: 1500 becomes 2084. This module uses an internal part of pyiceberg, which has no option for it.

Reading the entries of manifests as pyiceberg does, but small ones once, and resolving each Avro schema once.

A manifest never changes. A session looks into the same small ones many times: those of the log of sessions.

pyiceberg resolves the schema again for each file, which takes longer than reading the few entries of a small manifest.
A plan over many new snapshots reads many small manifests of one schema. This module uses internal parts of pyiceberg.

The hours of tables that are partitioned by hour or day, from manifests. Bounds exclude most manifests unread.

Transactions of pyiceberg that compute the table's pending metadata once for each update.

A commit asks its transaction for the metadata some twenty times. pyiceberg applies all updates again and copies the
whole result each time, which takes longer than the rest of the commit.

Creating, loading and checking Iceberg tables through pyiceberg. Metadata only.

Raw tables are partitioned by landing_date, landing_hour and batch_id; targets by the hour or day of their time column.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import pyarrow.parquet as pq
from pyarrow import dataset as ds
from pyarrow.fs import FileType
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError, ValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    _inherit_from_manifest,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import TableUpdate
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, Transform
from pyiceberg.types import IntegerType, NestedField
from pyiceberg.utils.schema_conversion import AvroSchemaConversion
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from lake_assets.base.grain import DAY, HOUR, Grain, days_in
from lake_assets.base.hours import hour_key, parse_hour
from lake_assets.base.recent import Recent
from lake_assets.connections.catalog import HIGH_WATERMARK_TABLE, SESSION_TABLE
from lake_assets.errors import (
    ColumnMismatch,
    ConfigurationError,
    InvalidCompleteThrough,
    InvalidHourKey,
    LakeError,
    ServiceError,
    TableDamaged,
    TableMissing,
    WriteAuditPublishDisabled,
)
from lake_assets.errors.infrastructure import recognise
from lake_assets.errors.texts import chain_text

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import RawTable, Target


SESSION = "etl.session"
HIGH_WATERMARK = "etl.high_watermark"
QUARANTINE = "etl.quarantine"


def session_table(catalog: Catalog) -> str:
    """Return the table of sessions of a catalog: `LAKE_SESSION_TABLE`, else `SESSION`."""
    return str(catalog.properties.get(SESSION_TABLE, SESSION))


def high_watermark_table(catalog: Catalog) -> str:
    """Return the table of watermarks of a catalog: `LAKE_HIGH_WATERMARK_TABLE`, else `HIGH_WATERMARK`."""
    return str(catalog.properties.get(HIGH_WATERMARK_TABLE, HIGH_WATERMARK))


DAMAGED_METADATA = (ValidationError, ValueError, OSError)
"""What pyiceberg raises if a metadata file is missing, is not text, or is not Iceberg metadata."""

S3 = ("s3", "s3a", "s3n")

SHOWN_CHARACTERS = 160


@dataclass(frozen=True)
class DamagedFile:
    """A file that cannot be read.

    Attributes:
        path: Where it is.
        cause: Why, as the end of a sentence: `is missing`, `is damaged (...)`.
        kind: What Iceberg uses it for.
        partition: First partition value of a data file: in a log table, the process. None for other files.
    """

    path: str
    cause: str
    kind: str
    partition: str | None = None


@contextmanager
def naming_damaged_file(catalog: Catalog, name: str, *, repair: str | None = None) -> Iterator[None]:
    """Read a table, and raise an error that names the damaged file if that fails because of one.

    Args:
        catalog: The catalog of the table.
        name: The table.
        repair: What `lake doctor --repair` does about it; None if it can do nothing.

    Raises:
        TableDamaged: A file of the table cannot be read.
        ServiceError: The store of the files, or the disk, failed.
    """
    try:
        yield
    except TableDamaged as error:
        raise TableDamaged(error.table, error.file, error.cause, repair=repair) from error
    except (LakeError, CommitFailedException):
        raise
    except Exception as error:  # Avro, Parquet and JSON readers raise errors of many types
        found = damaged_file(catalog, name)
        if found is None:
            raise
        raise TableDamaged(name, found.path, found.cause, repair=repair) from error


def damaged_file(catalog: Catalog, name: str, *, manifests: int | None = None, data: bool = True) -> DamagedFile | None:
    """Return the first file of a table's present version that cannot be read; None if all can, or there is no table.

    Args:
        catalog: The catalog of the table.
        name: The table.
        manifests: How many manifests are read; None for all.
        data: Whether the data files are read, too.
    """
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        return None
    except DAMAGED_METADATA as error:
        return damaged_metadata(catalog, name, error)
    return _damaged_in(table, manifests=manifests, data=data)


def damaged_metadata(catalog: Catalog, name: str, error: Exception) -> DamagedFile:
    """Return the metadata file of a table that pyiceberg failed to load."""
    path = _metadata_location(catalog, name)
    if path is None:
        return DamagedFile(f"(the metadata of {name})", _cause(error), "metadata file")
    return _damaged(load_file_io(dict(catalog.properties), path), path, error, "metadata file")


def _damaged_in(table: Table, *, manifests: int | None, data: bool) -> DamagedFile | None:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return None
    try:
        listed = snapshot.manifests(table.io)
    except Exception as error:
        return _damaged(table.io, snapshot.manifest_list, error, "manifest list")
    for manifest in islice(listed, manifests):
        found = _damaged_of_manifest(table.io, manifest, data=data)
        if found is not None:
            return found
    return None


def _damaged_of_manifest(io: FileIO, manifest: ManifestFile, *, data: bool) -> DamagedFile | None:
    try:
        entries = manifest.fetch_manifest_entry(io)
    except Exception as error:
        return _damaged(io, manifest.manifest_path, error, "manifest")
    for entry in entries:
        if data and entry.status is not ManifestEntryStatus.DELETED:
            file = entry.data_file
            try:
                with io.new_input(file.file_path).open() as opened:
                    pq.read_table(opened)
            except Exception as error:
                partition = str(file.partition[0]) if len(file.partition) else None
                return _damaged(io, file.file_path, error, "data file", partition)
    return None


def _damaged(io: FileIO, path: str, error: Exception, kind: str, partition: str | None = None) -> DamagedFile:
    cause = _cause(error)
    parts = urlsplit(path)
    if isinstance(error, FileNotFoundError) and parts.scheme in S3 and isinstance(io, PyArrowFileIO):
        found = io.fs_by_scheme(parts.scheme, parts.netloc).get_file_info(parts.netloc)
        if found.type is FileType.NotFound:
            raise ServiceError(
                f"The object store of LAKE_WAREHOUSE has no bucket {parts.netloc}.",
                remedy="Check LAKE_WAREHOUSE and LAKE_CATALOG__S3__ENDPOINT, or restore the bucket from a backup.",
            ) from error
    return DamagedFile(path, cause, kind, partition)


def _cause(error: Exception) -> str:
    """Return why a file cannot be read.

    Raises:
        ServiceError: Its store or its disk failed, which says nothing about the file.
    """
    known = recognise(chain_text(error))
    if known is not None:
        raise ServiceError(known.problem, remedy=known.remedy) from error
    if isinstance(error, FileNotFoundError):
        return "is missing"
    lines = (str(error) or type(error).__name__).splitlines()
    text = " ".join(line.strip() for line in lines)
    return f"is damaged ({text[:SHOWN_CHARACTERS]})"


def _metadata_location(catalog: Catalog, name: str) -> str | None:
    """Return the metadata file that a SQL catalog names for a table. pyiceberg gives it only with a loaded table."""
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
    from sqlalchemy import select

    if not isinstance(catalog, SqlCatalog):
        return None
    namespace, _, table = name.rpartition(".")
    query = select(IcebergTables.metadata_location).where(
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == namespace,
        IcebergTables.table_name == table,
    )
    with catalog.engine.connect() as connection:
        return connection.execute(query).scalar()


__all__ = ["ArrowScan"]

_file_format = pyiceberg_arrow._get_file_format


def _with_exact_times(file_format: FileFormat, **options: Any) -> ds.FileFormat:
    if file_format is FileFormat.PARQUET:
        options = {**options, "coerce_int96_timestamp_unit": "us"}
    return _file_format(file_format, **options)


pyiceberg_arrow._get_file_format = _with_exact_times  # type: ignore[assignment]


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


TRANSFORMS: Mapping[Grain, Transform[Any, Any]] = {HOUR: HourTransform(), DAY: DayTransform()}
"""Grain → partition transform of the time column. Iceberg numbers the partitions from 1970 on."""

TIMEZONE = "lake.timezone"
"""Table property: the time zone whose days the partitions of the target are; absent for hours and for days of UTC."""

_LIVE = (ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING)


@dataclass(frozen=True)
class _TimePartition:
    """The partition field of the time column: its position in the spec, and its grain."""

    position: int
    grain: Grain

    def hours(self, file: DataFile) -> range | None:
        """Return the hours of a file's partition; None if its rows have no time."""
        number = file.partition[self.position]
        return None if number is None else self.grain.numbered(number)


class _HourReader:
    """Reads the entries of data files of one table, with the hours of their partitions."""

    def __init__(self, table: Table, time_column: str) -> None:
        self.table = table
        self.time_column = time_column

    def hours_of(self, found: Iterable[ManifestEntry]) -> set[int | None]:
        """Return the hours of the files of all entries; None for a file of rows without a time."""
        hours: set[int | None] = set()
        for entry in found:
            partition = self.hours(entry.data_file)
            hours.update([None] if partition is None else partition)
        return hours

    def rows(self, manifests: Iterable[ManifestFile]) -> Iterator[tuple[range, int]]:
        """Yield, for each live data file of rows with a time, the hours of its partition and its rows."""
        for entry in _data_entries(self.table, manifests):
            if entry.status not in _LIVE:
                continue
            partition = self.hours(entry.data_file)
            if partition is not None:
                yield partition, entry.data_file.record_count

    def between(self, manifests: Iterable[ManifestFile], first: int, last: int) -> list[ManifestFile]:
        """Return the manifests that may have files of the hours first..last, both inclusive."""
        return [manifest for manifest in manifests if self._may_contain(manifest, first, last)]

    def hours(self, file: DataFile) -> range | None:
        """Return the hours of a file's partition; None if its rows have no time."""
        return _time_partition(self.table, file.spec_id, self.time_column).hours(file)

    def _may_contain(self, manifest: ManifestFile, first: int, last: int) -> bool:
        if not manifest.partitions:
            return True
        partition = _time_partition(self.table, manifest.partition_spec_id, self.time_column)
        bounds = manifest.partitions[partition.position]
        if bounds.lower_bound is None or bounds.upper_bound is None:
            return True
        lower = int(from_bytes(IntegerType(), bounds.lower_bound))
        upper = int(from_bytes(IntegerType(), bounds.upper_bound))
        first_hour = partition.grain.numbered(lower)[0]
        last_hour = partition.grain.numbered(upper)[-1]
        return first_hour <= last and last_hour >= first


def table_grain(grain: Grain) -> Grain:
    """Return what the table of a target is partitioned by: by hours for local days, as Iceberg knows days of UTC."""
    return HOUR if grain.is_local else grain


def check_grain(table: Table, time_column: str, grain: Grain) -> None:
    """Check that a table is partitioned by its declared grain: one hour of a day cannot be overwritten.

    Raises:
        ConfigurationError: It is partitioned otherwise, or was created for days of another time zone.
    """
    found = _time_partition(table, table.spec().spec_id, time_column).grain
    if found == HOUR and TIMEZONE in table.properties:
        found = days_in(table.properties[TIMEZONE])
    if found != grain:
        raise ConfigurationError(
            f"{'.'.join(table.name())} is declared with {_declared(grain)}, and partitioned by {found.in_words}.",
            remedy=f"Declare {_declared(found)}, or drop the table and let `lake init` create it again.",
        )


def _declared(grain: Grain) -> str:
    zone = f", timezone={grain.timezone!r}" if grain.is_local else ""
    return f"grain={grain.name!r}{zone}"


def hours_added(table: Table, snapshot: Snapshot, time_column: str) -> set[int]:
    """Return the hours of the data files that a snapshot added; of a day, all.

    Files of rows without a time are left out.

    Raises:
        ConfigurationError: The table is not partitioned by hour or day of the time column.
    """
    own = _data_entries(table, own_manifests(snapshot, table.io))
    added = (entry for entry in own if entry.status is ManifestEntryStatus.ADDED)
    hours = _HourReader(table, time_column).hours_of(added)
    return {hour for hour in hours if hour is not None}


def hours_removed(table: Table, snapshot: Snapshot, time_column: str) -> set[int | None]:
    """Return the hours of the data files that a snapshot removed; of a day, all; None for rows without a time."""
    own = _data_entries(table, own_manifests(snapshot, table.io))
    removed: list[ManifestEntry] = []
    for entry in own:
        if entry.status is ManifestEntryStatus.DELETED and entry.snapshot_id == snapshot.snapshot_id:
            removed.append(entry)
    return _HourReader(table, time_column).hours_of(removed)


def hours_left(
    table: Table,
    snapshot: Snapshot,
    time_column: str,
    hours: Collection[int],
) -> set[int | None]:
    """Return those of the hours that still have data files of snapshots before this one."""
    if not hours:
        return set()
    reader = _HourReader(table, time_column)
    manifests = snapshot.manifests(table.io)
    near = reader.between(manifests, min(hours), max(hours))
    left: list[ManifestEntry] = []
    for entry in _data_entries(table, near):
        if entry.status in _LIVE and entry.snapshot_id != snapshot.snapshot_id:
            left.append(entry)
    return reader.hours_of(left).intersection(hours)


def deletes_rows(table: Table, snapshot: Snapshot) -> bool:
    """Whether a snapshot added delete files, which hide rows of data files that stay."""
    for manifest in own_manifests(snapshot, table.io):
        if manifest.content is not ManifestContent.DELETES:
            continue
        live = entries(manifest, table.io, discard_deleted=True)
        if any(entry.status is ManifestEntryStatus.ADDED for entry in live):
            return True
    return False


def rows_between(
    table: Table,
    time_column: str,
    first: int,
    last: int,
) -> int:
    """Return the rows of main in the hours first..last, both inclusive, or in days that contain any of them.

    Rows deleted by merge-on-read are counted, too.
    """
    reader = _HourReader(table, time_column)
    near = reader.between(_manifests(table, table.current_snapshot()), first, last)
    total = 0
    for hours, rows in reader.rows(near):
        if hours[0] <= last and hours[-1] >= first:
            total += rows
    return total


def rows_by_hour(table: Table, time_column: str) -> dict[int, int]:
    """Return hour → rows of main, for all hours with rows, ascending; those of a day at its first hour.

    Rows deleted by merge-on-read are counted, too.
    """
    manifests = _manifests(table, table.current_snapshot())
    found: Counter[int] = Counter()
    for hours, rows in _HourReader(table, time_column).rows(manifests):
        found[hours[0]] += rows
    return dict(sorted(found.items()))


def rows_in_hours(
    table: Table,
    snapshot_id: int | None,
    time_column: str,
    hours: Collection[int],
) -> dict[int, int] | None:
    """Return hour → rows of a snapshot, for those of the hours that have any.

    Returns:
        None if the metadata do not contain exact numbers: a partition is a day, or there are delete files.
    """
    if snapshot_id is None or not hours:
        return {}
    manifests = _manifests(table, table.snapshot_by_id(snapshot_id))
    if _have_delete_files(manifests):
        return None
    reader = _HourReader(table, time_column)
    near = reader.between(manifests, min(hours), max(hours))
    found: Counter[int] = Counter()
    for partition, rows in reader.rows(near):
        if len(partition) > 1:
            return None
        found[partition[0]] += rows
    return {hour: rows for hour, rows in found.items() if hour in hours}


@dataclass(frozen=True)
class SnapshotRows:
    """The rows of some partitions of one snapshot. Rows deleted by merge-on-read are counted, too.

    Attributes:
        by_partition: First hour of a partition → its rows; partitions without rows are left out.
        added: First hour of a partition → the rows that the snapshot itself wrote there.
        total: The rows of the whole table; None if the snapshot's summary lacks them.
    """

    by_partition: Mapping[int, int]
    added: Mapping[int, int]
    total: int | None


def snapshot_rows(
    table: Table,
    snapshot_id: int | None,
    time_column: str,
    hours: Collection[int],
    grain: Grain = HOUR,
) -> SnapshotRows | None:
    """Return the rows of the partitions that contain any of the hours; None if the snapshot is not retained.

    Args:
        grain: Of the target. A local day has several partitions of its table, whose rows are added up.
    """
    snapshot = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None:
        return None
    by_partition: Counter[int] = Counter()
    added: Counter[int] = Counter()
    for first_of_file, entry in _live_entries(table, snapshot, time_column, hours):
        first = grain.first(first_of_file)
        by_partition[first] += entry.data_file.record_count
        if entry.snapshot_id == snapshot_id:
            added[first] += entry.data_file.record_count
    total = snapshot.summary.additional_properties.get("total-records") if snapshot.summary else None
    return SnapshotRows(dict(by_partition), dict(added), None if total is None else int(total))


def _live_entries(
    table: Table, snapshot: Snapshot, time_column: str, hours: Collection[int]
) -> Iterator[tuple[int, ManifestEntry]]:
    """Yield the first hour and the entry of each live data file in a partition that contains any of the hours."""
    if not hours:
        return
    reader = _HourReader(table, time_column)
    near = reader.between(_manifests(table, snapshot), min(hours), max(hours))
    for entry in _data_entries(table, near):
        partition = reader.hours(entry.data_file)
        if entry.status in _LIVE and partition is not None and not set(partition).isdisjoint(hours):
            yield partition[0], entry


def _manifests(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    return snapshot.manifests(table.io) if snapshot else []


def _have_delete_files(manifests: Iterable[ManifestFile]) -> bool:
    return any(manifest.content is ManifestContent.DELETES for manifest in manifests)


def _data_entries(table: Table, manifests: Iterable[ManifestFile]) -> Iterator[ManifestEntry]:
    """Yield the entries of data files, deleted ones included."""
    for manifest in manifests:
        if manifest.content is ManifestContent.DATA:
            yield from entries(manifest, table.io, discard_deleted=False)


def _time_partition(table: Table, spec_id: int, time_column: str) -> _TimePartition:
    source_id = table.schema().find_field(time_column).field_id
    for position, field in enumerate(table.specs()[spec_id].fields):
        for grain, transform in TRANSFORMS.items():
            if field.source_id == source_id and field.transform == transform:
                return _TimePartition(position, grain)
    raise ConfigurationError(
        f"{'.'.join(table.name())} is partitioned neither by the hour nor by the day of {time_column}.",
        remedy="Let `lake init` create the table, or partition it by hours(time column) or days(time column).",
    )


Inputs = tuple[TableMetadata, tuple[TableUpdate, ...]]


class OneCopyTransaction(Transaction):
    """A transaction whose `table_metadata` is computed anew only after the table or the updates have changed."""

    def __init__(self, table: Table, autocommit: bool = False) -> None:
        super().__init__(table, autocommit)
        self._computed: tuple[Inputs, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the updates so far; nobody may change it."""
        # Metadata and tuples of updates are replaced, never changed, so that they are the same says that all is.
        metadata, updates = self._table.metadata, self._updates
        if not updates:
            return metadata
        if self._computed is not None:
            (known_metadata, known_updates), result = self._computed
            if known_metadata is metadata and known_updates is updates:
                return result
        result = super().table_metadata
        self._computed = ((metadata, updates), result)
        return result


COMPLETE_THROUGH = "lake.complete-through"
"""Table property: the last hour, inclusive, for which the table has all data that arrive on time. An hour key."""

SESSION_PROPERTY = "lake.session"
"""Table property: the session that was published last. A session without rows has no snapshot with its `wap.id`."""

WAP_ENABLED = "write.wap.enabled"

Partitions = Mapping[str, Transform[Any, Any]]
"""Column → the transform that the table is partitioned by."""

RAW_PARTITIONS = ("landing_date", "landing_hour", "batch_id")
"""The columns that a raw table is partitioned by."""

FIRST_PARTITION_FIELD_ID = 1000
"""Iceberg numbers partition fields from 1000 on (Iceberg specification, partition field ids)."""

_COMMON = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # Planning reads the untruncated bounds of every column.
    "write.metadata.metrics.default": "full",
    # Spark does this by default. Without it pyiceberg adds a manifest for every append, and planning reads them all.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def retrying(*others: type[Exception], seconds: float = 60) -> Retrying:
    """Return attempts at a commit, repeated while other commits come first.

    Args:
        others: Further exceptions that mean that another commit came first.
        seconds: How long to try.
    """
    return Retrying(
        retry=retry_if_exception_type((CommitFailedException, *others)),
        wait=wait_random_exponential(multiplier=0.05, max=1),
        stop=stop_after_delay(seconds),
        reraise=True,
    )


def create_raw(catalog: Catalog, raw: RawTable) -> bool:
    """Create a raw table if it does not exist. Return whether it was created."""
    identity = IdentityTransform[Any]()
    partitions: Partitions = dict.fromkeys(RAW_PARTITIONS, identity)
    # A writer may stage rows and publish them together with complete-through.
    return create(
        catalog, raw.table, raw.all_columns, partitions, {WAP_ENABLED: "true"}, descriptions=raw.all_descriptions
    )


def create_target(catalog: Catalog, target: Target) -> bool:
    """Create a target's table if it does not exist. Return whether it was created."""
    grain = target.grain
    partitions: Partitions = {target.time_column: TRANSFORMS[table_grain(grain)]}
    properties = {WAP_ENABLED: "true"}
    if grain.is_local:
        properties[TIMEZONE] = grain.timezone
    return create(catalog, target.table, target.columns, partitions, properties, descriptions=target.descriptions)


def create(
    catalog: Catalog,
    name: str,
    columns: Mapping[str, str],
    partitions: Partitions,
    properties: Mapping[str, str],
    *,
    descriptions: Mapping[str, str] | None = None,
) -> bool:
    """Create a table if it does not exist. Return whether it was created.

    All columns are optional: an audit or the quarantine reports a row with a null, and Iceberg does not refuse it.

    Args:
        catalog: The catalog.
        name: The table, `namespace.name`; the namespace is created, too.
        columns: Column → Iceberg type.
        partitions: Column → transform.
        properties: Table properties besides those that every table has.
        descriptions: Column → what is in it; columns may be left out.
    """
    if catalog.table_exists(name):
        return False
    catalog.create_namespace_if_not_exists(name.split(".")[0])
    schema = _schema(columns, descriptions or {})
    try:
        catalog.create_table(
            name,
            schema,
            partition_spec=_partition_spec(schema, partitions),
            properties={**_COMMON, **properties},
        )
    except TableAlreadyExistsError:
        return False
    return True


def _schema(columns: Mapping[str, str], descriptions: Mapping[str, str]) -> Schema:
    fields: list[NestedField] = []
    for field_id, (column, iceberg_type) in enumerate(columns.items(), start=1):
        fields.append(NestedField(field_id, column, iceberg_type, required=False, doc=descriptions.get(column)))
    return Schema(*fields)


def _partition_spec(schema: Schema, partitions: Partitions) -> PartitionSpec:
    fields: list[PartitionField] = []
    for field_id, (column, transform) in enumerate(partitions.items(), start=FIRST_PARTITION_FIELD_ID):
        name = column if isinstance(transform, IdentityTransform) else f"{column}_{transform}"
        fields.append(PartitionField(schema.find_field(column).field_id, field_id, transform, name))
    return PartitionSpec(*fields)


def load(catalog: Catalog, name: str) -> Table:
    """Return the present state of a table.

    Raises:
        TableMissing: The table does not exist.
        TableDamaged: Its metadata file cannot be read.
    """
    found = find(catalog, name)
    if found is None:
        raise TableMissing(name)
    return found


def find(catalog: Catalog, name: str) -> Table | None:
    """Return the present state of a table; None if it does not exist.

    Raises:
        TableDamaged: Its metadata file cannot be read.
    """
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None
    except DAMAGED_METADATA as error:
        found = damaged_metadata(catalog, name, error)
        raise TableDamaged(name, found.path, found.cause) from error


def complete_through(table: Table, name: str) -> int | None:
    """Return a table's complete-through, from the same metadata as its head; None if it was never set.

    Raises:
        InvalidCompleteThrough: The property is no hour key.
    """
    value = table.metadata.properties.get(COMPLETE_THROUGH)
    if value is None:
        return None
    try:
        return parse_hour(value)
    except InvalidHourKey:
        raise InvalidCompleteThrough(name, COMPLETE_THROUGH, value) from None


def complete_through_property(hour: int | None) -> dict[str, str | None]:
    """Return the property that declares a table complete through an hour; it is removed for None."""
    return {COMPLETE_THROUGH: None if hour is None else hour_key(hour)}


def check_columns(table: Table, name: str, declared: Mapping[str, str | None]) -> None:
    """Check that a table has the declared columns; further ones are ignored.

    Args:
        table: The table.
        name: Its name, for messages.
        declared: Column → Iceberg type; None for any type.

    Raises:
        ColumnMismatch: A column is missing or has another type.
    """
    found = {field.name: str(field.field_type) for field in table.schema().fields}
    for column, expected in declared.items():
        actual = found.get(column)
        if actual is None or not _is_type(actual, expected):
            remedy = f"Run `lake migrate {name}` to see how the table becomes as declared, or correct the declaration."
            remedy = remedy if expected else ""
            raise ColumnMismatch(name, column, expected=expected or "any type", found=actual, remedy=remedy)


def check_write_audit_publish(table: Table, name: str) -> None:
    """Check that a table stages commits under a WAP id. Otherwise Iceberg ignores the id and writes to main.

    Raises:
        WriteAuditPublishDisabled: It does not.
    """
    if table.metadata.properties.get(WAP_ENABLED, "").lower() != "true":
        raise WriteAuditPublishDisabled(name)


def _is_type(actual: str, expected: str | None) -> bool:
    """Whether an Iceberg type is the expected one; None is any. Spaces do not count: `decimal(9, 2)`."""
    return expected is None or actual.replace(" ", "") == expected.replace(" ", "")
