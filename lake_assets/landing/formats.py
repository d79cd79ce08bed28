"""The two formats of a file of records: Avro by rows, as it was landed; Parquet by columns, after compaction.

Both write the same bytes for the same records. They use no clock and no random number; Avro's sync marker, random by
default, is fixed.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from fastavro.write import Writer

from lake_assets.landing.records import Kind, Record

ROWS = 8192
"""The most rows of a Parquet row group. A row group is in memory as a whole."""

GROUP_BYTES = 32 << 20
"""A row group ends with the record that reaches this size."""

_HEADER = {
    "type": "record",
    "name": "Header",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "value", "type": ["null", "bytes"]},
    ],
}
_FIELDS = [
    {"name": "partition", "type": "int"},
    {"name": "offset", "type": "long"},
    {"name": "timestamp", "type": "long"},
    {"name": "key", "type": ["null", "bytes"]},
    {"name": "value", "type": ["null", "bytes"]},
    {"name": "headers", "type": {"type": "array", "items": _HEADER}},
]
_AVRO = fastavro.parse_schema({"type": "record", "name": "Record", "fields": _FIELDS})
_CHECKED = fastavro.parse_schema(
    {"type": "record", "name": "OpenRecord", "fields": [*_FIELDS, {"name": "check", "type": "long"}]}
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
    """Write records to an open file, in their order. One Avro block or Parquet row group is in memory at a time."""
    if kind == "columnar":
        with pq.ParquetWriter(opened, _PARQUET, compression="zstd") as columns:
            for rows in _row_groups(records):
                columns.write_table(pa.Table.from_pylist(list(map(_row, rows)), schema=_PARQUET))
        return
    writer = Writer(opened, _AVRO, codec="null", sync_interval=_BLOCK_BYTES, sync_marker=_MARKER)
    for record in records:
        writer.write(_row(record))
    writer.flush()


def read(kind: Kind, opened: IO[bytes]) -> Iterator[Record]:
    """Yield the records of a file, in their order. For a damaged file, the library's own errors pass through."""
    if kind == "append":
        yield from map(_record, fastavro.reader(opened))
        return
    for batch in pq.ParquetFile(opened).iter_batches(ROWS):
        yield from map(_record, batch.to_pylist())


def append(opened: IO[bytes], records: Iterable[Record], metadata: Mapping[str, str]) -> None:
    """Write records as one block at the end of an open Avro file, each with the CRC-32 of its canonical bytes.

    Args:
        opened: At its end, also readable. If it is empty, it gets a header with `metadata`.
        records: In their order.
        metadata: Name → text.
    """
    writer = Writer(opened, _CHECKED, codec="null", sync_interval=1 << 30, sync_marker=_MARKER, metadata=dict(metadata))
    for record in records:
        check = zlib.crc32(record.canonical)
        writer.write({**_row(record), "check": check})
    writer.flush()
    opened.flush()


def read_appended(opened: IO[bytes]) -> tuple[dict[str, str], list[Record], int]:
    """Return the metadata, the records of the whole blocks, and where the last of these ends.

    A block that is torn or damaged, or follows one, is left out: a process writes it just now, or died when it did.
    """
    metadata: dict[str, str] = {}
    records: list[Record] = []
    end = 0
    with suppress(Exception):  # fastavro raises many types
        blocks = fastavro.block_reader(opened)
        metadata = dict(blocks.metadata)
        for block in blocks:
            rows: list[Any] = list(block)
            found = [_record(row) for row in rows]
            if [row["check"] for row in rows] != [zlib.crc32(record.canonical) for record in found]:
                break
            records += found
            end = block.offset + block.size
    return metadata, records, end


def _row_groups(records: Iterable[Record]) -> Iterator[list[Record]]:
    rows: list[Record] = []
    size = 0
    for record in records:
        rows.append(record)
        size += record.size
        if len(rows) == ROWS or size >= GROUP_BYTES:
            yield rows
            rows = []
            size = 0
    if rows:
        yield rows


def _row(record: Record) -> dict[str, Any]:
    headers = [{"name": name, "value": value} for name, value in record.headers] if record.headers else []
    return {**record._asdict(), "headers": headers}


def _record(row: Any) -> Record:
    headers = row["headers"] or ()
    return Record(
        row["partition"],
        row["offset"],
        row["timestamp"],
        row["key"],
        row["value"],
        tuple((header["name"], header["value"]) for header in headers),
    )
