"""The search of one stored file for an id.

A Parquet file is searched in its rows, and in the bounds and metadata of its footer; an Avro file (manifests and their
lists, landed files) in its records, with the bounds of columns among them, and in its header; any other file as bytes.
A file that cannot be decoded is searched as bytes, too, and reported as undecoded. In columns of
ids and in other text, `base.id_matcher` decides what counts as the id; in bytes that are no text it counts anywhere.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, cast

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import PrimitiveType

from lake_assets.base.id_matcher import IdMatcher
from lake_assets.incremental.engine.retention import read_bytes

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
    with io.new_input(path).open() as opened:
        records = fastavro.reader(cast("IO[bytes]", opened))
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
    for number, field in index_by_id(Schema.model_validate_json(header["schema"])).items():
        if field.name in matcher.columns and isinstance(field.field_type, PrimitiveType):
            found[number] = field.name, field.field_type
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
