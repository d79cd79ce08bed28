"""The certificate of an erasure: every file under the warehouse, and in folders beside it, is searched for an id.

Parquet by its rows, the bounds and the notes in its footer; Avro (manifests and their lists, landed files) by its
records, with the bounds of columns among them, and its header; all else as bytes. What cannot be decoded is searched as
bytes, too, and told. In texts the id counts as a word of its own (`a1` is not in `a10`), also as JSON spells it; in
bytes wherever it stands.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Literal, cast

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table

from lake_assets.base.id_matcher import IdMatcher
from lake_assets.errors import UsageError
from lake_assets.incremental.maintenance.cleaning import ListedFile, listing, place
from lake_assets.incremental.metadata import publish

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

_BATCH_ROWS = 65_536
_PARQUET, _AVRO = b"PAR1", b"Obj\x01"
"""What files of these formats begin with, whatever they are called."""


@dataclass(frozen=True)
class Finding:
    """A file that holds the id.

    table: for a file beside the warehouse, what it is of. occurrences: rows of a Parquet file, records of an Avro file,
    or mentions in its footer or header; else places. referenced: by main's head (that is: readers read it), by a
    snapshot that is still there, by quarantine, or by nothing; not known: who knows did not run.
    """

    path: str
    table: str | None
    kind: Kind
    occurrences: int
    referenced: Reference


@dataclass(frozen=True)
class Certificate:
    """Where an id is. undecoded: files that are broken or foreign, searched as bytes alone."""

    subject: str
    files: int
    bytes: int
    findings: tuple[Finding, ...] = ()
    undecoded: tuple[str, ...] = ()

    @property
    def nowhere(self) -> bool:
        return not self.findings


@dataclass(frozen=True)
class Told:
    """What is known of a file, as `Finding` has it."""

    table: str | None
    kind: Kind
    referenced: Reference


@dataclass(frozen=True)
class Folder:
    """A folder that is searched, with all that is in it. told: what is known of a file there, by its path."""

    location: str
    told: Callable[[str], Told]
    io: FileIO


@dataclass
class _Known:
    """What the catalog tells of files, by their place."""

    locations: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)
    references: dict[str, Reference] = field(default_factory=dict)

    def table_of(self, path: str) -> str | None:
        inside = [location for location in self.locations if path.startswith(location + "/")]
        return self.locations[max(inside, key=len)] if inside else None

    def told(self, path: str) -> Told:
        kind = self.kinds.get(path) or _kind(path)
        return Told(self.table_of(path), kind, self.references.get(path, "nothing"))


Progress = Callable[[int, int], None]

Part = Callable[[pa.RecordBatch], pa.RecordBatch]
"""What to search of some rows of a Parquet file."""


def certify(
    catalog: Catalog,
    subject: str,
    value: str,
    *,
    beside: Sequence[Folder] = (),
    progress: Progress = lambda done, of: None,
) -> Certificate:
    """Search every file for an id. beside: what is searched with the warehouse. progress: bytes read, of how many.

    Raises `UsageError` for an empty id.
    """
    if not value.strip():
        raise UsageError("The id is empty.", remedy=f"Name the {subject} to look for.")
    opened = [catalog.load_table(t) for n in catalog.list_namespaces() for t in catalog.list_tables(n)]
    known, io = _known(opened), load_file_io(dict(catalog.properties), catalog.properties["warehouse"])
    folders = [*(Folder(location, known.told, io) for location in _roots(catalog, opened)), *beside]
    files = {file.path: (file, folder) for folder in folders for file in listing(folder.io, folder.location)}
    size, done, needle = sum(file.bytes for file, _ in files.values()), 0, IdMatcher(value)
    findings, undecoded = [], []
    for path, (file, folder) in sorted(files.items()):
        count, decoded = search(folder.io, file, needle)
        if not decoded:
            undecoded.append(path)
        if count:
            told = folder.told(path)
            findings.append(Finding(path, told.table, told.kind, count, told.referenced))
        done += file.bytes
        progress(done, size)
    return Certificate(subject, len(files), size, tuple(findings), tuple(undecoded))


def search(io: FileIO, file: ListedFile, needle: IdMatcher, part: Part | None = None) -> tuple[int, bool]:
    """How often a file holds the id; and whether it could be decoded as what it is by its name, or by how it begins.

    A file that is gone since it was listed holds nothing. part: of the rows of a Parquet file; then bounds, which may
    be those of other rows, are not searched.
    """
    try:
        return _search(io, file, needle, part)
    except FileNotFoundError:
        return 0, True


def _search(io: FileIO, file: ListedFile, needle: IdMatcher, part: Part | None) -> tuple[int, bool]:
    name = file.path.rpartition("/")[2]
    begins = b"" if name.endswith((".parquet", ".avro")) else _begins(io, file)
    if name.endswith(".parquet") or begins == _PARQUET:
        return _decoded(io, file, needle, lambda: _in_parquet(io, file, needle, part))
    if name.endswith(".avro") or begins == _AVRO:
        return _decoded(io, file, needle, lambda: _in_avro(io, file, needle))
    found = content(io, file)
    if name.endswith((".gz", ".gz.metadata.json")):
        try:
            return needle.in_bytes(gzip.decompress(found)), True
        except (OSError, EOFError):
            return needle.in_bytes(found), False
    return needle.in_bytes(found), True


def _decoded(io: FileIO, file: ListedFile, needle: IdMatcher, decode: Callable[[], int]) -> tuple[int, bool]:
    try:
        return decode(), True
    except FileNotFoundError:
        raise
    except Exception:  # of pyarrow, fastavro or a codec: whatever a broken or foreign file leads to
        return needle.in_bytes(content(io, file)), False


def _in_parquet(io: FileIO, file: ListedFile, needle: IdMatcher, part: Part | None) -> int:
    """Rows that hold it; without any, mentions in the footer."""
    with io.new_input(file.path).open() as opened:
        parquet = pq.ParquetFile(opened)
        batches = parquet.iter_batches(_BATCH_ROWS)
        rows = sum(_rows(part(batch) if part else batch, needle) for batch in batches)
        notes = needle.in_value(parquet.metadata.metadata or {})
        return rows or notes + (0 if part else _in_bounds(parquet.metadata, needle))


def _rows(batch: pa.RecordBatch, needle: IdMatcher) -> int:
    held = [mask for column in batch.columns if (mask := _mask(column, needle)) is not None]
    return sum(map(any, zip(*held, strict=True)))


def _mask(column: pa.Array, needle: IdMatcher) -> list[bool] | None:
    """For each row whether the column holds it; None when none does."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # Nearly every batch ends here, in Arrow; only where the letters may be is each row looked at.
        texts = column.cast(pa.large_string())
        if not any(pc.any(pc.match_substring(texts, held)).as_py() for held in (needle.value, "\\")):
            return None
    elif not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return None
    mask = [needle.in_value(value) > 0 for value in column.to_pylist()]
    return mask if any(mask) else None


def _in_bounds(metadata: pq.FileMetaData, needle: IdMatcher) -> int:
    found = 0
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            told = metadata.row_group(group).column(column).statistics
            if told is not None and told.has_min_max:
                found += needle.in_value([told.min, told.max])
    return found


def _in_avro(io: FileIO, file: ListedFile, needle: IdMatcher) -> int:
    """Records that hold it, names of fields aside, and mentions in the header."""
    with io.new_input(file.path).open() as opened:
        records = fastavro.reader(cast("IO[bytes]", opened))
        header = needle.in_value(records.metadata)
        values = (list(record.values()) if isinstance(record, dict) else record for record in records)
        return header + sum(needle.in_value(value) > 0 for value in values)


def _begins(io: FileIO, file: ListedFile) -> bytes:
    with io.new_input(file.path).open() as opened:
        return opened.read(len(_PARQUET))


def content(io: FileIO, file: ListedFile) -> bytes:
    """The bytes of a file."""
    with io.new_input(file.path).open() as opened:
        return opened.read()


def _roots(catalog: Catalog, opened: Iterable[Table]) -> list[str]:
    """The warehouse, and the locations of tables that lie elsewhere."""
    return [catalog.properties["warehouse"], *(t.location() for t in opened)]


def _known(opened: Iterable[Table]) -> _Known:
    known = _Known()
    for table in opened:
        known.locations[place(table.location()).rstrip("/")] = ".".join(table.name())
        for path, kind, reference in _told(table):
            known.kinds[path] = kind
            if known.references.get(path) != "main":
                known.references[path] = reference
    return known


def _told(table: Table) -> Iterator[tuple[str, Kind, Reference]]:
    """Each file that a table's metadata refer to: its place, its kind, and by what."""
    yield place(table.metadata_location), "metadata", "main"
    for former in table.metadata.metadata_log:
        yield place(former.metadata_file), "metadata", "history"
    main, seen = publish.main_id(table), set[str]()
    for snapshot in sorted(table.metadata.snapshots, key=lambda s: s.snapshot_id != main):
        by: Reference = "main" if snapshot.snapshot_id == main else "history"
        yield place(snapshot.manifest_list), "manifest list", by
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield place(manifest.manifest_path), "manifest", by
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                file = entry.data_file
                yield place(file.file_path), "data" if file.content is DataFileContent.DATA else "delete", by


def _kind(path: str) -> Kind:
    """Of a file that nothing refers to: by its name, as Iceberg gives names."""
    name = path.rpartition("/")[2]
    if name.endswith(".avro"):
        return "manifest list" if name.startswith("snap-") else "manifest"
    if name.endswith(".metadata.json"):
        return "metadata"
    if name.endswith(".parquet"):
        return "delete" if "-deletes" in name else "data"
    return "other"
