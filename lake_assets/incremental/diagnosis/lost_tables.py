"""Tables that a home had and its catalog has not: which metadata file each can be registered from, and doing so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import FromInputFile

from lake_assets.connections import remembered_tables, table_folders
from lake_assets.connections.catalog import connect, remember_tables
from lake_assets.incremental.diagnosis.newest_metadata import Choice, MetadataFile, newest_metadata
from lake_assets.incremental.maintenance.stored_files import list_files
from lake_assets.settings import Settings

METADATA_SUFFIX = table_folders.METADATA_SUFFIX


@dataclass(frozen=True)
class LostTable:
    """A table that the catalog does not have.

    Attributes:
        name: The table.
        location: Its folder; None if nothing says where it was.
        choice: The metadata file to register it from, or why there is none.
        has_files: Whether its folder has metadata files.
    """

    name: str
    location: str | None
    choice: Choice
    has_files: bool

    @property
    def metadata_location(self) -> str:
        return f"{self.location}/metadata/{self.choice.file}"


@dataclass(frozen=True)
class LostTables:
    """All tables that the catalog does not have: they are registered again together, or none is."""

    tables: Sequence[LostTable]

    @property
    def found(self) -> list[LostTable]:
        """Those whose newest metadata file is found."""
        return [table for table in self.tables if table.choice.file]

    @property
    def not_found(self) -> list[LostTable]:
        """Those that cannot be registered."""
        return [table for table in self.tables if not table.choice.file]

    @property
    def can_be_registered(self) -> bool:
        """Whether a newest metadata file is found for every table that has files."""
        return bool(self.found) and not any(table.has_files for table in self.not_found)

    @property
    def named(self) -> str:
        """What would be registered: the table, or how many."""
        return self.found[0].name if len(self.found) == 1 else f"{len(self.found)} tables"

    @property
    def steps(self) -> tuple[str, ...]:
        """What would be registered, from which file."""
        return tuple(f"{table.name} from {table.metadata_location}" for table in self.found)


def locations_of(settings: Settings) -> dict[str, str]:
    """Return the tables that a home had, by its memory and by its warehouse: table → location."""
    found = {}
    for name, folder in table_folders.local_tables(settings.warehouse_address).items():
        if table_folders.has_snapshots(folder):
            found[name] = f"file://{folder}"
    remembered = remembered_tables.read(settings.home)
    return {**found, **(remembered.tables if remembered else {})}


def lost_table(name: str, location: str | None, properties: Mapping[str, str]) -> LostTable:
    """Return how a table can be registered again.

    Args:
        name: The table.
        location: Its folder; None if it is not known.
        properties: Properties of the catalog, for access to the files.
    """
    if location is None:
        unknown = Choice(problem="Nothing says where its files are.", remedy="Restore the catalog from a backup.")
        return LostTable(name, None, unknown, has_files=False)
    io = load_file_io(dict(properties), location)
    files = [_read(io, location, name) for name in _metadata_names(io, location)]
    return LostTable(name, location, newest_metadata(files), has_files=bool(files))


def register(settings: Settings, lost: Sequence[LostTable]) -> None:
    """Register tables in the catalog, each from its chosen metadata file."""
    catalog = connect(settings)
    for table in lost:
        catalog.create_namespace_if_not_exists(table.name.rpartition(".")[0])
        catalog.register_table(table.name, table.metadata_location)
    remember_tables(catalog, [table.name for table in lost], settings)


def _metadata_names(io: FileIO, location: str) -> Iterable[str]:
    for file in list_files(io, f"{location}/metadata"):
        if file.path.endswith(METADATA_SUFFIX):
            yield file.path.rpartition("/")[2]


def _read(io: FileIO, location: str, name: str) -> MetadataFile:
    try:
        metadata = FromInputFile.table_metadata(io.new_input(f"{location}/metadata/{name}"))
    except (OSError, EOFError, ValueError, ValidationError):
        return MetadataFile(name, None)
    return MetadataFile(
        name=name,
        uuid=str(metadata.table_uuid),
        updated_ms=metadata.last_updated_ms,
        has_snapshots=bool(metadata.snapshots),
        predecessors=frozenset(entry.metadata_file.rpartition("/")[2] for entry in metadata.metadata_log),
    )
