"""The search of one stored file for an id.

A Parquet file is searched in its rows, and in the bounds and metadata of its footer; an Avro file (manifests and their
lists, landed files) in its records, with the bounds of columns among them, and in its header; any other file as bytes.
A file that cannot be decoded is searched as bytes, too, and reported as undecoded. In text, the id counts as a word of
its own (`a1` is not in `a10`), also with JSON escapes; in bytes it counts anywhere.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, cast

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types
from pyiceberg.io import FileIO

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
    """

    occurrences: int
    decoded: bool = True


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
            return SearchResult(_in_parquet(io, path, matcher, row_filter))
        if path.endswith(".avro") or magic == _AVRO_MAGIC:
            return SearchResult(_in_avro(io, path, matcher))
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


def _in_parquet(io: FileIO, path: str, matcher: IdMatcher, row_filter: RowFilter | None) -> int:
    """Return the number of rows with the id; if there are none, the number of mentions in the footer."""
    with io.new_input(path).open() as opened:
        parquet = pq.ParquetFile(opened)
        rows = 0
        for batch in parquet.iter_batches(_BATCH_ROWS):
            rows += _rows_with_id(row_filter(batch) if row_filter else batch, matcher)
        if rows:
            return rows
        mentions = matcher.in_value(parquet.metadata.metadata or {})
        if row_filter is None:
            mentions += _in_bounds(parquet.metadata, matcher)
        return mentions


def _rows_with_id(batch: pa.RecordBatch, matcher: IdMatcher) -> int:
    found = [False] * batch.num_rows
    for column in batch.columns:
        if _may_contain(column, matcher):
            for row, value in enumerate(column.to_pylist()):
                found[row] = found[row] or matcher.in_value(value) > 0
    return sum(found)


def _may_contain(column: pa.Array, matcher: IdMatcher) -> bool:
    """Return whether to look at each value of a column. Arrow rules most columns of text out as a whole."""
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_string(kind) or types.is_large_string(kind):
        texts = column.cast(pa.large_string())
        has_id = pc.match_substring(texts, matcher.value)
        has_escape = pc.match_substring(texts, "\\")  # an escape may stand for any letter
        return bool(pc.any(pc.or_(has_id, has_escape)).as_py())
    return bool(types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def _in_bounds(metadata: pq.FileMetaData, matcher: IdMatcher) -> int:
    found = 0
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            statistics = metadata.row_group(group).column(column).statistics
            if statistics is not None and statistics.has_min_max:
                found += matcher.in_value([statistics.min, statistics.max])
    return found


def _in_avro(io: FileIO, path: str, matcher: IdMatcher) -> int:
    """Return the number of records with the id, field names aside, plus the mentions in the header."""
    with io.new_input(path).open() as opened:
        records = fastavro.reader(cast("IO[bytes]", opened))
        found = matcher.in_value(records.metadata)
        for record in records:
            values = list(record.values()) if isinstance(record, dict) else record
            found += matcher.in_value(values) > 0
        return found


def _first_bytes(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open() as opened:
        return opened.read(len(_PARQUET_MAGIC))
