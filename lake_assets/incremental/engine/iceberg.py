"""Iceberg tables through pyiceberg: creating, loading and checking them, and reading their manifests and data files.

From top to bottom: the engine's own tables; the file of a table that cannot be read, so that an error names it; reading
data files; the entries of manifests and the bounds of data files; the hours of tables that are partitioned by hour or
day; commits; tables and their properties.

Raw tables are partitioned by landing_date, landing_hour and batch_id; targets by the hour or day of their time column.
This module alone uses internal parts of pyiceberg to read (`publish` uses some to write): each says why.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from datetime import UTC
from functools import lru_cache, partial
from itertools import count, islice
from math import inf
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import dataset as ds
from pyarrow.fs import FileType
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysFalse, And, BooleanExpression, GreaterThanOrEqual, LessThan, Or
from pyiceberg.expressions.visitors import _ManifestEvalVisitor
from pyiceberg.io import FileIO, OutputFile, load_file_io
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.io.pyarrow import ArrowScan as ArrowScan
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
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
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import TableUpdate
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, Transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyiceberg.utils.schema_conversion import AvroSchemaConversion
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from lake_assets.base.columns import quoted, table_in_sql
from lake_assets.base.described import recognise
from lake_assets.base.hours import (
    DAY,
    HOUR,
    Grain,
    days_in,
    hour_key,
    hour_start,
    hour_text,
    is_hour,
    parse_hour,
    ranges,
    time_text,
)
from lake_assets.base.recent import Recent
from lake_assets.connections.catalog import HIGH_WATERMARK_TABLE, SESSION_TABLE
from lake_assets.errors import (
    ConfigurationError,
    InvalidHourKey,
    LakeError,
    ServiceError,
    SourceError,
    TableDamaged,
    TableMissing,
    chain_text,
    column_mismatch,
    invalid_complete_through,
    write_audit_publish_disabled,
)
from lake_assets.incremental.declaration.model import iceberg_type

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
        raise TableDamaged(name, found.file, found.cause, repair=repair) from error


def damaged_file(
    catalog: Catalog, name: str, *, manifests: int | None = None, data: bool = True
) -> TableDamaged | None:
    """Return which file of a table's present version cannot be read; None if all can, or there is no table.

    Args:
        catalog: The catalog of the table.
        name: The table.
        manifests: How many manifests are read; None for all.
        data: Whether the data files are read, too.
    """
    try:
        table = find(catalog, name)
    except TableDamaged as error:
        return error
    snapshot = table.current_snapshot() if table is not None else None
    if table is None or snapshot is None:
        return None
    path, partition = snapshot.manifest_list, None
    try:
        for manifest in islice(snapshot.manifests(table.io), manifests):
            path, partition = manifest.manifest_path, None
            for entry in manifest.fetch_manifest_entry(table.io):
                if data:
                    file = entry.data_file
                    path, partition = file.file_path, str(file.partition[0]) if len(file.partition) else None
                    with table.io.new_input(path).open() as opened:
                        pq.read_table(opened)
    except Exception as error:
        return file_damage(name, path, error, table.io, partition)
    return None


def file_damage(
    name: str, path: str, error: Exception, io: FileIO | None, partition: str | None = None
) -> TableDamaged:
    """Return why a file of a table cannot be read.

    Raises:
        ServiceError: Its store or its disk failed, which says nothing about the file.
    """
    known = recognise(chain_text(error))
    if known is not None:
        raise ServiceError(known.problem, remedy=known.remedy) from error
    lines = (str(error) or type(error).__name__).splitlines()
    text = " ".join(line.strip() for line in lines)
    cause = f"is damaged ({text[:SHOWN_CHARACTERS]})"
    if isinstance(error, FileNotFoundError):
        cause, parts = "is missing", urlsplit(path)
        if parts.scheme in S3 and isinstance(io, PyArrowFileIO):
            bucket = io.fs_by_scheme(parts.scheme, parts.netloc).get_file_info(parts.netloc)
            if bucket.type is FileType.NotFound:
                raise ServiceError(
                    f"The object store of LAKE_WAREHOUSE has no bucket {parts.netloc}.",
                    remedy="Check LAKE_WAREHOUSE and LAKE_CATALOG__S3__ENDPOINT, or restore the bucket from a backup.",
                ) from error
    return TableDamaged(name, path, cause, partition=partition)


_file_format = pyiceberg_arrow._get_file_format


# pyarrow reads INT96 times, which Spark and Hive wrote in former times, as nanoseconds, and wraps those outside of the
# years 1677 to 2262: 1500 becomes 2084. pyiceberg has no option for it.
def _with_exact_times(file_format: FileFormat, **options: Any) -> ds.FileFormat:
    if file_format is FileFormat.PARQUET:
        options = {**options, "coerce_int96_timestamp_unit": "us"}
    return _file_format(file_format, **options)


pyiceberg_arrow._get_file_format = _with_exact_times  # type: ignore[assignment]


# pyiceberg asks one evaluator, which keeps what it looks at, about manifests in several threads: under load it missed
# the manifest of a file that a delete replaces ("Missing required files to delete").
_eval_manifest = _ManifestEvalVisitor.eval
_ManifestEvalVisitor.eval = lambda self, manifest: _eval_manifest(copy(self), manifest)  # type: ignore[method-assign]


# pyiceberg reads and writes a null list of structs as an empty one, also when it rewrites a file without erased rows.
def _with_nulls(project: Callable[..., pa.Array | None]) -> Callable[..., pa.Array | None]:
    def projected(self: object, kind: IcebergType, array: pa.Array | None, *parts: pa.Array | None) -> pa.Array | None:
        found = project(self, kind, array, *parts)
        if found is None or array is None or found.null_count == array.null_count:
            return found
        valid = pa.concat_arrays([pa.repeat(True, found.offset), array.is_valid()]).buffers()[1]
        buffers = [valid, found.buffers()[1]]
        return pa.Array.from_buffers(found.type, len(found), buffers, offset=found.offset, children=[found.values])

    return projected


_projection = pyiceberg_arrow.ArrowProjectionVisitor
_projection.list = _with_nulls(_projection.list)  # type: ignore[method-assign]
_projection.map = _with_nulls(_projection.map)  # type: ignore[method-assign]

FILES_PER_SCAN, ROWS_PER_SCAN = 16, 2_000_000
"""Data files, and about how many rows, that one scan reads: pyiceberg may hold all of them in memory."""


def rows_of_files(
    table: Table,
    files: Iterable[DataFile | FileScanTask],
    columns: Iterable[str],
    condition: BooleanExpression = ALWAYS_TRUE,
) -> Iterator[pa.RecordBatch]:
    """Yield columns of data files, by field id, with the types that the table has now: one that was renamed is found.

    Files of different writers give text as different types of Arrow, which cannot be compared with each other. Delete
    files are applied only to the tasks of a planned scan.

    Raises:
        FileNotFoundError: A file is gone.
        SourceError: A file is in a format that pyiceberg does not read.
        TableDamaged: A file cannot be read.
        ServiceError: The store of the files, or the disk, failed.
    """
    selected = table.schema().select(*columns)
    schema = schema_to_pyarrow(selected, include_field_ids=False)
    scan = ArrowScan(table.metadata, table.io, selected, condition)
    group: list[FileScanTask] = []
    for file in files:
        group.append(file if isinstance(file, FileScanTask) else FileScanTask(file))
        if len(group) >= FILES_PER_SCAN or sum(each.file.record_count for each in group) >= ROWS_PER_SCAN:
            yield from _rows_of(table, group, scan, schema)
            group = []
    yield from _rows_of(table, group, scan, schema)


def _rows_of(table: Table, group: list[FileScanTask], scan: ArrowScan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        if len(group) == 1:  # to_record_batches holds all rows of a file
            deletes = pyiceberg_arrow._read_all_delete_files(table.io, group)
            batches = scan._record_batches_from_scan_tasks_and_deletes(group, deletes)
        else:
            batches = scan.to_record_batches(group)
        for batch in batches:
            yield batch.cast(schema)
    except FileNotFoundError:  # of a file that is gone, metadata may tell enough
        raise
    except Exception as error:  # pyarrow's readers raise errors of many types, and pyiceberg one for another format
        name = ".".join(table.name())
        for path, format_ in ((task.file.file_path, task.file.file_format) for task in group):
            if format_ is FileFormat.AVRO:
                raise in_avro(name, path) from error
            try:
                with table.io.new_input(path).open() as opened:
                    if format_ is FileFormat.PARQUET:
                        pq.read_table(opened)
            except Exception as damage:
                raise file_damage(name, path, damage, table.io) from damage
        raise


def in_avro(name: str, path: str) -> SourceError:
    """Return the refusal of a table with a data file in Avro."""
    return SourceError(
        f"{name} has data files in Avro, which pyiceberg does not read, such as {path}.",
        remedy="Write them as Parquet: set the table property write.format.default to parquet, then "
        f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true')).",
    )


def microseconds(rows: pa.RecordBatch, column: str) -> pa.Array:
    """Return a column of times as microseconds since 1970."""
    times = rows.column(column)
    return times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())


CACHED_SCHEMAS = 256
"""Number of schemas in the cache. Each partitioning of each table has one."""

REMEMBERED_ENTRIES = 8_192
ENTRIES_OF_SMALL = 32
"""Most entries that are kept, some 10 MB, and most entries of a manifest that is small. Others are not kept."""

FILE_PATH_FIELD = 2147483546
"""Field id of `file_path` in a position delete file (Iceberg specification, reserved field ids)."""

_remembered: Recent[tuple[object, ...], tuple[ManifestEntry, ...]] = Recent(REMEMBERED_ENTRIES)


def entries(manifest: ManifestFile, io: FileIO, *, discard_deleted: bool = True) -> list[ManifestEntry]:
    """Return the entries of a manifest, equal to those of `ManifestFile.fetch_manifest_entry`.

    Nobody may change them: several readers share those of a small manifest.
    """
    file = io.new_input(manifest.manifest_path)
    # Its size shows whether a file that was read before is gone, or damaged since.
    key = (manifest.manifest_path, len(file), manifest.added_snapshot_id, manifest.sequence_number)
    known = _remembered.find(key)
    if known is None:
        with _EntriesFile(file) as opened:
            known = tuple(_inherit_from_manifest(entry, manifest) for entry in opened)
        if len(known) <= ENTRIES_OF_SMALL:
            _remembered.keep(key, known, weight=1 + len(known))
    return [entry for entry in known if not discard_deleted or entry.status is not ManifestEntryStatus.DELETED]


def live_entries(
    table: Table, snapshot: Snapshot | None, content: ManifestContent = ManifestContent.DATA
) -> Iterator[ManifestEntry]:
    """Yield the entries of the live data files of a snapshot, or of its live delete files; none for None."""
    for manifest in snapshot.manifests(table.io) if snapshot else []:
        if manifest.content is content:
            yield from entries(manifest, table.io)


def has_equality_deletes(table: Table, snapshot: Snapshot | None) -> bool:
    """Return whether rows of a snapshot are deleted by their values, as by Flink: pyiceberg (0.12) scans none such."""
    deletes = live_entries(table, snapshot, ManifestContent.DELETES)
    return any(entry.data_file.content is DataFileContent.EQUALITY_DELETES for entry in deletes)


def require_scannable(table: Table, name: str) -> None:
    """Check that pyiceberg can scan the head of main.

    Raises:
        SourceError: Rows of it are deleted by their values.
    """
    if has_equality_deletes(table, table.current_snapshot()):
        raise SourceError(
            f"Rows of {name} are deleted by their values (equality deletes): pyiceberg reads no such table.",
            remedy=f"CALL lake.system.rewrite_data_files(table => '{table_in_sql(name)}', options => map("
            "'rewrite-all', 'true', 'remove-dangling-deletes', 'true')), then run the command again.",
        )


def files_of(
    table: Table, condition: BooleanExpression = ALWAYS_TRUE, *, snapshot_id: int | None = None
) -> Iterable[DataFile | FileScanTask]:
    """Return the files, for `rows_of_files`, that may have rows of a condition.

    Of a snapshot with equality deletes, all data files are returned, with the rows that these hide.

    Args:
        snapshot_id: Default: the head of main.
    """
    snapshot = table.snapshot_by_id(snapshot_id) if snapshot_id else table.current_snapshot()
    if has_equality_deletes(table, snapshot):
        return [entry.data_file for entry in live_entries(table, snapshot)]
    return table.scan(condition, snapshot_id=snapshot_id).plan_files()


def changed_entries(
    snapshot: Snapshot, io: FileIO, manifests: Iterable[ManifestFile] | None = None
) -> Iterator[ManifestEntry]:
    """Yield the entries of the data and delete files that a snapshot added or removed.

    Args:
        snapshot: The snapshot.
        io: The table's file IO.
        manifests: The manifests to look into; None for those that the snapshot lists.
    """
    for manifest in snapshot.manifests(io) if manifests is None else manifests:
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in entries(manifest, io, discard_deleted=False):
                if entry.status is not ManifestEntryStatus.EXISTING and entry.snapshot_id == snapshot.snapshot_id:
                    yield entry


def bounds(file: DataFile, column: NestedField) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a column in a file; None if metadata do not tell both.

    A bound that was written before its column became wider has the length of the former type.
    """
    lower = (file.lower_bounds or {}).get(column.field_id)
    upper = (file.upper_bounds or {}).get(column.field_id)
    if lower is None or upper is None or not isinstance(column.field_type, PrimitiveType):
        return None
    kind: PrimitiveType = column.field_type
    if len(lower) == len(upper) == 4:
        kind = {"long": IntegerType(), "double": FloatType()}.get(str(kind), kind)
    return from_bytes(kind, lower), from_bytes(kind, upper)


def human_text(transform: Transform[Any, Any], column_type: IcebergType, value: Any) -> str:
    """Return a value for people. A time beyond the years 1 to 9999, which Python cannot show, has its year, too."""
    try:
        return transform.to_human_string(column_type, value)
    except (OverflowError, ValueError):
        if isinstance(transform, HourTransform):
            return hour_key(value)
        if isinstance(transform, DayTransform) or isinstance(column_type, DateType):
            return hour_text(value * 24, "%Y-%m-%d")
        if isinstance(transform, IdentityTransform) and isinstance(column_type, (TimestampType, TimestamptzType)):
            return time_text(value)
        return str(value)


def partition_text(table: Table, file: DataFile) -> dict[str, str | None]:
    """Return partition field → value for people, by the spec that a file was written with; None for no value."""
    schema = table.schema()
    found: dict[str, str | None] = {}
    for position, each in enumerate(table.specs()[file.spec_id].fields):
        value, source = file.partition[position], schema.find_column_name(each.source_id)
        if value is None or source is None:  # the column was dropped
            found[each.name] = None if value is None else str(value)
        else:
            found[each.name] = human_text(each.transform, schema.find_type(source), value)
    return found


def named_data_file(delete: DataFile) -> str | None:
    """Return the one data file that a position delete file names by its bounds; None if it may name several."""
    lower = (delete.lower_bounds or {}).get(FILE_PATH_FIELD)
    upper = (delete.upper_bounds or {}).get(FILE_PATH_FIELD)
    if delete.content is not DataFileContent.POSITION_DELETES or lower is None or lower != upper:
        return None
    return lower.decode()


class _EntriesFile(AvroFile[ManifestEntry]):
    """A manifest whose Avro schema is resolved once, which takes longer than to read the entries of a small one."""

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


def check_grain(table: Table, time_column: str, grain: Grain) -> None:
    """Check that a table is partitioned by its declared grain: one hour of a day cannot be overwritten.

    Raises:
        ConfigurationError: It is partitioned otherwise, or was created for days of another time zone.
    """
    _, found = _needed_partition(table, table.spec().spec_id, time_column)
    if found == HOUR and TIMEZONE in table.properties:
        found = days_in(table.properties[TIMEZONE])
    if found != grain:
        declared, right = (
            f"grain={each.name!r}" + (f", timezone={each.timezone!r}" if each.is_local else "")
            for each in (grain, found)
        )
        raise ConfigurationError(
            f"{'.'.join(table.name())} is declared with {declared}, and partitioned by {found.in_words}.",
            remedy=f"Declare {right}, or drop the table and let `lake init` create it again.",
        )


def time_partition(table: Table, spec_id: int, time_column: str) -> tuple[int, Grain] | None:
    """Return which field of a partition spec is the hour or the day of a column, and its grain; None if none is."""
    source_id = table.schema().find_field(time_column).field_id
    for position, field in enumerate(table.specs()[spec_id].fields):
        for grain, transform in TRANSFORMS.items():
            if field.source_id == source_id and field.transform == transform:
                return position, grain
    return None


def _needed_partition(table: Table, spec_id: int, time_column: str) -> tuple[int, Grain]:
    found = time_partition(table, spec_id, time_column)
    if found is None:
        raise ConfigurationError(
            f"{'.'.join(table.name())} is partitioned neither by the hour nor by the day of {time_column}.",
            remedy="Let `lake init` create the table, or partition it by hours(time column) or days(time column).",
        )
    return found


def _hours(table: Table, file: DataFile, time_column: str) -> range | None:
    """Return the hours of a data file's partition; None if its rows have no time."""
    position, grain = _needed_partition(table, file.spec_id, time_column)
    number = file.partition[position]
    return None if number is None else grain.numbered(number)


def files_by_hours(
    table: Table, snapshot: Snapshot | None, time_column: str, hours: Collection[int] | None = None
) -> Iterator[tuple[range, ManifestEntry]]:
    """Yield the live data files of rows with a time, each with the hours of its partition.

    Rows deleted by merge-on-read are in the files still.

    Args:
        hours: Partitions without any of them are left out, and manifests outside of them are not read; None for all.
    """
    if hours is not None and not hours:
        return
    ends = (hours[0], hours[-1]) if isinstance(hours, range) else hours  # a range may have millions of hours
    first, last = (-inf, inf) if ends is None else (min(ends), max(ends))
    wanted = hours if hours is None or isinstance(hours, range) else frozenset(hours)
    for manifest in snapshot.manifests(table.io) if snapshot else []:
        if manifest.content is not ManifestContent.DATA:
            continue
        if wanted is not None and manifest.partitions:
            position, grain = _needed_partition(table, manifest.partition_spec_id, time_column)
            limits = manifest.partitions[position].lower_bound, manifest.partitions[position].upper_bound
            known = [grain.numbered(int(from_bytes(IntegerType(), each))) for each in limits if each is not None]
            if len(known) == len(limits) and (known[0][0] > last or known[1][-1] < first):
                continue
        for entry in entries(manifest, table.io):
            partition = _hours(table, entry.data_file, time_column)
            if partition is not None and (wanted is None or any(hour in wanted for hour in partition)):
                yield partition, entry


def rows_by_hour(table: Table, time_column: str, hours: Collection[int] | None = None) -> dict[int, int]:
    """Return hour → rows of main, for all hours with rows, ascending; those of a day at its first hour.

    Args:
        hours: Only the partitions with any of these hours are counted; None for all.
    """
    found: Counter[int] = Counter()
    for partition, entry in files_by_hours(table, table.current_snapshot(), time_column, hours):
        found[partition[0]] += entry.data_file.record_count
    return dict(sorted(found.items()))


def hours_present(table: Table, time_column: str) -> frozenset[int]:
    """Return the hours for which main has rows; of a day, its first."""
    return frozenset(hour for hour, rows in rows_by_hour(table, time_column).items() if rows and is_hour(hour))


def rows_between(table: Table, time_column: str, first: int, last: int) -> int:
    """Return the rows of main in the hours first..last, both inclusive, or in days that contain any of them."""
    return sum(rows_by_hour(table, time_column, range(first, last + 1)).values())


def rows_in_hours(
    table: Table, snapshot_id: int | None, time_column: str, hours: Collection[int]
) -> dict[int, int] | None:
    """Return hour → rows of a snapshot, for those of the hours that have any.

    Returns:
        None if the metadata do not contain exact numbers: a partition is a day, or there are delete files.
    """
    snapshot = table.snapshot_by_id(snapshot_id or 0)
    manifests = snapshot.manifests(table.io) if snapshot and hours else []
    if any(manifest.content is ManifestContent.DELETES for manifest in manifests):
        return None
    found: Counter[int] = Counter()
    for partition, entry in files_by_hours(table, snapshot, time_column, hours):
        if len(partition) > 1:
            return None
        found[partition[0]] += entry.data_file.record_count
    return dict(found)


def within(table: Table, time_column: str, hours: Iterable[int]) -> BooleanExpression:
    """Return the condition of a scan that a time lies in any of the hours."""
    zone = UTC if isinstance(table.schema().find_field(time_column).field_type, TimestamptzType) else None
    found: list[BooleanExpression] = []
    for first, last in ranges(hours):
        start, end = (hour_start(hour).replace(tzinfo=zone).isoformat() for hour in (first, last + 1))
        since = GreaterThanOrEqual(time_column, start)  # type: ignore[call-arg, arg-type]
        found.append(And(since, LessThan(time_column, end)))  # type: ignore[call-arg, arg-type]
    return Or(AlwaysFalse(), AlwaysFalse(), *found)


def written_hours(table: Table, snapshot: Snapshot, time_column: str) -> tuple[set[int | None], set[int | None], bool]:
    """Return the hours of the data files that a snapshot added, and of those that it removed; of a day, all.

    None stands for rows without a time.

    Returns:
        The two sets, and whether the snapshot added delete files, which hide rows of data files that stay.
    """
    added, removed = set[int | None](), set[int | None]()
    deletes_rows = False
    for entry in changed_entries(snapshot, table.io):
        is_added = entry.status is ManifestEntryStatus.ADDED
        if entry.data_file.content is DataFileContent.DATA:
            (added if is_added else removed).update(_hours(table, entry.data_file, time_column) or [None])
        elif is_added:
            deletes_rows = True
    return added, removed, deletes_rows


def arrow_rows(table: Table, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table with the columns of a table."""
    return pa.Table.from_pylist(list(rows), schema=schema_to_pyarrow(table.schema(), include_field_ids=False))


class OneCopyTransaction(Transaction):
    """A transaction whose `table_metadata` is computed anew only after the table or the updates have changed.

    A commit asks for the metadata some twenty times. pyiceberg applies all updates again and copies the whole result
    each time, which takes longer than the rest of the commit.
    """

    _computed: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the updates so far; nobody may change it."""
        # Metadata and tuples of updates are replaced, never changed, so that they are the same says that all is.
        metadata, updates, known = self._table.metadata, self._updates, self._computed
        if known is None or known[0] is not metadata or known[1] is not updates:
            known = self._computed = metadata, updates, super().table_metadata if updates else metadata
        return known[2]


COMPLETE_THROUGH = "lake.complete-through"
"""Table property: the last hour, inclusive, for which the table has all data that arrive on time. An hour key."""

SESSION_PROPERTY = "lake.session"
"""Table property: the session that was published last. A session without rows has no snapshot with its `wap.id`."""

WAP_ENABLED = "write.wap.enabled"

SMALL_FILES = {"file-open-cost": str(512 * 1024)}
"""Options of Spark's reads. Iceberg counts each file as 4 MB at least, so a task reads few files of hours, and costs
more than its reading."""

Partitions = Mapping[str, Transform[Any, Any]]
"""Column → the transform that the table is partitioned by."""

RAW_PARTITIONS = ("landing_date", "landing_hour", "batch_id")
"""The columns that a raw table is partitioned by."""

FIRST_PARTITION_FIELD_ID = 1000
"""Iceberg numbers partition fields from 1000 on (Iceberg specification, partition field ids)."""

_COMMON = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # A writer of Parquet allocates a page. By default that is a megabyte, which each hour would cost.
    "write.parquet.page-size-bytes": "131072",
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


@retrying().wraps
def set_properties(catalog: Catalog, name: str, properties: Mapping[str, str | None]) -> None:
    """Set properties of a table, also if others commit to it meanwhile; None removes one."""
    table = load(catalog, name)
    new = {key: value for key, value in properties.items() if value is not None}
    gone = table.metadata.properties.keys() & properties.keys() - new.keys()
    with table.transaction() as transaction:
        if new:
            transaction.set_properties(new)
        if gone:
            transaction.remove_properties(*gone)


@contextmanager
def committing(catalog: Catalog, table: Table) -> Iterator[None]:
    """Commit to a table by pyiceberg, and remove what that writes if another commit came before: it leaves data files.

    They may hold rows of somebody who is erased, and nobody else can tell them from those of a writer at work.

    Raises:
        CommitFailedException: Another commit came before.
    """
    written: list[str] = []
    name, before = ".".join(table.name()), table.metadata_location
    io = table.io
    new_output = io.new_output

    def recorded(location: str) -> OutputFile:
        written.append(location)
        return new_output(location)

    io.new_output = recorded  # type: ignore[method-assign]
    try:
        yield
    except (CommitFailedException, ValidationException, ValueError) as error:
        # pyiceberg raises these before anything is committed, but for a reply that it cannot read.
        present = load(catalog, name)
        if {each.manifest_list for each in present.metadata.snapshots}.isdisjoint(written):
            for path in written:
                with suppress(OSError):
                    io.delete(path)
        # After another commit, pyiceberg refuses the sequence number of a snapshot with a `ValueError`.
        if not isinstance(error, CommitFailedException) and present.metadata_location != before:
            raise CommitFailedException(f"{name} has moved") from error
        raise
    finally:
        io.new_output = new_output  # type: ignore[method-assign]


def create_raw(catalog: Catalog, raw: RawTable) -> bool:
    """Create a raw table if it does not exist. Return whether it was created."""
    partitions = dict.fromkeys(RAW_PARTITIONS, IdentityTransform[Any]())
    # A writer may stage rows and publish them together with complete-through.
    wap = {WAP_ENABLED: "true"}
    return create(catalog, raw.table, raw.all_columns, partitions, wap, descriptions=raw.all_descriptions)


def create_target(catalog: Catalog, target: Target) -> bool:
    """Create a target's table if it does not exist. Return whether it was created."""
    grain = target.grain
    # A local day is partitioned by hours, as Iceberg knows days of UTC alone.
    partitions = {target.time_column: TRANSFORMS[HOUR if grain.is_local else grain]}
    properties = {WAP_ENABLED: "true"} | ({TIMEZONE: grain.timezone} if grain.is_local else {})
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
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    docs = descriptions or {}
    schema = Schema(*fields_of((column, kind, docs.get(column)) for column, kind in columns.items()))
    parts = []
    for field_id, (column, transform) in enumerate(partitions.items(), start=FIRST_PARTITION_FIELD_ID):
        field_name = column if isinstance(transform, IdentityTransform) else f"{column}_{transform}"
        parts.append(PartitionField(schema.find_field(column).field_id, field_id, transform, field_name))
    try:
        catalog.create_table(name, schema, partition_spec=PartitionSpec(*parts), properties={**_COMMON, **properties})
    except TableAlreadyExistsError:
        return False
    return True


def fields_of(columns: Iterable[tuple[str, str, str | None]]) -> tuple[NestedField, ...]:
    """Return columns, each a name, an Iceberg type and a description or None, as fields of a schema."""
    ids = count(1)
    return tuple(
        NestedField(next(ids), name, iceberg_type(kind, ids), required=False, doc=doc) for name, kind, doc in columns
    )


_SPARK_NAMES: dict[type[IcebergType], str] = {
    LongType: "bigint",
    TimestamptzType: "timestamp",
    TimestampType: "timestamp_ntz",
    UUIDType: "string",
    FixedType: "binary",
    BinaryType: "binary",
}
"""Spark's names of types that Iceberg calls otherwise."""


def type_text(found: IcebergType, *, sql: bool = False) -> str:
    """Return an Iceberg type as it is declared, without the ids of nested fields; or as Spark's SQL has it."""
    parts = partial(type_text, sql=sql)
    if isinstance(found, StructType):
        fields = [f"{quoted(each.name) if sql else each.name}: {parts(each.field_type)}" for each in found.fields]
        return f"struct<{', '.join(fields)}>"
    if isinstance(found, ListType):
        return f"{'array' if sql else 'list'}<{parts(found.element_type)}>"
    if isinstance(found, MapType):
        return f"map<{parts(found.key_type)}, {parts(found.value_type)}>"
    return _SPARK_NAMES.get(type(found), str(found)) if sql else str(found)


def holds(wide: IcebergType, narrow: IcebergType) -> bool:
    """Return whether Iceberg turns a type into another one by metadata, with all its values, or both are the same.

    A struct, also one in a nested type, may get further fields. The order of fields does not count.
    """
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        return narrow.scale == wide.scale and narrow.precision <= wide.precision
    if isinstance(narrow, StructType) and isinstance(wide, StructType):
        fields = {each.name: each.field_type for each in wide.fields}
        return all(each.name in fields and holds(fields[each.name], each.field_type) for each in narrow.fields)
    if isinstance(narrow, ListType) and isinstance(wide, ListType):
        return holds(wide.element_type, narrow.element_type)
    if isinstance(narrow, MapType) and isinstance(wide, MapType):
        return narrow.key_type == wide.key_type and holds(wide.value_type, narrow.value_type)
    pair = type(narrow), type(wide)
    return narrow == wide or pair in ((IntegerType, LongType), (FloatType, DoubleType))


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
        from pyiceberg.catalog.sql import SqlCatalog

        from lake_assets.connections.sql_catalog import locations_in

        # Only a SQL catalog can be asked which file it is.
        path = locations_in(catalog).get(name) if isinstance(catalog, SqlCatalog) else None
        io = load_file_io(dict(catalog.properties), path) if path else None
        raise file_damage(name, path or f"(the metadata of {name})", error, io) from error


@contextmanager
def landed_with(catalog: Catalog, table: Table, through: int | None) -> Iterator[Transaction]:
    """Commit what a block adds to a raw table, and its complete-through unless a later one is set, in one commit.

    Raises:
        CommitFailedException: Another commit came before.
    """
    # pyiceberg would try again by itself, with an hour that another commit may have passed.
    table.metadata.properties["commit.retry.num-retries"] = "0"
    present = complete_through(table, ".".join(table.name()))
    with committing(catalog, table), table.transaction() as transaction:
        yield transaction
        if through is not None and (present is None or through > present):
            transaction.set_properties({COMPLETE_THROUGH: hour_key(through)})


def complete_through(table: Table, name: str) -> int | None:
    """Return a table's complete-through, from the same metadata as its head; None if it was never set.

    Raises:
        InvalidHourKey: The property is no hour key.
    """
    value = table.metadata.properties.get(COMPLETE_THROUGH)
    if value is None:
        return None
    try:
        return parse_hour(value)
    except InvalidHourKey:
        raise invalid_complete_through(name, COMPLETE_THROUGH, value) from None


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
        SourceError: A column is missing or has another type.
    """
    kinds = {field.name: field.field_type for field in table.schema().fields}
    for column, expected in declared.items():
        actual = type_text(kinds[column]) if column in kinds else None
        wanted = iceberg_type(expected, count(1)) if expected else None
        if actual is None or (wanted and not (holds(wanted, kinds[column]) and holds(kinds[column], wanted))):
            remedy = f"Run `lake migrate {name}` to see how the table becomes as declared, or correct the declaration."
            remedy = remedy if expected else ""
            raise column_mismatch(name, column, expected=expected or "any type", found=actual, remedy=remedy)


def check_write_audit_publish(table: Table, name: str) -> None:
    """Check that a table stages commits under a WAP id. Otherwise Iceberg ignores the id and writes to main.

    Raises:
        TargetError: It does not.
    """
    if table.metadata.properties.get(WAP_ENABLED, "").lower() != "true":
        raise write_audit_publish_disabled(name)
