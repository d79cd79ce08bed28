"""The certificate for raw tables and targets: every file under the warehouse and the locations of all tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table

from lake_assets.incremental.engine import publish
from lake_assets.incremental.engine.iceberg import entries
from lake_assets.incremental.engine.retention import bare_path
from lake_assets.incremental.erasure.certificate import (
    Certificate,
    FileFacts,
    FileSource,
    Kind,
    ProgressCallback,
    Reference,
    matcher_for,
    search_sources,
)


def certify(
    catalog: Catalog,
    subject: str,
    *values: str,
    columns: Collection[str] = (),
    beside: Sequence[FileSource] = (),
    progress: ProgressCallback = lambda done, size: None,
) -> Certificate:
    """Search every file of the tables for an id.

    Args:
        catalog: Its warehouse and all its tables are searched.
        subject: What the id identifies, such as account.
        values: The id, as its columns have it: see `erasures.spellings`.
        columns: The columns of the subject, whose values are compared as a whole. Elsewhere the id counts as a word.
        beside: Other files to search.
        progress: Called after each file.

    Raises:
        UsageError: The id is empty.
    """
    matcher = matcher_for(*values, name=subject, columns=columns)
    tables = _all_tables(catalog)
    warehouse = catalog.properties["warehouse"]
    locations = [warehouse, *(table.location() for table in tables)]
    references = _TableReferences.read(tables)
    io = load_file_io(dict(catalog.properties), warehouse)
    sources = [TableFiles(location, references, io) for location in locations]
    return search_sources([*sources, *beside], matcher, subject=subject, progress=progress)


def _all_tables(catalog: Catalog) -> list[Table]:
    tables = []
    for namespace in catalog.list_namespaces():
        for name in catalog.list_tables(namespace):
            tables.append(catalog.load_table(name))
    return tables


@dataclass
class _TableReferences:
    """What the metadata of all tables refer to.

    Attributes:
        tables: Location of each table → its name.
        kinds: Path of each referenced file → its kind.
        references: Path of each referenced file → what refers to it.
    """

    tables: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)
    references: dict[str, Reference] = field(default_factory=dict)

    @classmethod
    def read(cls, tables: Iterable[Table]) -> _TableReferences:
        found = cls()
        for table in tables:
            folder = bare_path(table.location()).rstrip("/")
            found.tables[folder] = ".".join(table.name())
            for location, kind, reference in _referenced_files(table):
                path = bare_path(location)
                found.kinds[path] = kind
                if found.references.get(path) != "main":
                    found.references[path] = reference
        return found

    def table_of(self, path: str) -> str | None:
        inside = [location for location in self.tables if path.startswith(location + "/")]
        return self.tables[max(inside, key=len)] if inside else None


class TableFiles(FileSource):
    """The files under a location of Iceberg tables."""

    def __init__(self, location: str, references: _TableReferences, io: FileIO) -> None:
        super().__init__(location, io)
        self.references = references

    def facts(self, path: str) -> FileFacts:
        return FileFacts(
            table=self.references.table_of(path),
            kind=self.references.kinds.get(path) or _kind_by_name(path),
            referenced=self.references.references.get(path, "nothing"),
        )


def _referenced_files(table: Table) -> Iterator[tuple[str, Kind, Reference]]:
    """Yield each file that a table's metadata refer to: its location, its kind, and what refers to it."""
    yield table.metadata_location, "metadata", "main"
    for former in table.metadata.metadata_log:
        yield former.metadata_file, "metadata", "history"
    main = publish.main_id(table)
    seen = set[str]()
    for snapshot in sorted(table.metadata.snapshots, key=lambda each: each.snapshot_id != main):
        reference: Reference = "main" if snapshot.snapshot_id == main else "history"
        yield snapshot.manifest_list, "manifest list", reference
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path, "manifest", reference
            for entry in entries(manifest, table.io, discard_deleted=True):
                is_data = entry.data_file.content is DataFileContent.DATA
                yield entry.data_file.file_path, "data" if is_data else "delete", reference


def _kind_by_name(path: str) -> Kind:
    """Return the kind of a file that nothing refers to, by the names that Iceberg gives."""
    name = path.rpartition("/")[2]
    if name.endswith(".avro"):
        return "manifest list" if name.startswith("snap-") else "manifest"
    if name.endswith(".metadata.json"):
        return "metadata"
    if name.endswith(".parquet"):
        return "delete" if "-deletes" in name else "data"
    return "other"
