"""Publishing: the audited snapshot becomes main, unchanged, in one Iceberg commit, or nothing changes. Without Spark.

The commit sets main and complete-through together, and requires that main still is the staged snapshot's parent. A
cherry-pick onto a moved main is not used: it would publish a snapshot that was not audited, and could bring erased rows
back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.snapshot import ManageSnapshots
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.base.hours import hour_key
from lake_assets.errors import PublishConflict, TargetRolledBack, WriteAuditPublishDisabled
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.transactions import OneCopyTransaction

WAP_ID = "wap.id"
PUBLISHED_WAP_ID = "published-wap-id"
"""The WAP id of a snapshot that was cherry-picked."""

PUBLISH_ATTEMPTS = 8


def main_id(table: Table) -> int | None:
    """Return the snapshot that main points at; None if nothing was ever published."""
    main = table.metadata.refs.get("main")
    return main.snapshot_id if main else None


def wap_id(session_id: str, number: int) -> str:
    """Return the WAP id of a session's number-th staging."""
    return f"{session_id}.{number}"


def next_staging_number(table: Table, session_id: str) -> int:
    """Return one more than the highest staging number of a session, so that no WAP id is written twice."""
    highest = 0
    for snapshot in table.metadata.snapshots:
        wap = _wap_id_of_session(snapshot, session_id)
        if wap is not None:
            _, _, number = wap.rpartition(".")
            highest = max(highest, int(number))
    return highest + 1


def staged_snapshot(table: Table, wap: str) -> Snapshot:
    """Return the snapshot that was staged under a WAP id, the first if there are several.

    Raises:
        WriteAuditPublishDisabled: There is none, because Iceberg ignored the id.
    """
    found = staged_snapshots(table, wap)
    if not found:
        raise WriteAuditPublishDisabled(".".join(table.name()))
    return found[0]


def staged_snapshots(table: Table, wap: str) -> list[Snapshot]:
    """Return all snapshots that were staged under a WAP id: one, unless somebody wrote twice."""
    found: list[Snapshot] = []
    for snapshot in table.metadata.snapshots:
        if _summary(snapshot).get(WAP_ID) == wap:
            found.append(snapshot)
    return found


def wap_ids(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the WAP ids of a snapshot: the one it was staged under, and the one it was cherry-picked with."""
    summary = _summary(snapshot)
    return tuple(summary[key] for key in (WAP_ID, PUBLISHED_WAP_ID) if summary.get(key))


def rows_added(snapshot: Snapshot) -> int:
    """Return the rows that a snapshot added, by its summary."""
    return int(_summary(snapshot).get("added-records", 0))


def rows_of(table: Table, snapshot_id: int | None) -> float:
    """Return the rows of a snapshot, by its summary; infinite if the summary lacks them, 0 without a snapshot."""
    if snapshot_id is None:
        return 0
    snapshot = table.snapshot_by_id(snapshot_id)
    total = _summary(snapshot).get("total-records") if snapshot else None
    return inf if total is None else int(total)


def is_published(table: Table, session_id: str) -> bool:
    """Whether a session was published, by the table's property or by any ancestor of main."""
    if table.metadata.properties.get(tables.SESSION) == session_id:
        return True
    return published_snapshot_id(table, session_id) is not None


def published_snapshot_id(table: Table, session_id: str) -> int | None:
    """Return the ancestor of main that a session published; None if the session had no rows."""
    for snapshot in ancestors(table):
        if _wap_id_of_session(snapshot, session_id) is not None:
            return snapshot.snapshot_id
    return None


def snapshots_of_session(table: Table, session_id: str) -> list[int]:
    """Return every snapshot that a session has staged, published or not."""
    found: list[int] = []
    for snapshot in table.metadata.snapshots:
        if _wap_id_of_session(snapshot, session_id) is not None:
            found.append(snapshot.snapshot_id)
    return found


def check_not_rolled_back(table: Table, name: str, recorded: int | None) -> None:
    """Check that main still descends from the recorded snapshot, if that snapshot is retained.

    Raises:
        TargetRolledBack: It does not.
    """
    retained = {s.snapshot_id for s in table.metadata.snapshots}
    if recorded is None or recorded not in retained:
        return
    if all(s.snapshot_id != recorded for s in ancestors(table)):
        raise TargetRolledBack(name, recorded=recorded)


def only_compacted_since(table: Table, snapshot_id: int | None) -> bool:
    """Whether main is a snapshot, or was only compacted since; False if the history that would show it has expired."""
    for snapshot in ancestors(table):
        if snapshot.snapshot_id == snapshot_id:
            return True
        if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
            return False
    return False


def publish(
    catalog: Catalog,
    name: str,
    snapshot_id: int | None,
    *,
    parent: int | None,
    session_id: str,
    complete_through: int | None,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Make a staged snapshot main and move complete-through, in one commit.

    Args:
        catalog: The catalog of the table.
        name: The table.
        snapshot_id: The staged snapshot; None if the session has no rows.
        parent: What main must be.
        session_id: The session that is published.
        complete_through: The new complete-through; an earlier one than the table's is ignored, as is None.
        properties: Further table properties to set in the same commit.

    Raises:
        PublishConflict: Main is not `parent`.
    """
    for attempt in Retrying(
        retry=retry_if_exception_type(CommitFailedException),
        wait=wait_random_exponential(multiplier=0.05, max=1),
        stop=stop_after_attempt(PUBLISH_ATTEMPTS),
        reraise=True,
    ):
        with attempt:
            table = tables.load(catalog, name)
            if main_id(table) != parent:
                raise PublishConflict(name, expected=parent, found=main_id(table))
            changed = dict(properties or {})
            changed.update(_session_properties(table, name, session_id, complete_through))
            _commit(table, snapshot_id, changed)


def ancestors(table: Table, snapshot_id: int | None = None) -> Iterator[Snapshot]:
    """Yield a snapshot (default: main) and those before it, newest first, by parent id and never by clock."""
    by_id = {s.snapshot_id: s for s in table.metadata.snapshots}
    current = by_id.get(snapshot_id or main_id(table) or 0)
    while current is not None:
        yield current
        current = by_id.get(current.parent_snapshot_id or 0)


def _commit(table: Table, snapshot_id: int | None, properties: dict[str, str]) -> None:
    # Setting the snapshot requires that main has not moved since `table` was loaded.
    with OneCopyTransaction(table) as transaction:
        if snapshot_id is not None:
            ManageSnapshots(transaction=transaction).set_current_snapshot(snapshot_id=snapshot_id).commit()
        transaction.set_properties(properties)


def _session_properties(
    table: Table,
    name: str,
    session_id: str,
    complete_through: int | None,
) -> dict[str, str]:
    properties = {tables.SESSION: session_id}
    before = tables.complete_through(table, name)
    if complete_through is not None and (before is None or complete_through > before):
        properties[tables.COMPLETE_THROUGH] = hour_key(complete_through)
    return properties


def _wap_id_of_session(snapshot: Snapshot, session_id: str) -> str | None:
    """Return the WAP id of a snapshot; None if it belongs to another session. A cherry-picked one has another key."""
    for wap in wap_ids(snapshot):
        if wap.rpartition(".")[0] == session_id:
            return wap
    return None


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}
