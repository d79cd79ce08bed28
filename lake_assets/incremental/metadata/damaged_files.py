"""Finding the file of a table that cannot be read, so that an error names it: metadata, manifests, data files.

Files are searched for only after a read has failed, or when a person asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from urllib.parse import urlsplit

import pyarrow.parquet as pq
from pyarrow.fs import FileType
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table

from lake_assets.errors import LakeError, ServiceError, TableDamaged
from lake_assets.errors.infrastructure import recognise
from lake_assets.errors.texts import chain_text

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
