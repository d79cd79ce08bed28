"""One batch of a raw table: rows, offsets and complete-through, in one Iceberg commit, or not at all.

The rows are staged first, and published together with the offsets that follow them, only as long as main is still what
it was when the offsets were read. (An append of pyiceberg's own would be tried again on a main that has moved, with
offsets that are somebody else's by then.) What a process that died has staged is nobody's, and expires.
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
from lake_assets.incremental.metadata import publish, tables
from lake_assets.landing.consume.messages import Row
from lake_assets.landing.loading.progress import Progress, written


@dataclass(frozen=True)
class Landed:
    """A row, and when its message was sent, in UTC."""

    row: Row
    landed_at: datetime


@dataclass(frozen=True)
class Batch:
    """What one commit brings. progress: with this batch. complete_through: an hour, or None if nothing is complete."""

    rows: Sequence[Landed]
    progress: Progress
    complete_through: int | None


def commit(catalog: Catalog, table: Table, batch: Batch) -> None:
    """Commit a batch to the raw table, as it was loaded. Raises `PublishConflict` when it has moved since."""
    name, parent = ".".join(table.name()), publish.main_id(table)
    tables.check_write_audit_publish(table, name)
    # Without rows main stays, but is named: so this commit, too, needs it where it was.
    staged = _staged(catalog, table, name, batch) if batch.rows or parent is None else parent
    reach("loading-staged")
    publish.publish(
        catalog,
        name,
        staged,
        parent=parent,
        session_id=batch.progress.batch_id,
        complete_through=batch.complete_through,
        properties=written(batch.progress, table.metadata.properties),
    )
    reach("loading-committed")


def _staged(catalog: Catalog, table: Table, name: str, batch: Batch) -> int:
    """The rows as a snapshot that nobody reads yet; its id.

    Its number is like no other's: two loaders of one batch know nothing of each other's snapshots.
    """
    wap_id = publish.wap_id(batch.progress.batch_id, uuid4().int)
    location, parent = table.metadata_location, publish.main_id(table)
    try:
        table.append(_table(table, batch), snapshot_properties={publish.WAP_ID: wap_id}, branch=None)
    except (CommitFailedException, ValueError) as error:
        found = tables.load(catalog, name)
        if found.metadata_location == location:
            raise
        # Behind somebody else's commit pyiceberg refuses the sequence number of a snapshot, as a `ValueError`.
        raise PublishConflict(name, expected=parent, found=publish.main_id(found)) from error
    return publish.staged_snapshot(tables.load(catalog, name), wap_id).snapshot_id


def _table(table: Table, batch: Batch) -> pa.Table:
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.Table.from_pylist([_with_landing(r, batch.progress.batch_id) for r in batch.rows], schema=schema)


def _with_landing(landed: Landed, batch_id: str) -> dict[str, Any]:
    at = landed.landed_at
    return {
        **landed.row,
        "landed_at": at,
        "landing_date": at.date(),
        "landing_hour": at.hour,
        "batch_id": batch_id,
    }
