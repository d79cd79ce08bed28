"""Rows of `etl.high_watermark`: the watermarks of a process and what it has committed, as columns, and back.

The columns and their JSON are stored; they stay as is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from lake_assets.base.hours import hour_key, parse_hour
from lake_assets.incremental.execution.session_log.records import ProcessState
from lake_assets.incremental.execution.session_log.session_rows import held_hours_as_json, optional_hour_key
from lake_assets.incremental.planning.changes import Totals, Watermark
from lake_assets.incremental.planning.deferred import DeferredHour
from lake_assets.incremental.planning.plan import Committed
from lake_assets.incremental.planning.session import HeldHour, SessionPlan, SourceRange, TargetVersion


def watermark_rows(
    before: ProcessState,
    plan: SessionPlan,
    committed: Committed,
    published_snapshot_id: int | None,
    target: TargetVersion | None,
) -> list[dict[str, Any]]:
    """Return the rows that move all watermarks of a process to where a session's ranges end, one for each source."""
    shared = encode_committed(committed, published_snapshot_id)
    rows = []
    for source in plan.sources:
        row = _source_columns(source, shared)
        row["process_name"] = plan.process
        row["session_id"] = plan.session_id
        row["revision"] = before.revision + 1
        row.update(_previous_columns(before.watermarks.get(source.source)))
        row.update(_target_columns(target))
        rows.append(row)
    return rows


def watermark(row: Mapping[str, Any]) -> Watermark:
    """Return a row of `etl.high_watermark` as a watermark."""
    metadata = json.loads(row["metadata"])
    totals = metadata.get("totals")
    return Watermark(
        source=row["source"],
        table_uuid=row["table_uuid"],
        snapshot_id=row["latest_snapshot_id"],
        sequence_number=row["sequence_number"],
        timestamp_ms=row["snapshot_timestamp_ms"],
        complete_through=_parse_optional_hour(row["complete_through"]),
        totals=Totals(**totals) if totals else None,
        last_hour=_parse_optional_hour(metadata.get("last_hour")),
    )


def decode_target(row: Mapping[str, Any], published_snapshot_id: int | None) -> TargetVersion | None:
    """Return the target's state from a row of `etl.high_watermark`; a row of an older version lacks its columns."""
    table_uuid = row.get("target_uuid")
    if table_uuid is not None:
        return TargetVersion(
            table_uuid=table_uuid,
            snapshot_id=row["target_snapshot_id"],
            sequence_number=row["target_sequence_number"],
            rows=row["target_rows"],
        )
    if published_snapshot_id is not None:
        return TargetVersion(None, published_snapshot_id)
    return None


def encode_committed(committed: Committed, published_snapshot_id: int | None) -> dict[str, Any]:
    """Return what a process has committed as the object of the column `metadata`."""
    return {
        "pending": _hour_keys(committed.pending),
        "skipped": _hour_keys(committed.skipped),
        "last_built": optional_hour_key(committed.last_built),
        "complete_through": optional_hour_key(committed.complete_through),
        "code_version": committed.code_version,
        "uniform_from": optional_hour_key(committed.uniform_from),
        "published_snapshot_id": published_snapshot_id,
        "held": held_hours_as_json(committed.held),
        "following": _hour_keys(committed.following),
        "chunk_hours": committed.chunk_hours,
        "deferred": [{**asdict(each), "hour": hour_key(each.hour)} for each in committed.deferred],
    }


def decode_committed(metadata: Mapping[str, Any]) -> Committed:
    """Return what a process has committed from the column `metadata`; a row of an older version lacks some names."""
    held = []
    for stored in metadata.get("held", ()):
        hour = parse_hour(stored["hour"])
        held.append(HeldHour(**{**stored, "hour": hour}))
    deferred = []
    for stored in metadata.get("deferred", ()):
        deferred.append(DeferredHour(**{**stored, "hour": parse_hour(stored["hour"])}))
    return Committed(
        pending=_parse_hours(metadata["pending"]),
        skipped=_parse_hours(metadata["skipped"]),
        last_built=_parse_optional_hour(metadata["last_built"]),
        complete_through=_parse_optional_hour(metadata["complete_through"]),
        held=tuple(held),
        code_version=metadata.get("code_version", ""),
        uniform_from=_parse_optional_hour(metadata.get("uniform_from")),
        following=_parse_hours(metadata.get("following", ())),
        chunk_hours=metadata.get("chunk_hours", 0),
        deferred=tuple(deferred),
    )


def _source_columns(source: SourceRange, shared: Mapping[str, Any]) -> dict[str, Any]:
    own = {
        "totals": asdict(source.totals) if source.totals else None,
        "last_hour": optional_hour_key(source.last_hour),
    }
    return {
        "source": source.source,
        "table_uuid": source.table_uuid,
        "latest_snapshot_id": source.to_snapshot_id,
        "sequence_number": source.to_sequence_number,
        "snapshot_timestamp_ms": source.to_timestamp_ms,
        "complete_through": optional_hour_key(source.complete_through),
        "metadata": json.dumps({**shared, **own}),
    }


def _previous_columns(previous: Watermark | None) -> dict[str, Any]:
    """Return the columns of the snapshot that the watermark names before the move."""
    if previous is None or previous.snapshot_id is None:
        return {
            "previous_snapshot_id": None,
            "previous_sequence_number": None,
            "previous_snapshot_timestamp_ms": None,
        }
    return {
        "previous_snapshot_id": previous.snapshot_id,
        "previous_sequence_number": previous.sequence_number,
        "previous_snapshot_timestamp_ms": previous.timestamp_ms,
    }


def _target_columns(target: TargetVersion | None) -> dict[str, Any]:
    if target is None:
        return {}
    return {
        "target_uuid": target.table_uuid,
        "target_snapshot_id": target.snapshot_id,
        "target_sequence_number": target.sequence_number,
        "target_rows": target.rows,
    }


def _hour_keys(hours: Iterable[int]) -> list[str]:
    return [hour_key(hour) for hour in sorted(hours)]


def _parse_hours(keys: Iterable[str]) -> frozenset[int]:
    return frozenset(parse_hour(key) for key in keys)


def _parse_optional_hour(key: str | None) -> int | None:
    if key is None:
        return None
    return parse_hour(key, where="A stored hour")
