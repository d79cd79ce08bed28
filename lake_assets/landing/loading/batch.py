"""One batch of a raw table: rows, offsets and complete-through in one Iceberg commit.

The rows are staged first. They are published together with the next offsets only if main is still the snapshot at which
the offsets were read. (An append of pyiceberg would retry on a main that has moved, with offsets that another loader
has changed by then.) A snapshot that was staged by a process that died is never published, and expires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from lake_assets.base.failpoints import reach
from lake_assets.errors import PublishConflict
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.landing.consume.messages import Row
from lake_assets.landing.files.records import Record
from lake_assets.landing.loading.progress import Progress, progress_properties


@dataclass(frozen=True)
class LandedRow:
    """A row, its message, and when that landed, in UTC: when it was sent, if its own time can be right."""

    row: Row
    landed_at: datetime
    record: Record


@dataclass(frozen=True)
class Batch:
    """The content of one commit.

    Attributes:
        rows: May be empty.
        progress: After this batch.
        complete_through: Hours since 1970-01-01 UTC; None if no hour is complete.
    """

    rows: Sequence[LandedRow]
    progress: Progress
    complete_through: int | None


def commit(catalog: Catalog, table: Table, batch: Batch) -> None:
    """Commit a batch to the raw table.

    Args:
        catalog: Of the table.
        table: As it was when the progress was read.
        batch: The batch.

    Raises:
        PublishConflict: The table has changed since.
        WriteAuditPublishDisabled: Rows cannot be staged in this table.
    """
    name = ".".join(table.name())
    parent = publish.main_id(table)
    iceberg.check_write_audit_publish(table, name)
    # Without rows the commit publishes main again, so it too needs main to be unchanged.
    staged = _stage(catalog, table, name, batch) if batch.rows or parent is None else parent
    reach("loading-staged")
    publish.publish(
        catalog,
        name,
        staged,
        parent=parent,
        session_id=batch.progress.batch_id,
        complete_through=batch.complete_through,
        properties=progress_properties(batch.progress, table.metadata.properties),
    )
    reach("loading-committed")


def _stage(catalog: Catalog, table: Table, name: str, batch: Batch) -> int:
    """Write the rows to a staged snapshot and return its id."""
    # A unique number: two loaders of the same batch must not see each other's snapshots.
    wap_id = publish.wap_id(batch.progress.batch_id, uuid4().int)
    location = table.metadata_location
    parent = publish.main_id(table)
    try:
        with iceberg.leaving_no_files(catalog, table):
            table.append(_arrow_table(table, batch), snapshot_properties={publish.WAP_ID: wap_id}, branch=None)
    except (CommitFailedException, ValueError) as error:
        current = iceberg.load(catalog, name)
        if current.metadata_location == location:
            raise
        # After another commit, pyiceberg refuses the sequence number of a snapshot with a `ValueError`.
        raise PublishConflict(name, expected=parent, found=publish.main_id(current)) from error
    return publish.staged_snapshot(iceberg.load(catalog, name), wap_id).snapshot_id


def _arrow_table(table: Table, batch: Batch) -> pa.Table:
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    rows = [_with_landing_columns(row, batch.progress.batch_id) for row in batch.rows]
    return pa.Table.from_pylist(rows, schema=schema)


def _with_landing_columns(landed: LandedRow, batch_id: str) -> dict[str, Any]:
    at = landed.landed_at
    return {
        **landed.row,
        "landed_at": at,
        "landing_date": at.date(),
        "landing_hour": at.hour,
        "batch_id": batch_id,
    }
