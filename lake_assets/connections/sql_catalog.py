"""An SQL catalog that reads each metadata file once.

A metadata file never changes: each commit writes a new one, and the catalog's row names it. So the row is read at each
load, and the file only if the row names another one than at the load before. This module uses internal parts of
pyiceberg; if they are gone, every load reads the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import CommitTableResponse, Table
from sqlalchemy import bindparam, select

from lake_assets.base.recent import Recent

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Identifier
    from sqlalchemy import Select

REMEMBERED_SNAPSHOTS = 40_000
"""Most snapshots in the metadata that are kept, each table counted as one more: about 100 MB."""

Stamp = tuple[int, int] | None
"""Size in bytes and time of the last change, in nanoseconds, of a local file; None for a file on another machine."""


@dataclass
class ReadMetadata:
    """The newest metadata of tables, by table. Nobody may change them: several tables refer to one object."""

    by_table: Recent[tuple[str, ...], tuple[str, Stamp, TableMetadata]] = field(
        default_factory=lambda: Recent(REMEMBERED_SNAPSHOTS)
    )

    def find(self, identifier: tuple[str, ...], location: str) -> TableMetadata | None:
        """Return what was read from a location; None if it was not, or if its file is gone or another one now."""
        known = self.by_table.find(identifier)
        if known is None:
            return None
        read_from, stamp, metadata = known
        try:
            is_same = (read_from, stamp) == (location, _stamp(location))
        except OSError:
            return None
        return metadata if is_same else None

    def keep(self, identifier: tuple[str, ...], location: str, metadata: TableMetadata) -> None:
        """Keep what was read from a location, or written to it."""
        try:
            stamp = _stamp(location)
        except OSError:
            return  # a later commit has removed it meanwhile
        self.by_table.keep(identifier, (location, stamp, metadata), weight=1 + len(metadata.snapshots))


class SqlCatalogReadingOnce(SqlCatalog):
    """An SQL catalog that keeps the metadata of tables. Make it with `reading_once`."""

    _read: ReadMetadata
    _location_query: Select[Any]
    _looked: Mapping[str, str | None] | None = None
    """Table → location of its metadata, inside of `one_look`."""

    def load_table(self, identifier: str | Identifier) -> Table:
        *levels, name = self.identifier_to_tuple(identifier)
        namespace = ".".join(levels)
        looked = (self._looked or {}).get(f"{namespace}.{name}")
        if looked is not None:
            with suppress(OSError):  # many commits since the look have removed the file
                return self._table_at(looked, namespace, name)
        location = self._location(namespace, name)
        if location is None:
            raise NoSuchTableError(f"Table does not exist: {namespace}.{name}")
        return self._table_at(location, namespace, name)

    def _table_at(self, location: str, namespace: str, name: str) -> Table:
        row = IcebergTables(
            catalog_name=self.name,
            table_namespace=namespace,
            table_name=name,
            metadata_location=location,
            previous_metadata_location=None,
        )
        return self._convert_orm_to_iceberg(row)

    def _location(self, namespace: str, name: str) -> str | None:
        """Return where the metadata of a table is; None if there is no such table.

        The query of pyiceberg returns an object of the ORM, which takes several times the processor time.
        """
        with self.engine.connect() as connection:
            named = {"namespace": namespace, "name": name}
            found: str | None = connection.execute(self._location_query, named).scalar()
        return found

    def _convert_orm_to_iceberg(self, orm_table: Any) -> Table:
        location: str | None = orm_table.metadata_location
        identifier = (*self.identifier_to_tuple(orm_table.table_namespace or ""), orm_table.table_name or "")
        metadata = self._read.find(identifier, location) if location else None
        if location is None or metadata is None:
            table = super()._convert_orm_to_iceberg(orm_table)
            self._read.keep(identifier, table.metadata_location, table.metadata)
            return table
        return Table(
            identifier=identifier,
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        self._looked = None  # a writer has to see what it wrote
        response = super().commit_table(table, requirements, updates)
        self._read.keep(table.name(), response.metadata_location, response.metadata)
        return response


def reading_once(catalog: Catalog) -> Catalog:
    """Return a catalog that reads each metadata file once, if it is an SQL catalog; else the catalog itself."""
    if type(catalog) is not SqlCatalog or not hasattr(SqlCatalog, "_convert_orm_to_iceberg"):
        return catalog
    found = SqlCatalogReadingOnce.__new__(SqlCatalogReadingOnce)
    vars(found).update(vars(catalog), _read=ReadMetadata(), _location_query=_location_query(catalog))
    return found


def _location_query(catalog: SqlCatalog) -> Select[Any]:
    """Return the query for the location of one table. It is made once, so SQLAlchemy compiles it once."""
    columns = IcebergTables.__table__.c
    query = select(columns.metadata_location).where(
        columns.catalog_name == catalog.name,
        columns.table_namespace == bindparam("namespace"),
        columns.table_name == bindparam("name"),
    )
    is_table = catalog._iceberg_type_filter()
    return query if is_table is None else query.where(is_table)


def locations_in(catalog: SqlCatalog) -> Mapping[str, str | None]:
    """Return table → location of its present metadata, of all tables of a catalog, by one query."""
    columns = (IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location)
    query = select(*columns).where(IcebergTables.catalog_name == catalog.name)
    with catalog.engine.connect() as connection:
        rows = connection.execute(query).all()
    return {f"{namespace}.{name}": location for namespace, name, location in rows}


@contextmanager
def one_look(catalog: Catalog) -> Iterator[None]:
    """Load the tables of an SQL catalog as they are now, until the block ends: the catalog is asked once for all.

    For a reader of many tables, in one thread. Another catalog is asked for each table, as ever.
    """
    if not isinstance(catalog, SqlCatalogReadingOnce):
        yield
        return
    catalog._looked = locations_in(catalog)
    try:
        yield
    finally:
        catalog._looked = None


def _stamp(location: str) -> Stamp:
    address = urlsplit(location)
    if address.scheme not in ("", "file"):
        return None
    status = Path(address.path if address.scheme else location).stat()
    return status.st_size, status.st_mtime_ns
