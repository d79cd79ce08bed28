"""Segments before their upload: Parquet files in a temporary folder of the push."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException

from lake_assets.errors import UsageError
from lake_assets.serving.errors import RowsUnreadable
from lake_assets.serving.lineage.lineage import MICROSECONDS_PER_MILLISECOND, whole_milliseconds
from lake_assets.serving.lineage.znrecord import SegmentInfo, checked_table
from lake_assets.serving.store.files import sha256_of

SEGMENT_ROWS = 250_000
"""Rows of a segment, at most. DuckDB reads segments in parallel, in row groups of 122,880."""

MAX_SEGMENTS = 2_000
"""Of a push. ZooKeeper accepts 1 MB per request, and one request has to give up a whole snapshot."""

FOLDER = "lake-push-"
"""Prefix of a push's folder of drafts, in the system's temporary folder."""

_PUSH_ID = re.compile(r"[a-z0-9]{8,32}")
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]*_(?P<at>\d{{8}}T\d{{9}}Z)_(?P<push>{_PUSH_ID.pattern})_\d{{4,}}")


@dataclass(frozen=True)
class Draft:
    """A segment before its upload.

    Attributes:
        name: The segment.
        path: Of its local file.
        rows: Their number.
        size_bytes: Of its file.
        sha256: Of its file, hexadecimal.
        head: Of its source: see `SegmentInfo`.
    """

    name: str
    path: Path
    rows: int
    size_bytes: int
    sha256: str
    head: str | None = None

    def info(self, entry_id: str, as_of: datetime) -> SegmentInfo:
        """Return what is registered once it is uploaded."""
        return SegmentInfo(
            name=self.name,
            rows=self.rows,
            size_bytes=self.size_bytes,
            sha256=self.sha256,
            as_of=whole_milliseconds(as_of),
            entry_id=entry_id,
            head=self.head,
        )


def segment_name(table: str, push_id: str, as_of: datetime, number: int) -> str:
    """Return a unique name for a segment.

    Args:
        table: The served table.
        push_id: Of its push.
        as_of: The time of its rows; its milliseconds become a part of the name.
        number: Of the segment within the push.
    """
    if not _PUSH_ID.fullmatch(push_id):
        raise UsageError(f"{push_id!r} is not a valid push id.", remedy="Use 8 to 32 lower-case letters and digits.")
    milliseconds = as_of.microsecond // MICROSECONDS_PER_MILLISECOND
    stamp = f"{as_of:%Y%m%dT%H%M%S}{milliseconds:03d}Z"
    return f"{checked_table(table)}_{stamp}_{push_id}_{number:04d}"


def read_at(name: str) -> datetime | None:
    """Return the time of its rows from a segment's name, in whole milliseconds.

    Returns:
        None if the name was not made by `segment_name`.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    try:
        return datetime.strptime(found["at"], "%Y%m%dT%H%M%S%fZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def push_of(segment: str) -> str | None:
    """Return the id of the push from a segment's name; None if the name was not made by `segment_name`."""
    found = _NAME.fullmatch(segment)
    return found["push"] if found else None


def write_drafts(
    table: str,
    rows: pa.Table | pa.RecordBatchReader,
    folder: Path,
    *,
    push_id: str,
    as_of: datetime,
    segment_rows: int = SEGMENT_ROWS,
    head: str | None = None,
) -> list[Draft]:
    """Write rows to Parquet files, at least one: a table without rows still has columns.

    Args:
        table: The served table.
        rows: All of its rows.
        folder: Where to write.
        push_id: Of the push.
        as_of: A time before the rows were read; UTC.
        segment_rows: Rows of a segment, at most.
        head: Of their source.

    Raises:
        UsageError: There are too many rows.
        RowsUnreadable: The rows cannot be read.
        OSError: The folder cannot be written to.
    """
    reader = rows.to_reader(segment_rows) if isinstance(rows, pa.Table) else rows
    parts = _parts(_batches(table, reader), segment_rows)
    drafts = []
    for number, part in enumerate(parts):
        if number == MAX_SEGMENTS:
            raise UsageError(
                f"{table} would have more than {MAX_SEGMENTS:,} segments of {segment_rows:,} rows.",
                remedy="Serve an aggregate of it, or raise the number of rows of a segment.",
            )
        name = segment_name(table, push_id, as_of, number)
        drafts.append(_write_draft(name, part, reader.schema, folder, head))
    return drafts


def _write_draft(name: str, batches: list[pa.RecordBatch], schema: pa.Schema, folder: Path, head: str | None) -> Draft:
    path = folder / f"{name}.parquet"
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
    return Draft(
        name=name,
        path=path,
        rows=sum(batch.num_rows for batch in batches),
        size_bytes=path.stat().st_size,
        sha256=sha256_of(path),
        head=head,
    )


def _batches(table: str, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Only errors of the reader become `RowsUnreadable`; the caller's, which writes, do not."""
    try:
        yield from reader
    except (OSError, ArrowException) as error:
        raise RowsUnreadable(table, error) from error


def _parts(batches: Iterable[pa.RecordBatch], segment_rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Batches with `segment_rows` rows together, the last ones with fewer; one empty part if there are no rows."""
    part: list[pa.RecordBatch] = []
    free = segment_rows
    is_first = True
    for batch in batches:
        rest = batch
        while rest.num_rows:
            piece = rest.slice(0, free)
            rest = rest.slice(free)
            part.append(piece)
            free -= piece.num_rows
            if free == 0:
                yield part
                part = []
                free = segment_rows
                is_first = False
    if part or is_first:
        yield part
