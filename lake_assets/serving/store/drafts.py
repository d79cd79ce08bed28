"""Segments as they are before they are uploaded: Parquet files in a folder of the push's own."""

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
from lake_assets.serving.lineage.lineage import whole_milliseconds
from lake_assets.serving.lineage.znrecord import SegmentInfo, checked_table
from lake_assets.serving.store.files import sha256_of

SEGMENT_ROWS = 250_000
"""Rows of a segment at most. DuckDB reads segments side by side, and row groups of 122,880."""

MOST_SEGMENTS = 2_000
"""Of a push. ZooKeeper takes 1 MB in a request, and one has to give up a whole snapshot."""

FOLDER = "lake-push-"
"""What the folder of a push's drafts is called like, in the system's temporary one."""

_PUSH_ID = re.compile(r"[a-z0-9]{8,32}")
_NAME = re.compile(rf"[a-z_][a-z0-9_]*_(?P<at>\d{{8}}T\d{{9}}Z)_(?P<push>{_PUSH_ID.pattern})_\d{{4,}}")


@dataclass(frozen=True)
class Draft:
    """One segment to be. path: of its local file. head: of its source, as `SegmentInfo` has it."""

    name: str
    path: Path
    rows: int
    size_bytes: int
    sha256: str
    head: str | None = None

    def info(self, entry_id: str, as_of: datetime) -> SegmentInfo:
        """What is registered of it once it is uploaded."""
        at = whole_milliseconds(as_of)
        return SegmentInfo(self.name, self.rows, self.size_bytes, self.sha256, at, entry_id, self.head)


def segment_name(table: str, push_id: str, as_of: datetime, number: int) -> str:
    """Used once: by the table, the time of its rows in milliseconds, the push's id, and the number within the push."""
    if not _PUSH_ID.fullmatch(push_id):
        raise UsageError(f"No push can have the id {push_id!r}.", remedy="Use 8 to 32 lower-case letters and digits.")
    stamp = f"{as_of:%Y%m%dT%H%M%S}{as_of.microsecond // 1000:03d}Z"
    return f"{checked_table(table)}_{stamp}_{push_id}_{number:04d}"


def read_at(name: str) -> datetime | None:
    """The time of its rows that a segment's name bears, in whole milliseconds; None: `segment_name` did not give it."""
    if not (found := _NAME.fullmatch(name)):
        return None
    try:
        return datetime.strptime(found["at"], "%Y%m%dT%H%M%S%fZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def push_of(segment: str) -> str | None:
    """The id of the push that brought a segment, by its name as `segment_name` makes it; None if it is another's."""
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
    """Cuts rows into files. One file at least: a table without rows still has columns.

    Raises `UsageError` for too many, `RowsUnreadable`, and `OSError` of the folder.
    """
    reader = rows.to_reader(segment_rows) if isinstance(rows, pa.Table) else rows
    found = []
    for number, part in enumerate(_parts(_read(table, reader), segment_rows)):
        if number == MOST_SEGMENTS:
            raise UsageError(
                f"{table} would have more than {MOST_SEGMENTS:,} segments of {segment_rows:,} rows.",
                remedy="Serve an aggregate of it, or let a segment have more rows.",
            )
        name = segment_name(table, push_id, as_of, number)
        path = folder / f"{name}.parquet"
        with pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
            for batch in part:
                writer.write_batch(batch)
        count = sum(batch.num_rows for batch in part)
        found.append(Draft(name, path, count, path.stat().st_size, sha256_of(path), head))
    return found


def _read(table: str, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Its batches. What goes wrong between them is the caller's: it writes."""
    try:
        yield from reader
    except (OSError, ArrowException) as error:
        raise RowsUnreadable(table, error) from error


def _parts(batches: Iterable[pa.RecordBatch], segment_rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Batches of so many rows together; an empty one if there is none at all."""
    held: list[pa.RecordBatch] = []
    free, seen = segment_rows, False
    for batch in batches:
        while batch.num_rows:
            piece, batch = batch.slice(0, free), batch.slice(free)
            held.append(piece)
            free -= piece.num_rows
            if not free:
                yield held
                held, free, seen = [], segment_rows, True
    if held or not seen:
        yield held
