"""The content of ZooKeeper nodes, in the format of Apache Helix and Pinot: a ZNRecord in JSON, compressed if long.

Sources: Helix `ZNRecord` and `ZNRecordSerializer`; Pinot `SegmentLineage.toZNRecord`. Each entry is a list field: its
sources and its targets, each joined by commas, its state, and its time in milliseconds.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lake_assets.base.hours import from_milliseconds, is_moment, milliseconds
from lake_assets.errors import UsageError
from lake_assets.serving.errors import LineageDamaged
from lake_assets.serving.lineage.lineage import LineageEntry, SegmentLineage, State
from lake_assets.settings import SERVED_TABLE

CUSTOM_MAP = "custom.map"
ROWS = "segment.total.docs"
SIZE_BYTES = "segment.size.in.bytes"
SHA256 = "sha256"
AS_OF = "as.of"
LINEAGE_ENTRY = "lineage.entry"
HEAD = "source.head"

COMPRESS_BYTES = 250_000
"""Longer content is compressed. A server accepts 1 MB per request; segment names shrink to a tenth."""

SHOWN_BYTES = 80
"""How much of a damaged node an error message quotes."""

_GZIP = b"\x1f\x8b"
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DECODING_ERRORS = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


@dataclass(frozen=True)
class SegmentInfo:
    """What is registered of an uploaded segment.

    Attributes:
        name: The segment.
        rows: Their number.
        size_bytes: Of its file.
        sha256: Of its file, hexadecimal.
        as_of: Its rows were read at that time or later.
        entry_id: The lineage entry of its push.
        head: Of its source when the rows were read, as `Source.head` returns it; None if the lake has no source of it.
    """

    name: str
    rows: int
    size_bytes: int
    sha256: str
    as_of: datetime
    entry_id: str
    head: str | None = None


def is_table(name: str) -> bool:
    """Return whether the name is valid for a served table."""
    return SERVED_TABLE.fullmatch(name) is not None


def checked_table(name: str) -> str:
    """Return the name if it is valid for a served table. It becomes a part of paths and queries.

    Raises:
        UsageError: It is not valid.
    """
    if not is_table(name):
        raise UsageError(
            f"{name!r} is not a valid name for a table.",
            remedy="Use letters, digits, _ and -, and at most one database before a dot, without a type at the end "
            "(_OFFLINE): airlineStats, orders-eu, sales.orders.",
        )
    return name


def is_segment(name: str) -> bool:
    """Return whether the name is valid for a segment."""
    return _SEGMENT.fullmatch(name) is not None


def checked_segment(name: str) -> str:
    """Return the name if it is valid for a segment. It becomes a part of a path.

    Raises:
        UsageError: It is not valid.
    """
    if not is_segment(name):
        raise UsageError(f"{name!r} is not a valid name for a segment.", remedy="Use letters, digits, _, . and -.")
    return name


def encode_lineage(lineage: SegmentLineage) -> bytes:
    """Return the content of a lineage's node.

    Raises:
        UsageError: A segment's name is not valid.
    """
    maps = {}
    if lineage.custom_map is not None:
        maps[CUSTOM_MAP] = dict(lineage.custom_map)
    lists = {entry.id: _encode_entry(entry) for entry in lineage.entries.values()}
    return _encode(lineage.table, maps=maps, lists=lists)


def decode_lineage(data: bytes, path: str) -> SegmentLineage:
    """Return the lineage that `encode_lineage` or Pinot wrote; its entries in the order of their timestamps.

    Raises:
        LineageDamaged: The node at `path` contains something else.
    """
    record = _decode(data, path)
    try:
        entries = [_decode_entry(entry_id, *fields) for entry_id, fields in record["listFields"].items()]
        entries.sort(key=lambda entry: (entry.timestamp, entry.id))
        return SegmentLineage(
            table=record["id"],
            entries={entry.id: entry for entry in entries},
            custom_map=record["mapFields"].get(CUSTOM_MAP),
        )
    except _DECODING_ERRORS as error:
        raise LineageDamaged(path, f"does not contain a lineage: {error!r}") from error


def encode_segment(info: SegmentInfo) -> bytes:
    """Return the content of a segment's node. Fields that Pinot has bear Pinot's names."""
    fields = {
        ROWS: str(info.rows),
        SIZE_BYTES: str(info.size_bytes),
        SHA256: info.sha256,
        AS_OF: str(milliseconds(info.as_of)),
        LINEAGE_ENTRY: info.entry_id,
    }
    if info.head is not None:
        fields[HEAD] = info.head
    return _encode(info.name, simple=fields)


def decode_segment(data: bytes, path: str) -> SegmentInfo:
    """Return what `encode_segment` wrote.

    Raises:
        LineageDamaged: The node at `path` contains something else.
    """
    record = _decode(data, path)
    try:
        fields = record["simpleFields"]
        return SegmentInfo(
            name=record["id"],
            rows=int(fields[ROWS]),
            size_bytes=int(fields[SIZE_BYTES]),
            sha256=fields[SHA256],
            as_of=_moment(fields[AS_OF]),
            entry_id=fields[LINEAGE_ENTRY],
            head=fields.get(HEAD),
        )
    except _DECODING_ERRORS as error:
        raise LineageDamaged(path, f"does not describe a segment: {error!r}") from error


def _encode_entry(entry: LineageEntry) -> list[str]:
    return [
        _join(entry.segments_from),
        _join(entry.segments_to),
        entry.state.value,
        str(milliseconds(entry.timestamp)),
    ]


def _decode_entry(entry_id: str, sources: str, targets: str, state: str, timestamp: str) -> LineageEntry:
    return LineageEntry(
        id=entry_id,
        segments_from=_split(sources),
        segments_to=_split(targets),
        state=State(state),
        timestamp=_moment(timestamp),
    )


def _join(names: Iterable[str]) -> str:
    return ",".join(checked_segment(name) for name in names)


def _split(names: str) -> tuple[str, ...]:
    return tuple(name for name in names.split(",") if name)


def _encode(
    record_id: str,
    *,
    simple: dict[str, str] | None = None,
    maps: dict[str, dict[str, str]] | None = None,
    lists: dict[str, list[str]] | None = None,
) -> bytes:
    record = {"id": record_id, "simpleFields": simple or {}, "mapFields": maps or {}, "listFields": lists or {}}
    data = json.dumps(record).encode()
    if len(data) > COMPRESS_BYTES:
        return gzip.compress(data, mtime=0)
    return data


def _decode(data: bytes, path: str) -> dict[str, Any]:
    try:
        text = gzip.decompress(data) if data.startswith(_GZIP) else data
        record = json.loads(text)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise _no_record(data, path) from error
    if not isinstance(record, dict):
        raise _no_record(data, path)
    return record


def _no_record(data: bytes, path: str) -> LineageDamaged:
    return LineageDamaged(path, f"contains {data[:SHOWN_BYTES]!r}, which is not a record")


def _moment(text: str) -> datetime:
    """Return the moment of milliseconds. Raises `ValueError` if they are none, or beyond the years 1 to 9999."""
    if not is_moment(int(text)):
        raise ValueError(text)
    return from_milliseconds(int(text))
