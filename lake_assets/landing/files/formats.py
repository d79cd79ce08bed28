"""The two formats of a file of records: Avro, row by row, as it was landed; Parquet, by columns, once compacted.

Both write the same bytes for the same records: no clock, no chance, not the Avro marker that is random by default.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from fastavro.write import Writer

from lake_assets.landing.files.entries import Kind
from lake_assets.landing.files.records import Record

ROWS, GROUP_BYTES = 8192, 32 << 20
"""What a Parquet row group holds at the most, but for its last record: it is in memory at a time."""

_HEADER = {
    "type": "record",
    "name": "Header",
    "fields": [{"name": "name", "type": "string"}, {"name": "value", "type": ["null", "bytes"]}],
}
_AVRO = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Record",
        "fields": [
            {"name": "partition", "type": "int"},
            {"name": "offset", "type": "long"},
            {"name": "timestamp", "type": "long"},
            {"name": "key", "type": ["null", "bytes"]},
            {"name": "value", "type": ["null", "bytes"]},
            {"name": "headers", "type": {"type": "array", "items": _HEADER}},
        ],
    }
)
_MARKER = hashlib.sha256(b"lake-assets landing").digest()[:16]
_BLOCK_BYTES = 1 << 18
_PARQUET = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)


def write(kind: Kind, opened: IO[bytes], records: Iterable[Record]) -> None:
    """Write records, in their order, to an open file; so many of them in memory as a block or a row group has."""
    _WRITERS[kind](opened, records)


def read(kind: Kind, opened: IO[bytes]) -> Iterator[Record]:
    """The records of a file, in their order. What it raises when the file is damaged is the library's own."""
    yield from _READERS[kind](opened)


def _write_avro(opened: IO[bytes], records: Iterable[Record]) -> None:
    writer = Writer(opened, _AVRO, codec="null", sync_interval=_BLOCK_BYTES, sync_marker=_MARKER)
    for partition, offset, timestamp, key, value, headers in records:
        writer.write(
            {
                "partition": partition,
                "offset": offset,
                "timestamp": timestamp,
                "key": key,
                "value": value,
                "headers": [{"name": name, "value": found} for name, found in headers] if headers else (),
            }
        )
    writer.flush()


def _read_avro(opened: IO[bytes]) -> Iterator[Record]:
    for row in fastavro.reader(opened):
        yield _record(row)


def _write_parquet(opened: IO[bytes], records: Iterable[Record]) -> None:
    with pq.ParquetWriter(opened, _PARQUET, compression="zstd") as writer:
        for rows in _row_groups(records):
            columns = dict(zip(Record._fields, zip(*rows, strict=True), strict=True))
            columns["headers"] = tuple([{"name": n, "value": v} for n, v in headers] for headers in columns["headers"])
            writer.write_table(pa.table(columns, schema=_PARQUET))


def _row_groups(records: Iterable[Record]) -> Iterator[list[Record]]:
    rows: list[Record] = []
    size = 0
    for record in records:
        rows.append(record)
        size += record.size
        if len(rows) == ROWS or size >= GROUP_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _read_parquet(opened: IO[bytes]) -> Iterator[Record]:
    for batch in pq.ParquetFile(opened).iter_batches(ROWS):
        for row in batch.to_pylist():
            yield _record(row)


def _record(row: Any) -> Record:
    headers = row["headers"]
    found = tuple((header["name"], header["value"]) for header in headers) if headers else ()
    return Record(row["partition"], row["offset"], row["timestamp"], row["key"], row["value"], found)


_WRITERS: Mapping[Kind, Callable[[IO[bytes], Iterable[Record]], None]] = {
    "append": _write_avro,
    "columnar": _write_parquet,
}
_READERS: Mapping[Kind, Callable[[IO[bytes]], Iterator[Record]]] = {"append": _read_avro, "columnar": _read_parquet}
