"""What another program wrote for a session, held to its plan: told by the manifests of its snapshot alone.

Audits look at the planned hours, and so at the rows that came. What went, and what should have gone, they cannot see.
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
    """One snapshot carries the WAP id. An append removes nothing; an overwrite, all that the planned hours had, only.

    Raises `NotAsPlanned`.
    """
    snapshots = publish.staged_snapshots(table, wap)
    if found := " and ".join(_deviations(table, snapshots, plan, time_column)):
        raise NotAsPlanned(name, wap, found, write=OVERWRITE if plan.load == "overwrite" else APPEND)


def _deviations(table: Table, snapshots: list[Snapshot], plan: SessionPlan, time_column: str) -> list[str]:
    """What is not as planned, in words."""
    if len(snapshots) > 1:
        return [f"makes {len(snapshots)} snapshots, of which one alone could be published"]
    replaced = set(plan.hour_numbers) if plan.load == "overwrite" else set()
    found = []
    for snapshot in snapshots:
        if deletes_rows(table, snapshot):
            found.append("deletes single rows")
        if gone := hours_removed(table, snapshot, time_column) - replaced:
            found.append(f"removes rows of {_spelled(gone)}, which was not planned")
        if left := hours_left(table, snapshot, time_column, replaced):
            found.append(f"leaves the former rows of {_spelled(left)}, which are to be replaced")
    return found


def _spelled(hours: set[int | None]) -> str:
    """Hours in words; None stands for rows without a time."""
    timed = format_hours(sorted(h for h in hours if h is not None))
    return " and ".join(filter(None, [timed, "no hour" if None in hours else ""]))
