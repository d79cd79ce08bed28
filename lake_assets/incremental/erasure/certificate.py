"""The certificate of an erasure: the result of a search of all stored files for an id.

Each part of the lake implements `FileSource` for its own files; `search_sources` searches them all.

The search of one stored file for an id.

A Parquet file is searched in its rows, and in the bounds and metadata of its footer; an Avro file (manifests and their
lists, landed files) in its records, with the bounds of columns among them, and in its header; any other file as bytes.
A file that cannot be decoded is searched as bytes, too, and reported as undecoded. In columns of ids and in other
text, `base.id_matcher` decides what counts as the id; in bytes that are no text it counts anywhere.
"""

from __future__ import annotations

import gzip
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, Literal

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.types import PrimitiveType

from lake_assets.base.id_matcher import IdMatcher
from lake_assets.errors import UsageError
from lake_assets.incremental.engine import publish
from lake_assets.incremental.engine.iceberg import entries
from lake_assets.incremental.engine.retention import ListedFile, bare_path, files_outside, list_files, read_bytes

_BATCH_ROWS = 65_536

_PARQUET_MAGIC = b"PAR1"
_AVRO_MAGIC = b"Obj\x01"
"""The first bytes of files of these formats, whatever their names are."""

RowFilter = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Returns the rows of a batch to search; it may change their values to comparable ones."""


@dataclass(frozen=True)
class SearchResult:
    """What the search of one file found.

    Attributes:
        occurrences: Rows of a Parquet file, records of an Avro file, or mentions in its footer or header; otherwise
            places.
        decoded: Whether the file could be decoded according to its name or its first bytes.
        column: The column or field of the first row or record with the id; empty if it is in none.
        text: The beginning of the value there, with `(id)` for the id; empty if the value is the id.
    """

    occurrences: int
    decoded: bool = True
    column: str = ""
    text: str = ""


_TEXT_CHARACTERS = 80


def _found_in(rows: int, column: str, value: object, matcher: IdMatcher) -> SearchResult:
    if column in matcher.columns and matcher.is_id(value):
        return SearchResult(rows, column=column)
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return SearchResult(rows, column=column, text=matcher.hidden(text)[:_TEXT_CHARACTERS])


def search_file(io: FileIO, path: str, matcher: IdMatcher, row_filter: RowFilter | None = None) -> SearchResult:
    """Search a file for an id. A file that was removed since it was listed has no occurrences.

    Args:
        io: Reads the file.
        path: Where the file is.
        matcher: The id.
        row_filter: Selects rows of a Parquet file. With it, bounds are not searched: they may be those of other rows.
    """
    try:
        return _search(io, path, matcher, row_filter)
    except FileNotFoundError:
        return SearchResult(0)


def _search(io: FileIO, path: str, matcher: IdMatcher, row_filter: RowFilter | None) -> SearchResult:
    magic = b"" if path.endswith((".parquet", ".avro")) else _first_bytes(io, path)
    try:
        if path.endswith(".parquet") or magic == _PARQUET_MAGIC:
            return _in_parquet(io, path, matcher, row_filter)
        if path.endswith(".avro") or magic == _AVRO_MAGIC:
            return _in_avro(io, path, matcher)
    except FileNotFoundError:
        raise
    except Exception:  # any error of pyarrow, fastavro or a codec, caused by a broken or foreign file
        return SearchResult(matcher.in_bytes(read_bytes(io, path)), decoded=False)
    return _search_bytes(read_bytes(io, path), path, matcher)


def _search_bytes(content: bytes, path: str, matcher: IdMatcher) -> SearchResult:
    if path.endswith((".gz", ".gz.metadata.json")):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError):
            return SearchResult(matcher.in_bytes(content), decoded=False)
    return SearchResult(matcher.in_bytes(content))


def _in_parquet(io: FileIO, path: str, matcher: IdMatcher, row_filter: RowFilter | None) -> SearchResult:
    """Return the number of rows with the id; if there are none, the number of mentions in the footer."""
    with io.new_input(path).open() as opened:
        parquet = pq.ParquetFile(opened)
        rows = 0
        first: tuple[str, object] = ("", None)
        for batch in parquet.iter_batches(_BATCH_ROWS):
            found = _rows_with_id(row_filter(batch) if row_filter else batch, matcher)
            first = next(iter(found.values()), first) if not rows else first
            rows += len(found)
        if rows:
            return _found_in(rows, *first, matcher)
        mentions = matcher.in_value(parquet.metadata.metadata or {})
        if row_filter is None:
            mentions += _in_bounds(parquet.metadata, matcher)
        return SearchResult(mentions)


def _rows_with_id(batch: pa.RecordBatch, matcher: IdMatcher) -> dict[int, tuple[str, object]]:
    """Return row → the first column with the id, and its value."""
    found: dict[int, tuple[str, object]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if _may_contain(column, matcher, is_id=name in matcher.columns):
            for row, value in enumerate(column.to_pylist()):
                if row not in found and matcher.in_value(value, name):
                    found[row] = name, value
    return found


def _may_contain(column: pa.Array, matcher: IdMatcher, *, is_id: bool) -> bool:
    """Return whether to look at each value of a column. Arrow rules most columns out as a whole."""
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if is_id and (is_text or types.is_integer(kind)):
        ids = pa.array(sorted(matcher.values), pa.large_string())
        return bool(pc.any(pc.is_in(column.cast(kind).cast(pa.large_string()), ids)).as_py())
    if is_text and len(matcher.values) == 1:
        texts = column.cast(pa.large_string())
        (value,) = matcher.values
        has_id = pc.match_substring(texts, value)
        has_escape = pc.match_substring(texts, "\\")  # an escape may stand for any letter
        return bool(pc.any(pc.or_(has_id, has_escape)).as_py())
    return is_id or is_text or bool(types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def _in_bounds(metadata: pq.FileMetaData, matcher: IdMatcher) -> int:
    """Return the mentions in bounds, but for those of ids: they are values of the rows."""
    found = 0
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            statistics = column.statistics
            is_id = not matcher.columns.isdisjoint(column.path_in_schema.split("."))
            if statistics is not None and statistics.has_min_max and not is_id:
                found += matcher.in_value([statistics.min, statistics.max])
    return found


def _in_avro(io: FileIO, path: str, matcher: IdMatcher) -> SearchResult:
    """Return the number of records with the id, field names aside, plus the mentions in the header."""
    # Not from the open file: fastavro reads a few bytes at a time, and on S3 each of these is a request.
    records = fastavro.reader(BytesIO(read_bytes(io, path)))
    found = matcher.in_value(records.metadata)
    ids = _ids_of_columns(records.metadata, matcher)
    first: tuple[str, object] = ("", None)
    for record in records:
        fields: dict[str, Any] = record if isinstance(record, dict) else {"": record}
        if "data_file" in fields:  # an entry of a manifest
            fields = {**fields, "data_file": _entry(io, fields["data_file"], ids, matcher)}
        with_id = [(name, value) for name, value in fields.items() if matcher.in_value(value, name)]
        if with_id:
            first = first if first[0] else with_id[0]
            found += 1
    column, value = first
    return _found_in(found, column, value, matcher) if column not in ("", "data_file") else SearchResult(found)


_BOUNDS = ("lower_bounds", "upper_bounds")

_BOUND_CHARACTERS = 16
"""Length to which Iceberg cuts bounds: one of this length may be the beginning of a longer value, or follow it."""


def _ids_of_columns(header: Mapping[str, str], matcher: IdMatcher) -> dict[int, tuple[str, PrimitiveType]]:
    """Return number → name and type of the columns of ids of the table that a manifest belongs to."""
    if "schema" not in header or not matcher.columns:
        return {}
    found = {}
    for number, each in index_by_id(Schema.model_validate_json(header["schema"])).items():
        if each.name in matcher.columns and isinstance(each.field_type, PrimitiveType):
            found[number] = each.name, each.field_type
    return found


def _entry(
    io: FileIO, file: dict[str, Any], ids: Mapping[int, tuple[str, PrimitiveType]], matcher: IdMatcher
) -> dict[str, Any]:
    """Return the data file of a manifest's entry without the bounds of columns of ids that are no such id."""
    bounds: dict[str, list[Any]] = {}
    for name in _BOUNDS:
        bounds[name] = []
        for each in file.get(name) or ():
            if each["key"] not in ids:
                bounds[name].append(each["value"])
                continue
            column, kind = ids[each["key"]]
            value = from_bytes(kind, each["value"])
            may_be_cut = isinstance(value, str) and len(value) == _BOUND_CHARACTERS
            # The rows of a file that is there are searched themselves.
            if matcher.is_id(value) and not (may_be_cut and io.new_input(file["file_path"]).exists()):
                bounds[name].append({column: value})
    return {**file, **bounds}


def _first_bytes(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open() as opened:
        return opened.read(len(_PARQUET_MAGIC))


Kind = Literal[
    "data",
    "delete",
    "change feed",
    "manifest",
    "manifest list",
    "metadata",
    "landed file",
    "dead letters",
    "segment",
    "draft",
    "other",
]
Reference = Literal["main", "history", "quarantine", "nothing", "not known"]

ProgressCallback = Callable[[int, int], None]
"""Gets the number of bytes searched so far, and the number of all bytes."""


@dataclass(frozen=True)
class FileFacts:
    """What is known about a file; see `Finding`."""

    table: str | None
    kind: Kind
    referenced: Reference


@dataclass(frozen=True)
class Finding:
    """A file that contains the id.

    Attributes:
        path: Where the file is.
        table: The table or zone that the file belongs to; None if it belongs to none.
        kind: What the file is for.
        occurrences: Rows of a Parquet file, records of an Avro file, or mentions in its footer or header; otherwise
            places.
        referenced: What refers to the file: main's head (readers read it), a snapshot that still exists, quarantine, or
            nothing. Not known if the service that knows it did not run.
        column: The column or field of the first row or record with the id; empty if it is in none.
        text: The value there, cut, with `(id)` for the id, if it mentions the id among other words.
    """

    path: str
    table: str | None
    kind: Kind
    occurrences: int
    referenced: Reference
    column: str = field(default="", compare=False)
    text: str = field(default="", compare=False)


@dataclass(frozen=True)
class Certificate:
    """Where an id is.

    Attributes:
        subject: What the id identifies, such as account.
        files: Number of searched files.
        bytes: Their size.
        findings: The files that contain the id, by path.
        undecoded: Broken or foreign files, which were searched as bytes.
    """

    subject: str
    files: int
    bytes: int
    findings: tuple[Finding, ...] = ()
    undecoded: tuple[str, ...] = ()

    @property
    def nowhere(self) -> bool:
        return not self.findings


class FileSource(ABC):
    """A folder of files to search.

    Args:
        location: Address of the folder.
        io: Lists and reads the files; None for files that need no settings of a catalog.
    """

    row_filter: RowFilter | None = None
    """Selects the rows of Parquet files to search; None for all rows."""

    id_columns: Collection[str] = ()
    """Further columns and fields of these files that hold ids."""

    def __init__(self, location: str, io: FileIO | None = None) -> None:
        self.location = location
        self.io = io or load_file_io({}, location)

    @abstractmethod
    def facts(self, path: str) -> FileFacts:
        """Return what is known about a file in the folder."""

    def files(self) -> Iterable[ListedFile]:
        """Return the files in the folder."""
        return list_files(self.io, self.location)

    def includes(self, path: str) -> bool:
        """Return whether to search a file in the folder."""
        return True

    def parts(self, path: str) -> list[str]:
        """Return the path of a file relative to the folder, split into names."""
        folder = bare_path(self.location).rstrip("/")
        return path.removeprefix(f"{folder}/").split("/")


def matcher_for(*values: str, name: str, columns: Collection[str] = ()) -> IdMatcher:
    """Return the matcher of an id.

    Args:
        values: The id, as the columns of ids have it.
        name: What the id is called, for the error.
        columns: The columns that hold such ids.

    Raises:
        UsageError: The id is empty.
    """
    if not all(value.strip() for value in values):
        raise UsageError("The id is empty.", remedy=f"Name the {name} to look for.")
    return IdMatcher(*values, columns=columns)


def search_sources(
    sources: Iterable[FileSource],
    matcher: IdMatcher,
    *,
    subject: str,
    progress: ProgressCallback,
) -> Certificate:
    """Search all files of the sources for an id.

    Args:
        sources: Folders to search. A file in several of them is searched once, as a file of the last one.
        matcher: The id.
        subject: What the id identifies, for the certificate.
        progress: Called after each file.
    """
    files: dict[str, tuple[ListedFile, FileSource]] = {}
    for source in sources:
        for file in source.files():
            if source.includes(file.path):
                files[file.path] = (file, source)
    size = sum(file.bytes for file, _ in files.values())
    done = 0
    findings = []
    undecoded = []
    for path, (file, source) in sorted(files.items()):
        of_source = IdMatcher(*matcher.values, columns=matcher.columns.union(source.id_columns))
        result = search_file(source.io, file.location, of_source, source.row_filter)
        if not result.decoded:
            undecoded.append(path)
        if result.occurrences:
            facts = source.facts(path)
            finding = Finding(
                path=path,
                table=facts.table,
                kind=facts.kind,
                occurrences=result.occurrences,
                referenced=facts.referenced,
                column=result.column,
                text=result.text,
            )
            findings.append(finding)
        done += file.bytes
        progress(done, size)
    return Certificate(subject, len(files), size, tuple(findings), tuple(undecoded))


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
    outside = [FilesOutside(table, references) for table in tables]
    sources = [TableFiles(location, references, io) for location in locations]
    return search_sources([*outside, *sources, *beside], matcher, subject=subject, progress=progress)


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


class FilesOutside(FileSource):
    """The files of an Iceberg table that are outside of its folder."""

    def __init__(self, table: Table, references: _TableReferences) -> None:
        super().__init__(table.location(), table.io)
        self.table = table
        self.references = references

    def files(self) -> Iterator[ListedFile]:
        """Yield those that exist."""
        for location in files_outside(self.table):
            with suppress(FileNotFoundError):
                size = len(self.io.new_input(location))
                yield ListedFile(bare_path(location), location, size, datetime.max.replace(tzinfo=UTC))

    def facts(self, path: str) -> FileFacts:
        return FileFacts(
            table=".".join(self.table.name()),
            kind=self.references.kinds.get(path, "data"),
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
            for entry in entries(manifest, table.io):
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
