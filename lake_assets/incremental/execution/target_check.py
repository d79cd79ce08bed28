"""Whether a target is as its sessions left it: the same table, on main only what sessions and compactions did.

Reads metadata, changes nothing. `planning.outside_changes` compares; this module knows the stored state.
"""

from __future__ import annotations

from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lake_assets.errors import (
    TableMissing,
    TargetChanged,
    TargetDropped,
    TargetError,
    TargetReplaced,
    TargetRolledBack,
)
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.execution.session_log import ProcessState
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.planning.outside_changes import OutsideChanges, outside_changes, version_of
from lake_assets.incremental.planning.session import TargetVersion


def target_table(catalog: Catalog, state: ProcessState) -> Table:
    """Load the table of a target.

    Raises:
        TargetDropped: It does not exist, and the process has a watermark.
        TableMissing: It does not exist, and the process has none: a new table is built from the beginning.
    """
    table = tables.find(catalog, state.process)
    if table is None and state.watermarks:
        raise TargetDropped(state.process)
    if table is None:
        raise TableMissing(state.process)
    return table


def check_same_table(table: Table, state: ProcessState) -> None:
    """Check that a table is the one that the sessions of a process have built.

    Raises:
        TargetReplaced: It is another one.
    """
    if is_replaced(table, state):
        expected = state.target.table_uuid if state.target else None
        raise TargetReplaced(state.process, expected=expected, found=str(table.metadata.table_uuid))


def is_replaced(table: Table, state: ProcessState) -> bool:
    """Whether a table is another one than the sessions of a process have built.

    An older version did not record the UUID. But main never disappears from a table, so one without main is new.
    """
    if state.target is None:
        return False
    if state.target.table_uuid is not None:
        return state.target.table_uuid != str(table.metadata.table_uuid)
    return publish.main_id(table) is None


def changed_by_others(table: Table, target: Target, state: ProcessState) -> OutsideChanges | None:
    """Return what others have done to the table of a target; None if nothing, or if no session has built it."""
    if not state.watermarks or is_replaced(table, state):
        return None
    known = state.target or TargetVersion(None, None)
    return outside_changes(table, target.table, target.time_column, known)


def version_to_record(table: Table, state: ProcessState, found: OutsideChanges | None) -> TargetVersion:
    """Return the version up to which the engine answers for a target after the session that is planned now.

    Args:
        table: The target.
        state: The state of its process.
        found: What others have done to the target and the session does not repair; None for nothing.
    """
    if found is None:
        return version_of(table)
    known = state.target or TargetVersion(None, None)
    return replace(known, table_uuid=str(table.metadata.table_uuid))


def version_after(table: Table, planned: TargetVersion | None, published: int | None) -> TargetVersion:
    """Return the version up to which the engine answers for a target after a session.

    Args:
        table: The target, after the session has published.
        planned: The version in the session's plan.
        published: The snapshot that the session published; None if it had no rows.
    """
    if planned is None:
        return version_of(table)
    snapshot = table.snapshot_by_id(published) if published is not None else None
    is_child = snapshot is not None and snapshot.parent_snapshot_id == planned.snapshot_id
    if not is_child or publish.main_id(table) != published:
        # Main moved between planning and publishing, or since: the next plan looks at what came in between.
        return planned
    return version_of(table)


def find_problem(catalog: Catalog, target: Target, state: ProcessState) -> TargetError | None:
    """Return in which way a target is not as its sessions left it, as the error that says so; None if it is."""
    if not state.watermarks:
        return None
    try:
        table = target_table(catalog, state)
        check_same_table(table, state)
        publish.check_not_rolled_back(table, target.table, state.published_snapshot_id)
    except (TargetDropped, TargetReplaced, TargetRolledBack) as error:
        return error
    found = changed_by_others(table, target, state)
    return problem_of(target, found) if found else None


def problem_of(target: Target, found: OutsideChanges) -> TargetChanged:
    """Return what others have done to a target as an error."""
    return TargetChanged(target.table, found.what, hours=found.hours_in_words)
