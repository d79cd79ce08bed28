"""The stored index of one column of one table: a SQLite file with the data files, and the values in each.

Values are stored as hashes of 32 bits. Two values may have one hash, so a file that is found may lack the value. A file
that was removed from the table stays in the index while a retained snapshot has it.

Failure model: a change is one SQLite transaction. A file that is damaged or missing is built again.

Following a table: what an index learns from the snapshots after the one that it describes.

Only the manifests that these snapshots wrote are read, and the column of the files that they added. If the described
snapshot is no ancestor any more, everything is read again.

Finding the rows of a table that have one of some values, by its index, without reading the table.

The answer is exact: the files that the index names are read, and the rows in them compared. Where the index may not
answer, or would read much, there is no answer, and the caller reads the table as if there were no index.

Rows between Spark and this process: the values to look up, and the rows that were found.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from lake_assets.base.columns import column
from lake_assets.connections.catalog import KEY_INDEX
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.iceberg import ArrowScan, changed_entries, entries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


LOCK_SECONDS = 20
"""How long a change waits for the change of another process."""

VALUES_IN_QUERY = 500
"""Number of values that one query looks up."""

_SCHEMA = """
create table if not exists described (snapshot_id integer, sequence_number integer, first_sequence_number integer);
create table if not exists files (
    id integer primary key, path text unique, rows integer, bytes integer, spec_id integer, partition text,
    added integer, removed integer
);
create table if not exists postings (hash integer, file integer, primary key (hash, file)) without rowid;
create index if not exists postings_of_file on postings (file);
create index if not exists removed_files on files (removed) where removed is not null;
"""


@dataclass(frozen=True)
class Described:
    """The state of the table that the index describes.

    Attributes:
        snapshot_id: The snapshot that it describes.
        sequence_number: Of the snapshot.
        first_sequence_number: Of the earliest ancestor of the snapshot that it also describes.
    """

    snapshot_id: int
    sequence_number: int
    first_sequence_number: int


@dataclass(frozen=True)
class IndexedFile:
    """A data file of the index.

    Attributes:
        path: Its location.
        rows: Number of rows.
        bytes: Size.
        spec_id: Its partition spec.
        partition: Its partition values, as JSON.
    """

    path: str
    rows: int
    bytes: int
    spec_id: int
    partition: str


class Postings:
    """One index file, inside a transaction of `opened`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def described(self) -> Described | None:
        """Return the state that the index describes; None for an empty index."""
        row = self._connection.execute("select * from described").fetchone()
        return Described(*row) if row else None

    def describe(self, state: Described) -> None:
        """Record the state that the index describes from now on."""
        self._connection.execute("delete from described")
        values = (state.snapshot_id, state.sequence_number, state.first_sequence_number)
        self._connection.execute("insert into described values (?, ?, ?)", values)

    def clear(self) -> None:
        """Remove everything."""
        for table in ("described", "postings", "files"):
            self._connection.execute(f"delete from {table}")

    def add(self, file: IndexedFile, values: Iterable[object], *, at: int) -> None:
        """Add a data file.

        Args:
            file: The file.
            values: The values of the column in it.
            at: Sequence number of the snapshot that added it.
        """
        row = (file.path, file.rows, file.bytes, file.spec_id, file.partition, at)
        insert = "insert into files (path, rows, bytes, spec_id, partition, added) values (?, ?, ?, ?, ?, ?)"
        number = self._connection.execute(insert, row).lastrowid
        hashes = {hash_of(value) for value in values}
        self._connection.executemany("insert into postings values (?, ?)", [(each, number) for each in sorted(hashes)])

    def remove(self, path: str, *, at: int) -> None:
        """Record that a snapshot, given by its sequence number, removed a data file."""
        self._connection.execute("update files set removed = ? where path = ?", (at, path))

    def forget(self, *, before: int) -> None:
        """Forget the files that no snapshot has from a sequence number on."""
        gone = "select id from files where removed <= ?"
        self._connection.execute(f"delete from postings where file in ({gone})", (before,))
        self._connection.execute("delete from files where removed <= ?", (before,))

    def files_with(self, values: Collection[object], *, at: int) -> list[IndexedFile]:
        """Return the files that may have one of the values, by path, as of a snapshot's sequence number."""
        hashes = sorted({hash_of(value) for value in values})
        found: set[IndexedFile] = set()
        for start in range(0, len(hashes), VALUES_IN_QUERY):
            part = hashes[start : start + VALUES_IN_QUERY]
            places = ", ".join("?" * len(part))
            rows = self._connection.execute(
                "select distinct path, rows, bytes, spec_id, partition from postings join files on id = file"
                f" where hash in ({places}) and added <= ? and (removed is null or removed > ?)",
                (*part, at, at),
            )
            found.update(IndexedFile(*row) for row in rows)
        return sorted(found, key=lambda file: file.path)


@contextmanager
def opened(path: Path) -> Iterator[Postings]:
    """Open an index in a transaction that is committed if the block ends without an error.

    Raises:
        sqlite3.Error: The file is damaged, or another process changes it for longer than `LOCK_SECONDS`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)) as connection:
        connection.execute("pragma secure_delete = on")  # hashes of erased subjects leave the disk, too
        connection.executescript(_SCHEMA)
        connection.execute("begin immediate")
        try:
            yield Postings(connection)
            connection.execute("commit")
        except BaseException:
            connection.rollback()
            raise


def hash_of(value: object) -> int:
    """Return the hash of a value, the same in every process."""
    return zlib.crc32(str(value).encode())


READERS = 8
"""Data files that are read at a time: those of an object store wait more than they compute."""

FILES_IN_MEMORY = 256
"""Data files whose values are in memory before they are stored."""


class NotIndexable(Exception):
    """A data file has a format that the index does not read."""


def follow(postings: Postings, table: Table, column: str, snapshot: Snapshot) -> bool:
    """Bring an index to a snapshot, unless it describes it already.

    Returns:
        Whether the index describes the snapshot. It does not if it describes a later one, and the files that the
        snapshot has are not all known.

    Raises:
        FileNotFoundError: A file of the snapshot is gone.
        NotIndexable: A file is no Parquet file.
    """
    known = postings.described()
    chain = None if known is None else _since(table, known, snapshot)
    if known is not None and chain is None and _describes(table, known, snapshot):
        return _number(snapshot) >= known.first_sequence_number
    if known is None or chain is None:
        postings.clear()
        _build(postings, table, column, snapshot)
        return True
    if chain:
        _advance(postings, table, column, known, chain)
    return True


def _since(table: Table, known: Described, snapshot: Snapshot) -> list[Snapshot] | None:
    """Return the ancestors of a snapshot after the described one, oldest first; None if that is no ancestor."""
    chain: list[Snapshot] = []
    for each in publish.ancestors(table, snapshot.snapshot_id):
        if each.snapshot_id == known.snapshot_id:
            return chain[::-1]
        chain.append(each)
    return None


def _describes(table: Table, known: Described, snapshot: Snapshot) -> bool:
    """Whether a snapshot is an ancestor of the described one."""
    if table.snapshot_by_id(known.snapshot_id) is None:
        return False
    return any(each.snapshot_id == snapshot.snapshot_id for each in publish.ancestors(table, known.snapshot_id))


def _build(postings: Postings, table: Table, column: str, snapshot: Snapshot) -> None:
    number = _number(snapshot)
    files: list[DataFile] = []
    for manifest in snapshot.manifests(table.io):
        files += [entry.data_file for entry in entries(manifest, table.io, discard_deleted=True)]
    _add_files(postings, table, column, [(file, number) for file in files])
    postings.describe(Described(snapshot.snapshot_id, number, number))


def _advance(postings: Postings, table: Table, column: str, known: Described, chain: Iterable[Snapshot]) -> None:
    added: dict[str, tuple[DataFile, int]] = {}
    last, first = known, known.first_sequence_number
    for snapshot in chain:
        number = _number(snapshot)
        for file, is_added in _changed_files(table, snapshot):
            if is_added:
                added[file.file_path] = file, number
            elif added.pop(file.file_path, None) is not None:
                first = number  # the file may be gone: the snapshots that had it are not described
            else:
                postings.remove(file.file_path, at=number)
        last = Described(snapshot.snapshot_id, number, first)
    _add_files(postings, table, column, list(added.values()))
    oldest = min(_number(each) for each in table.metadata.snapshots)
    postings.forget(before=oldest)
    postings.describe(last)


def _add_files(postings: Postings, table: Table, column: str, files: Sequence[tuple[DataFile, int]]) -> None:
    """Add data files, each with the sequence number of the snapshot that added it. Several are read at a time."""
    reader = _ValueReader(table, column)
    # pyiceberg's own threads serve these ones, so they are others.
    with ThreadPoolExecutor(READERS) as readers:
        for start in range(0, len(files), FILES_IN_MEMORY):
            part = files[start : start + FILES_IN_MEMORY]
            values = readers.map(reader.values, [file for file, _ in part])
            for (file, number), of_file in zip(part, values, strict=True):
                postings.add(_indexed(file), of_file, at=number)


def _changed_files(table: Table, snapshot: Snapshot) -> Iterator[tuple[DataFile, bool]]:
    """Yield the files that a snapshot removed, then those that it added, each with whether it was added."""
    changed = list(changed_entries(snapshot, table.io))
    for status in (ManifestEntryStatus.DELETED, ManifestEntryStatus.ADDED):
        for entry in changed:
            if entry.status is status:
                yield entry.data_file, status is ManifestEntryStatus.ADDED


def _indexed(file: DataFile) -> IndexedFile:
    values = [file.partition[place] for place in range(len(file.partition))]
    partition = json.dumps(values, default=str)
    return IndexedFile(file.file_path, file.record_count, file.file_size_in_bytes, file.spec_id, partition)


def _number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


class _ValueReader:
    """Reads the values of one column of data files."""

    def __init__(self, table: Table, column: str) -> None:
        self._column = column
        self._scan = ArrowScan(table.metadata, table.io, table.schema().select(column), ALWAYS_TRUE)

    def values(self, file: DataFile) -> set[object]:
        """Return the values that are not null, each once."""
        if file.file_format is not FileFormat.PARQUET:
            raise NotIndexable(file.file_path)
        found: set[object] = set()
        for batch in self._scan.to_record_batches([FileScanTask(file)]):
            found.update(batch.column(self._column).drop_null().unique().to_pylist())
        return found


VERSION = 1
"""Version of the stored form. Files of another one are not read."""

MIN_FILES = 200
"""Least number of data files for an index. A table with fewer is read as fast without one."""

MAX_TABLE_ROWS = 5_000_000
"""Most rows of a table with an index: it has an entry for each value and file."""

MAX_VALUES = 2_000
"""Most values of one lookup."""

MAX_FILES_READ = 4_000
MAX_ROWS_READ = 50_000
"""Most files and rows that one lookup reads in this process; of more, Spark reads the table faster."""

INDEXED_TYPES = (types.StringType, types.IntegerType, types.LongType)
"""Types of columns whose values are compared as they are stored."""

RETURNED_TYPES = (
    *INDEXED_TYPES,
    types.BinaryType,
    types.BooleanType,
    types.DateType,
    types.DecimalType,
    types.DoubleType,
    types.FloatType,
    types.TimestampType,
    types.TimestamptzType,
)
"""Types of columns that Spark gets from this process as it reads them itself. It reads a UUID as text, for example."""

NUMBERED_FORMAT = 2
"""First version of the table format whose snapshots have sequence numbers."""

SUMMARY = ("total-data-files", "total-records")


class KeyIndex:
    """The indexes of the tables of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        folder = catalog.properties.get(KEY_INDEX)
        self._folder = Path(folder) if folder else None

    def _path(self, table: Table, column: str) -> Path:
        assert self._folder is not None, "without a folder no snapshot is found"
        return self._folder / f"{table.metadata.table_uuid}-{_field_id(table, column)}-v{VERSION}.db"

    def covers(self, name: str, snapshot_id: int | None, column: str) -> bool:
        """Return whether the index of a column may answer for a snapshot. Reads metadata only."""
        return self._find(name, snapshot_id, column) is not None

    def _find(self, name: str, snapshot_id: int | None, column: str) -> tuple[Table, Snapshot] | None:
        if self._folder is None or snapshot_id is None:
            return None
        table = iceberg.load(self._catalog, name)
        snapshot = table.snapshot_by_id(snapshot_id)
        if snapshot is None or not _is_indexed(table, snapshot, column):
            return None
        return table, snapshot

    def rows(
        self,
        name: str,
        snapshot_id: int | None,
        column: str,
        values: Collection[object],
        *,
        columns: Sequence[str] | None = None,
    ) -> pa.Table | None:
        """Return the rows of a table that have one of the values.

        Args:
            name: The table.
            snapshot_id: The snapshot to read.
            column: The column to search.
            values: Text or whole numbers, as the column has them; None is no value.
            columns: The columns to return, among them the searched one; None for all that the table has now.

        Returns:
            The rows, ordered by file; None if the index does not answer.
        """
        found = self._find(name, snapshot_id, column)
        if found is None or len(values) > MAX_VALUES:
            return None
        table, snapshot = found
        schema = table.schema()
        if columns is not None:
            schema = schema.select(*columns)
        if not _are_of_type(values, schema, column) or not _are_returned(schema):
            return None
        try:
            files = _files_with(self._path(table, column), table, column, snapshot, values)
            return None if files is None else _read(table, schema, files, column, values)
        except (OSError, NotIndexable):
            return None


def _is_indexed(table: Table, snapshot: Snapshot, column: str) -> bool:
    """Whether an index of a column is worth it, and the data files alone contain the rows of the snapshot."""
    if table.format_version < NUMBERED_FORMAT or not _has_column(table, column):
        return False
    if not _is_worth_it(snapshot):
        return False
    return all(manifest.content is ManifestContent.DATA for manifest in snapshot.manifests(table.io))


def _has_column(table: Table, column: str) -> bool:
    """Return whether a table has a column of a type that is indexed."""
    return any(each.name == column and isinstance(each.field_type, INDEXED_TYPES) for each in table.schema().fields)


def _is_worth_it(snapshot: Snapshot) -> bool:
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    if any(name not in summary for name in SUMMARY):
        return False
    files, rows = (int(summary[name]) for name in SUMMARY)
    return files >= MIN_FILES and rows <= MAX_TABLE_ROWS


def _are_of_type(values: Collection[object], schema: Schema, column: str) -> bool:
    """Whether values are text or whole numbers, as the column is: Spark would convert others."""
    wanted = str if isinstance(schema.find_field(column).field_type, types.StringType) else int
    return all(isinstance(value, wanted) for value in values)


def _are_returned(schema: Schema) -> bool:
    return all(isinstance(field.field_type, RETURNED_TYPES) for field in schema.fields)


def _field_id(table: Table, column: str) -> int:
    return table.schema().find_field(column).field_id


def _files_with(
    path: Path, table: Table, column: str, snapshot: Snapshot, values: Collection[object]
) -> list[IndexedFile] | None:
    """Return the files of a snapshot that may have one of the values; None if they are unknown or too many."""
    try:
        with opened(path) as postings:
            if not follow(postings, table, column, snapshot):
                return None
            files = postings.files_with(values, at=snapshot.sequence_number or 0)
    except sqlite3.OperationalError:  # another process changes it, or the disk is full
        return None
    except sqlite3.DatabaseError:  # damaged: the next session builds it again
        path.unlink(missing_ok=True)
        return None
    rows = sum(file.rows for file in files)
    return files if len(files) <= MAX_FILES_READ and rows <= MAX_ROWS_READ else None


def _read(
    table: Table,
    schema: Schema,
    files: Sequence[IndexedFile],
    column: str,
    values: Collection[object],
) -> pa.Table:
    scan = ArrowScan(table.metadata, table.io, schema, ALWAYS_TRUE)
    arrow_schema = schema_to_pyarrow(schema, include_field_ids=False)
    wanted = sorted(values, key=str)
    found = []
    for batch in scan.to_record_batches([FileScanTask(_data_file(file)) for file in files]):
        of_batch = batch.column(column)
        value_set = pa.array(wanted).cast(of_batch.type)
        rows = batch.filter(pc.is_in(of_batch, value_set=value_set))
        # Files of different writers give text as different types of Arrow.
        found.append(pa.Table.from_batches([rows]).cast(arrow_schema))
    return pa.concat_tables([arrow_schema.empty_table(), *found])


def _data_file(file: IndexedFile) -> DataFile:
    found = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*json.loads(file.partition)),
        record_count=file.rows,
        file_size_in_bytes=file.bytes,
    )
    found.spec_id = file.spec_id
    return found


def distinct_values(rows: DataFrame, name: str) -> set[object] | None:
    """Return the values of a column, null as None; None if they are more than one lookup takes."""
    found = rows.select(column(name)).distinct().limit(MAX_VALUES + 1).collect()
    return None if len(found) > MAX_VALUES else {row[0] for row in found}


def local_rows(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return rows of this process as a DataFrame of one partition."""
    return spark.createDataFrame(rows).coalesce(1)
