"""The withdrawal of a batch that failed before its data commit: what it wrote is removed, and it can write no more.

Each step can be repeated. The part of the batch that is tried next has a new batch id, so a former attempt that is
still running cannot pass for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from lake_assets.base.failpoints import BATCH_HALF_WITHDRAWN, reach
from lake_assets.engagement.model.checkpoint import Checkpoint
from lake_assets.engagement.model.delta_log import open_table
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.notifications.notify import DATA_COMMIT, Counts, total_counts


def has_changed_rows(tables: LakeTables, app_id: str, table: str, opened: Checkpoint) -> bool:
    """Return whether the data commit of a batch is in its table after all. Then the batch is not withdrawn."""
    batch = opened.batch
    made = tables.commit_of(table, app_id=app_id, batch_id=batch.batch_id, since=batch.reads[table])
    return made is not None and total_counts(made) != Counts()


def withdraw(tables: LakeTables, commits: Mapping[str, tuple[str, str]], opened: Checkpoint) -> None:
    """Mark the id of a batch as used in each table, then remove its rows.

    Args:
        commits: Name of each commit of the batch, in order → its transaction app id and its table. Commits before the
            data commit append rows with a `batch_id` that no other stream writes.
    """
    batch_id = opened.batch.batch_id
    changes_rows = False
    for name, (app_id, table) in commits.items():
        location = tables.location(table)
        changes_rows |= name == DATA_COMMIT
        tables.append_nothing(table, app_id=app_id, batch_id=batch_id)
        if not changes_rows:
            open_table(location).delete(f"batch_id = {int(batch_id)}")
        reach(BATCH_HALF_WITHDRAWN)
