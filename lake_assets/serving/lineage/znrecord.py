"""A node's content as Apache Helix and Pinot keep it: a ZNRecord in JSON, compressed when it is long.

Format: Helix `ZNRecord` and `ZNRecordSerializer`; Pinot `SegmentLineage.toZNRecord`: a list field for each entry, with
its sources and its targets, each joined by commas, its state, and the time in milliseconds.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lake_assets.errors import UsageError
from lake_assets.serving.errors import LineageDamaged
from lake_assets.serving.lineage.lineage import LineageEntry, SegmentLineage, State

CUSTOM_MAP, HEAD = "custom.map", "source.head"
COMPRESS_BYTES = 250_000
"""Longer content is compressed: a server takes 1 MB in a request, names of segments shrink to a tenth."""

_GZIP = b"\x1f\x8b"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TABLE = re.compile(r"[a-z_][a-z0-9_]*")
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class SegmentInfo:
    """What is known of an uploaded segment. as_of: its rows were read then, or later. entry_id: of its push.

    head: of its source as it was read, as `Source.head` tells it; None if its rows have no source of the lake.
    """

    name: str
    rows: int
    size_bytes: int
    sha256: str
    as_of: datetime
    entry_id: str
    head: str | None = None


def is_table(name: str) -> bool:
    """Whether a table can be called so."""
    return _TABLE.fullmatch(name) is not None


def checked_table(name: str) -> str:
    """The name, if a table can be called so: it becomes part of paths and queries. `UsageError`."""
    if not is_table(name):
        raise UsageError(f"No table can be called {name!r}.", remedy="Use small letters, digits and _: account_state.")
    return name


def is_segment(name: str) -> bool:
    """Whether a segment can be called so."""
    return _SEGMENT.fullmatch(name) is not None


def checked_segment(name: str) -> str:
    """The name, if a segment can be called so: it becomes part of a path. `UsageError`."""
    if not is_segment(name):
        raise UsageError(f"No segment can be called {name!r}.", remedy="Use letters, digits, _, . and -.")
    return name


def encode_lineage(lineage: SegmentLineage) -> bytes:
    """The node of a lineage. `UsageError` for a segment's name that the format cannot hold."""
    maps = {} if lineage.custom_map is None else {CUSTOM_MAP: dict(lineage.custom_map)}
    return _encode(lineage.table, maps=maps, lists={e.id: _fields(e) for e in lineage.entries.values()})


def decode_lineage(data: bytes, path: str) -> SegmentLineage:
    """A lineage as `encode_lineage`, or Pinot, wrote it; path: of its node. `LineageDamaged`."""
    record = _decode(data, path)
    try:
        entries = [_entry(entry_id, *fields) for entry_id, fields in record["listFields"].items()]
        by_time = sorted(entries, key=lambda e: (e.timestamp, e.id))
        custom = record["mapFields"].get(CUSTOM_MAP)
        return SegmentLineage(record["id"], {e.id: e for e in by_time}, custom)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise LineageDamaged(path, f"holds no lineage: {error!r}") from error


def encode_segment(info: SegmentInfo) -> bytes:
    """The node of a segment; the fields that Pinot has are called as there."""
    fields = {
        "segment.total.docs": str(info.rows),
        "segment.size.in.bytes": str(info.size_bytes),
        "sha256": info.sha256,
        "as.of": str(_to_milliseconds(info.as_of)),
        "lineage.entry": info.entry_id,
    }
    return _encode(info.name, simple=fields if info.head is None else {**fields, HEAD: info.head})


def decode_segment(data: bytes, path: str) -> SegmentInfo:
    """What `encode_segment` wrote; `LineageDamaged`."""
    record = _decode(data, path)
    try:
        found = record["simpleFields"]
        rows, size = int(found["segment.total.docs"]), int(found["segment.size.in.bytes"])
        as_of = _from_milliseconds(found["as.of"])
        return SegmentInfo(record["id"], rows, size, found["sha256"], as_of, found["lineage.entry"], found.get(HEAD))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise LineageDamaged(path, f"describes no segment: {error!r}") from error


def _fields(entry: LineageEntry) -> list[str]:
    names = (",".join(map(checked_segment, segments)) for segments in (entry.segments_from, entry.segments_to))
    return [*names, entry.state.value, str(_to_milliseconds(entry.timestamp))]


def _entry(entry_id: str, sources: str, targets: str, state: str, timestamp: str) -> LineageEntry:
    return LineageEntry(entry_id, _split(sources), _split(targets), State(state), _from_milliseconds(timestamp))


def _split(names: str) -> tuple[str, ...]:
    return tuple(name for name in names.split(",") if name)


def _to_milliseconds(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(milliseconds=1)


def _from_milliseconds(text: str) -> datetime:
    return _EPOCH + timedelta(milliseconds=int(text))


def _encode(
    record_id: str,
    *,
    simple: dict[str, str] | None = None,
    maps: dict[str, dict[str, str]] | None = None,
    lists: dict[str, list[str]] | None = None,
) -> bytes:
    record = {"id": record_id, "simpleFields": simple or {}, "mapFields": maps or {}, "listFields": lists or {}}
    data = json.dumps(record).encode()
    return data if len(data) <= COMPRESS_BYTES else gzip.compress(data, mtime=0)


def _decode(data: bytes, path: str) -> dict[str, Any]:
    try:
        record = json.loads(gzip.decompress(data) if data.startswith(_GZIP) else data)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise LineageDamaged(path, f"holds {data[:80]!r}, which is no record") from error
    if not isinstance(record, dict):
        raise LineageDamaged(path, f"holds {data[:80]!r}, which is no record")
    return record
