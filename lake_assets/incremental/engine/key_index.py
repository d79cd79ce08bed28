"""Indexes of single columns: they find the rows of a table that have one of some values, without reading the table.

An index is a SQLite file with the data files of a table, and the values of the column in each. Values are stored as
hashes of 32 bits. Two values may have one hash, so a file that is found may lack the value; the answer is exact all the
same, because the files are read, and the rows in them compared. Where the index may not answer, or would read much,
there is no answer, and the caller reads the table as if there were no index.

An index follows its table when it is asked: only the manifests that new snapshots wrote are read, and the column of the
files that they added. If the described snapshot is no ancestor any more, everything is read again. A file that was
removed from the table stays in the index while a retained snapshot has it.

Failure model: a change is one SQLite transaction. A file that is damaged or missing is built again.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from lake_assets.base.columns import column as column_of
from lake_assets.connections.catalog import KEY_INDEX
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.iceberg import changed_entries, live_entries, rows_of_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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

LOCK_SECONDS = 20
"""How long a change waits for the change of another process."""

VALUES_IN_QUERY = 500
"""Number of values that one query looks up."""

READERS = 8
"""Data files that are read at a time: those of an object store wait more than they compute."""

FILES_IN_MEMORY = 256
"""Data files whose values are in memory before they are stored."""

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
"""`described`: the snapshot that the index describes, and the sequence number of its earliest ancestor that it also
describes. `added` and `removed`: sequence numbers of the snapshots that did it. `partition`: values, as JSON."""


class NotIndexable(Exception):
    """A data file has a format that the index does not read."""


class IndexedFile(NamedTuple):
    """A data file of an index: the columns of `files`."""

    path: str
    rows: int
    bytes: int
    spec_id: int
    partition: str


class KeyIndex:
    """The indexes of the tables of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._folder = catalog.properties.get(KEY_INDEX)

    def covers(self, name: str, snapshot_id: int | None, column: str) -> bool:
        """Return whether the index of a column may answer for a snapshot. Reads metadata only."""
        return self._find(name, snapshot_id, column) is not None

    def _find(self, name: str, snapshot_id: int | None, column: str) -> tuple[Table, Snapshot] | None:
        """Return a table and its snapshot if an index is worth it, and the data files alone contain the rows."""
        if not self._folder or snapshot_id is None:
            return None
        table = iceberg.load(self._catalog, name)
        snapshot = table.snapshot_by_id(snapshot_id)
        if snapshot is None or table.format_version < NUMBERED_FORMAT:
            return None
        if not any(
            each.name == column and isinstance(each.field_type, INDEXED_TYPES) for each in table.schema().fields
        ):
            return None
        files = int(publish.summary_of(snapshot).get("total-data-files", 0))
        if files < MIN_FILES or publish.rows_of(table, snapshot_id) > MAX_TABLE_ROWS:
            return None
        if any(manifest.content is ManifestContent.DELETES for manifest in snapshot.manifests(table.io)):
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
        schema = table.schema() if columns is None else table.schema().select(*columns)
        field = schema.find_field(column)
        kind = str if isinstance(field.field_type, types.StringType) else int  # Spark would convert others
        if not all(isinstance(value, kind) for value in values):
            return None
        if not all(isinstance(each.field_type, RETURNED_TYPES) for each in schema.fields):
            return None
        path = Path(str(self._folder), f"{table.metadata.table_uuid}-{field.field_id}-v{VERSION}.db")
        try:
            with opened(path) as index:
                if not _follow(index, table, column, snapshot):
                    return None
                files = files_with(index, values, at=snapshot.sequence_number or 0)
            if len(files) > MAX_FILES_READ or sum(file.rows for file in files) > MAX_ROWS_READ:
                return None
            wanted = pa.array(sorted(values, key=str))
            arrow_schema = schema_to_pyarrow(schema, include_field_ids=False)
            parts = [arrow_schema.empty_table()]
            for batch in rows_of_files(table, map(_data_file, files), schema.column_names):
                searched = batch.column(column)
                rows = batch.filter(pc.is_in(searched, value_set=wanted.cast(searched.type)))
                parts.append(pa.Table.from_batches([rows]))
            return pa.concat_tables(parts)
        except (OSError, NotIndexable, sqlite3.OperationalError):
            return None  # a file is gone; another process changes the index, or the disk is full
        except sqlite3.DatabaseError:  # damaged: the next session builds it again
            path.unlink(missing_ok=True)
            return None


def distinct_values(rows: DataFrame, name: str) -> set[object] | None:
    """Return the values of a column, null as None; None if they are more than one lookup takes."""
    found = rows.select(column_of(name)).distinct().limit(MAX_VALUES + 1).collect()
    return None if len(found) > MAX_VALUES else {row[0] for row in found}


def local_rows(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return rows of this process as a DataFrame of one partition."""
    return spark.createDataFrame(rows).coalesce(1)


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


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an index in a transaction that is committed if the block ends without an error.

    Raises:
        sqlite3.Error: The file is damaged, or another process changes it for longer than `LOCK_SECONDS`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)) as index:
        index.execute("pragma secure_delete = on")  # hashes of erased subjects leave the disk, too
        index.executescript(_SCHEMA)
        index.execute("begin immediate")
        try:
            yield index
            index.execute("commit")
        except BaseException:
            index.rollback()
            raise


def _follow(index: sqlite3.Connection, table: Table, column: str, snapshot: Snapshot) -> bool:
    """Bring an index to a snapshot, unless it describes it already.

    Returns:
        Whether the index describes the snapshot. It does not if it describes a later one, and the files that the
        snapshot has are not all known.

    Raises:
        FileNotFoundError: A file of the snapshot is gone.
        NotIndexable: A file is no Parquet file.
    """
    number = snapshot.sequence_number or 0
    described = index.execute("select snapshot_id, first_sequence_number from described").fetchone()
    known, first = described or (0, number)
    newer: list[Snapshot] = []
    for each in publish.ancestors(table, snapshot.snapshot_id):
        if each.snapshot_id == known:
            break
        newer.append(each)
    else:
        if known and any(each.snapshot_id == snapshot.snapshot_id for each in publish.ancestors(table, known)):
            return bool(number >= first)
        known = 0
    if known and not newer:
        return True
    added: dict[str, tuple[DataFile, int]] = {}
    if known:
        for each in reversed(newer):
            at = each.sequence_number or 0
            changed = list(changed_entries(each, table.io))
            for path in (entry.data_file.file_path for entry in changed if entry.status is ManifestEntryStatus.DELETED):
                if added.pop(path, None) is None:
                    remove(index, path, at=at)
                else:
                    first = at  # the file may be gone: the snapshots that had it are not described
            for entry in changed:
                if entry.status is ManifestEntryStatus.ADDED:
                    added[entry.data_file.file_path] = entry.data_file, at
    else:
        first = number
        for name in ("postings", "files"):
            index.execute(f"delete from {name}")
        for entry in live_entries(table, snapshot):
            added[entry.data_file.file_path] = entry.data_file, number

    def values(file: DataFile) -> set[object]:
        if file.file_format is not FileFormat.PARQUET:
            raise NotIndexable(file.file_path)
        batches = rows_of_files(table, [file], [column])
        return {value for batch in batches for value in batch.column(column).drop_null().unique().to_pylist()}

    files = list(added.values())
    with ThreadPoolExecutor(READERS) as readers:  # pyiceberg's own threads serve these ones, so they are others
        for start in range(0, len(files), FILES_IN_MEMORY):
            part = files[start : start + FILES_IN_MEMORY]
            for (file, at), found in zip(part, readers.map(values, [file for file, _ in part]), strict=True):
                partition = json.dumps([file.partition[place] for place in range(len(file.partition))], default=str)
                stored = (file.file_path, file.record_count, file.file_size_in_bytes, file.spec_id, partition)
                add(index, IndexedFile(*stored), found, at=at)
    forget(index, before=min(each.sequence_number or 0 for each in table.metadata.snapshots))
    index.execute("delete from described")
    index.execute("insert into described values (?, ?, ?)", (snapshot.snapshot_id, number, first))
    return True


# The stored index


def add(index: sqlite3.Connection, file: IndexedFile, values: Iterable[object], *, at: int) -> None:
    """Add a data file with its values of the column; `at` is the sequence number of the snapshot that added it."""
    insert = "insert into files (path, rows, bytes, spec_id, partition, added) values (?, ?, ?, ?, ?, ?)"
    number = index.execute(insert, (*file, at)).lastrowid
    index.executemany("insert into postings values (?, ?)", [(each, number) for each in _hashes(values)])


def remove(index: sqlite3.Connection, path: str, *, at: int) -> None:
    """Record that a snapshot, given by its sequence number, removed a data file."""
    index.execute("update files set removed = ? where path = ?", (at, path))


def forget(index: sqlite3.Connection, *, before: int) -> None:
    """Forget the files that no snapshot has from a sequence number on."""
    index.execute("delete from postings where file in (select id from files where removed <= ?)", (before,))
    index.execute("delete from files where removed <= ?", (before,))


def files_with(index: sqlite3.Connection, values: Iterable[object], *, at: int) -> list[IndexedFile]:
    """Return the files that may have one of the values, by path, as of a snapshot's sequence number."""
    hashes = _hashes(values)
    found: set[IndexedFile] = set()
    for start in range(0, len(hashes), VALUES_IN_QUERY):
        part = hashes[start : start + VALUES_IN_QUERY]
        rows = index.execute(
            "select distinct path, rows, bytes, spec_id, partition from postings join files on id = file"
            f" where hash in ({', '.join('?' * len(part))}) and added <= ? and (removed is null or removed > ?)",
            (*part, at, at),
        )
        found.update(IndexedFile(*row) for row in rows)
    return sorted(found)


def _hashes(values: Iterable[object]) -> list[int]:
    """Return the hashes of values, the same in every process."""
    return sorted({zlib.crc32(str(value).encode()) for value in values})
