"""Finding the rows of a table that have one of some values, by its index, without reading the table.

The answer is exact: the files that the index names are read, and the rows in them compared. Where the index may not
answer, or would read much, there is no answer, and the caller reads the table as if there were no index.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from lake_assets.connections.catalog import KEY_INDEX
from lake_assets.incremental.key_index.follow import NotIndexable, follow
from lake_assets.incremental.key_index.postings import IndexedFile, opened
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.arrow_scan import ArrowScan

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
        table = tables.load(self._catalog, name)
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
