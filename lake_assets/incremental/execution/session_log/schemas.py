"""The columns of the engine's own tables, and their creation."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, StringType

from lake_assets.errors import StoredByNewerVersion
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
    # Columns of later versions: a table of an older one gets them, and its rows have no value in them.
    "previous_sequence_number": "long",
    "previous_snapshot_timestamp_ms": "long",
    "target_uuid": "string",
    "target_snapshot_id": "long",
    "target_sequence_number": "long",
    "target_rows": "long",
}
QUARANTINE_COLUMNS = {
    "target": "string",
    "source": "string",
    "row_hash": "string",
    "session_id": "string",
    "reason": "string",
    "row": "string",
}
_COLUMN_TYPES = {"long": LongType(), "string": StringType()}
FORMAT = 1
"""Of these tables. A version reads all formats up to its own; a table of an earlier version has the first."""

FORMAT_PROPERTY = "lake.log-format"
LOG_PROPERTIES = {
    FORMAT_PROPERTY: str(FORMAT),
    # One attempt only: a retried append would follow a state that nobody has compared.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
}


def create_tables(catalog: Catalog) -> list[str]:
    """Create the three tables unless they exist; add the columns that a table of an older version lacks.

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
    add_missing_columns(catalog)
    return created


def check_format(table: Table) -> None:
    """Refuse a table of the log that a later version has changed.

    Raises:
        StoredByNewerVersion: Its format is later than this version's.
    """
    found = int(table.properties.get(FORMAT_PROPERTY, FORMAT))
    if found > FORMAT:
        name = ".".join(table.name())
        raise StoredByNewerVersion(f"The table {name} of the session log", found=found, readable=FORMAT)


def add_missing_columns(catalog: Catalog) -> None:
    """Add the columns of later versions to `etl.high_watermark`, all optional. Do nothing if it has them.

    Raises:
        StoredByNewerVersion: A later version has changed the table.
    """
    for attempt in tables.retrying():
        with attempt:
            table = tables.load(catalog, HIGH_WATERMARK)
            check_format(table)
            missing = WATERMARK_COLUMNS.keys() - set(table.schema().column_names)
            if not missing:
                return
            with table.update_schema() as update:
                for column, iceberg_type in WATERMARK_COLUMNS.items():
                    if column in missing:
                        update.add_column(column, _COLUMN_TYPES[iceberg_type])
