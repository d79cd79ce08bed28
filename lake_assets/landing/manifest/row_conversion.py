"""Conversion between the entry of a file and its rows in the manifest's tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from lake_assets.base.hours import from_milliseconds, milliseconds
from lake_assets.landing.files.checksum import Checksum
from lake_assets.landing.files.entries import DataFile, identity_of
from lake_assets.landing.files.offset_ranges import Ranges
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.manifest.schema import Entry

NOT_SHARDED = 0
"""The stored sharding specification of dead letters."""


def row_of(entry: Entry) -> dict[str, Any]:
    """Return an entry as a row of `landing_file`."""
    file = entry.file
    shard = parse_shard(file.shard)
    retired_at = entry.retired_at
    return {
        "zone": file.zone,
        "name": file.name,
        "version": entry.version,
        "topic": shard.topic,
        "shard": file.shard,
        "shards": NOT_SHARDED if shard.dead_letters else shard.of,
        "identity": identity_of(file),
        "kind": file.kind,
        "size": file.size,
        "count": file.count,
        "sum": f"{file.checksum.sum:064x}",
        "digest": file.digest,
        "ranges": json.dumps(ranges_to_json(file.ranges)),
        "deletions": json.dumps(sorted(file.deletions)),
        "made_from": json.dumps(list(file.made_from)),
        "verdict": entry.verdict,
        "stage": entry.stage,
        "added_at": milliseconds(entry.added_at),
        "retired_at": None if retired_at is None else milliseconds(retired_at),
        "reason": entry.reason,
    }


def range_rows_of(file: DataFile) -> Iterable[dict[str, Any]]:
    """Yield the rows of a file in `landing_range`."""
    for partition, (first, last) in file.ranges.items():
        yield {
            "zone": file.zone,
            "name": file.name,
            "shard": file.shard,
            "partition": partition,
            "first": first,
            "last": last,
        }


def entry_of(row: sa.Row[Any]) -> Entry:
    """Return the entry of a row of `landing_file`."""
    found = row._mapping
    retired_at = found["retired_at"]
    return Entry(
        file=_file_of(found),
        verdict=found["verdict"],
        stage=found["stage"],
        version=found["version"],
        added_at=from_milliseconds(found["added_at"]),
        retired_at=None if retired_at is None else from_milliseconds(retired_at),
        reason=found["reason"],
    )


def _file_of(found: Mapping[Any, Any]) -> DataFile:
    return DataFile(
        name=found["name"],
        size=found["size"],
        shard=found["shard"],
        ranges=ranges_from_json(json.loads(found["ranges"])),
        deletions=frozenset(json.loads(found["deletions"])),
        count=found["count"],
        checksum=Checksum(found["count"], int(found["sum"], 16)),
        zone=found["zone"],
        kind=found["kind"],
        made_from=tuple(json.loads(found["made_from"])),
        digest=found["digest"],
    )


def ranges_to_json(ranges: Ranges) -> dict[str, list[int]]:
    """Return ranges as a JSON object."""
    return {str(partition): list(span) for partition, span in sorted(ranges.items())}


def ranges_from_json(found: Mapping[str, list[int]]) -> dict[int, tuple[int, int]]:
    """Return the ranges of a JSON object."""
    return {int(partition): (first, last) for partition, (first, last) in found.items()}
