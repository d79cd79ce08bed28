"""The check of what another program has written for a session against its plan, by the manifests of its snapshot.

Audits evaluate the planned hours, so they see the rows that were added. They do not see which rows were removed, or
should have been.
"""

from __future__ import annotations

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.base.hours import format_hours
from lake_assets.errors import NotAsPlanned
from lake_assets.incremental.metadata import publish
from lake_assets.incremental.metadata.partitions import deletes_rows, hours_left, hours_removed
from lake_assets.incremental.planning.session import SessionPlan

APPEND = "the new rows as one INSERT INTO"
OVERWRITE = "all planned hours, and no others, as one INSERT INTO ... REPLACE WHERE"


def check_written(table: Table, name: str, plan: SessionPlan, wap: str, time_column: str) -> None:
    """Check that one snapshot has the WAP id, and removes what the plan says.

    An append removes nothing. An overwrite removes all rows of the planned hours, and no others.

    Raises:
        NotAsPlanned: The snapshot, or the snapshots, deviate from the plan.
    """
    snapshots = publish.staged_snapshots(table, wap)
    deviations = _deviations(table, snapshots, plan, time_column)
    if deviations:
        instruction = APPEND
        if plan.load == "overwrite":
            instruction = OVERWRITE
        raise NotAsPlanned(name, wap, " and ".join(deviations), write=instruction)


def _deviations(table: Table, snapshots: list[Snapshot], plan: SessionPlan, time_column: str) -> list[str]:
    if len(snapshots) > 1:
        return [f"makes {len(snapshots)} snapshots, of which one alone could be published"]
    replaced: set[int] = set()
    if plan.load == "overwrite":
        replaced.update(plan.hour_numbers)
    found = []
    for snapshot in snapshots:
        if deletes_rows(table, snapshot):
            found.append("deletes single rows")
        unplanned = hours_removed(table, snapshot, time_column) - replaced
        if unplanned:
            found.append(f"removes rows of {_format_hours(unplanned)}, which was not planned")
        left = hours_left(table, snapshot, time_column, replaced)
        if left:
            found.append(f"leaves the former rows of {_format_hours(left)}, which are to be replaced")
    return found


def _format_hours(hours: set[int | None]) -> str:
    """Return hours for a message; None stands for rows without a time."""
    formatted = []
    timed = [hour for hour in hours if hour is not None]
    if timed:
        formatted.append(format_hours(timed))
    if None in hours:
        formatted.append("no hour")
    return " and ".join(formatted)
