"""The columns of the engine's own tables, and their creation."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.transforms import IdentityTransform

from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK, QUARANTINE, SESSION

SESSION_COLUMNS = {
    "process_name": "string",
    "session_id": "string",
    "revision": "long",
    "etl_pattern_id": "int",
    "state": "string",
    "kind": "string",
    "load": "string",
    "sources": "string",
    "processing_uris": "string",
    "from_event_date": "string",
    "from_event_hour": "int",
    "to_event_date": "string",
    "to_event_hour": "int",
    "from_landing_date": "string",
    "from_landing_hour": "int",
    "to_landing_date": "string",
    "to_landing_hour": "int",
    "hours": "string",
    "built_hours": "string",
    "pending_hours": "string",
    "skipped_hours": "string",
    "unchanged_hours": "string",
    "held_hours": "string",
    "complete_through": "string",
    "rows_read": "long",
    "rows_written": "long",
    "audits": "string",
    "staging_number": "int",
    "staged_snapshot_id": "long",
    "published_snapshot_id": "long",
    "run_id": "string",
    "code_version": "string",
    "started_at": "timestamptz",
    "ended_at": "timestamptz",
    "plan": "string",
}
WATERMARK_COLUMNS = {
    "process_name": "string",
    "source": "string",
    "revision": "long",
    "table_uuid": "string",
    "latest_snapshot_id": "long",
    "previous_snapshot_id": "long",
    "sequence_number": "long",
    "snapshot_timestamp_ms": "long",
    "complete_through": "string",
    "session_id": "string",
    "metadata": "string",
}
QUARANTINE_COLUMNS = {
    "target": "string",
    "source": "string",
    "row_hash": "string",
    "session_id": "string",
    "reason": "string",
    "row": "string",
}
LOG_PROPERTIES = {
    # One attempt only: a retried append would follow a state that nobody has compared.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
}


def create_tables(catalog: Catalog) -> list[str]:
    """Create the three tables unless they exist.

    Returns:
        The names of the tables that were created.
    """
    by_process = {"process_name": IdentityTransform[Any]()}
    by_target = {"target": IdentityTransform[Any]()}
    wanted = [
        (SESSION, SESSION_COLUMNS, by_process),
        (HIGH_WATERMARK, WATERMARK_COLUMNS, by_process),
        (QUARANTINE, QUARANTINE_COLUMNS, by_target),
    ]
    created = []
    for name, columns, partitions in wanted:
        if tables.create(catalog, name, columns, partitions, LOG_PROPERTIES):
            created.append(name)
    return created
