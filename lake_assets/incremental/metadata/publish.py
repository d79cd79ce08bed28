"""Publishing: the audited snapshot itself becomes main, bit for bit, in one Iceberg commit, or not at all.

Without Spark. The commit sets main and complete-through together, and requires main still to be the staged snapshot's
parent. A cherry-pick onto a moved main is not used: it would publish what nobody audited, and could revive
erased rows.
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

WAP_ID = "wap.id"
PUBLISHED_WAP_ID = "published-wap-id"


def main_id(table: Table) -> int | None:
    """The snapshot that main points at; None for a table that was never published to."""
    main = table.metadata.refs.get("main")
    return main.snapshot_id if main else None


def wap_id(session_id: str, number: int) -> str:
    return f"{session_id}.{number}"


def next_staging_number(table: Table, session_id: str) -> int:
    """One more than the highest under which this session was staged, recorded or not: no WAP id is written twice."""
    numbers = [int(i.rsplit(".", 1)[1]) for s in table.metadata.snapshots if (i := _of_session(s, session_id))]
    return max(numbers, default=0) + 1


def staged_snapshot(table: Table, wap: str) -> Snapshot:
    """The snapshot that was staged under a WAP id, the first if there are several.

    Raises `WriteAuditPublishDisabled` if Iceberg ignored the id.
    """
    if found := staged_snapshots(table, wap):
        return found[0]
    raise WriteAuditPublishDisabled(".".join(table.name()))


def staged_snapshots(table: Table, wap: str) -> list[Snapshot]:
    """All snapshots that were staged under a WAP id: one, unless somebody wrote twice."""
    return [s for s in table.metadata.snapshots if s.summary and s.summary.additional_properties.get(WAP_ID) == wap]


def rows_added(snapshot: Snapshot) -> int:
    """The rows that a snapshot added, by its summary."""
    return int(snapshot.summary.additional_properties.get("added-records", 0)) if snapshot.summary else 0


def rows_of(table: Table, snapshot_id: int | None) -> float:
    """The rows of a snapshot, by its summary; infinite if it does not say."""
    if snapshot_id is None:
        return 0
    snapshot = table.snapshot_by_id(snapshot_id)
    told = snapshot.summary.additional_properties.get("total-records") if snapshot and snapshot.summary else None
    return inf if told is None else int(told)


def is_published(table: Table, session_id: str) -> bool:
    """Whether the table says that a session was published: by its property, or by any ancestor of main."""
    if table.metadata.properties.get(tables.SESSION) == session_id:
        return True
    return any(_of_session(s, session_id) for s in ancestors(table))


def published_snapshot_id(table: Table, session_id: str) -> int | None:
    """The ancestor of main that a session published; None for one without rows."""
    return next((s.snapshot_id for s in ancestors(table) if _of_session(s, session_id)), None)


def snapshots_of_session(table: Table, session_id: str) -> list[int]:
    """Every snapshot that a session has staged, published or not."""
    return [s.snapshot_id for s in table.metadata.snapshots if _of_session(s, session_id)]


def check_not_rolled_back(table: Table, name: str, recorded: int | None) -> None:
    """Main still descends from what was recorded, as far as the table remembers; else raises `TargetRolledBack`."""
    if recorded is None or recorded not in {s.snapshot_id for s in table.metadata.snapshots}:
        return
    if all(s.snapshot_id != recorded for s in ancestors(table)):
        raise TargetRolledBack(name, recorded=recorded)


def only_compacted_since(table: Table, snapshot_id: int | None) -> bool:
    """Whether main is a snapshot, or nothing but compactions of it; False if that cannot be told any more."""
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
    """Make a staged snapshot main (None: there are no rows) and move complete-through, in one commit.

    properties: set with them. Raises `PublishConflict` when main is no longer `parent`.
    """
    for attempt in Retrying(
        retry=retry_if_exception_type(CommitFailedException),
        wait=wait_random_exponential(multiplier=0.05, max=1),
        stop=stop_after_attempt(8),
        reraise=True,
    ):
        with attempt:
            table = tables.load(catalog, name)
            if main_id(table) != parent:
                raise PublishConflict(name, expected=parent, found=main_id(table))
            told = _properties(table, name, session_id, complete_through)
            _commit(table, snapshot_id, {**(properties or {}), **told})


def _commit(table: Table, snapshot_id: int | None, properties: Mapping[str, str]) -> None:
    # The requirement that main has not moved since `table` was loaded is part of setting the snapshot.
    with table.transaction() as transaction:
        if snapshot_id is not None:
            ManageSnapshots(transaction=transaction).set_current_snapshot(snapshot_id=snapshot_id).commit()
        transaction.set_properties(dict(properties))


def _properties(table: Table, name: str, session_id: str, complete_through: int | None) -> dict[str, str]:
    properties = {tables.SESSION: session_id}
    before = tables.complete_through(table, name)
    if complete_through is not None and (before is None or complete_through > before):
        properties[tables.COMPLETE_THROUGH] = hour_key(complete_through)
    return properties


def ancestors(table: Table, snapshot_id: int | None = None) -> Iterator[Snapshot]:
    """A snapshot, of main by default, and those before it, newest first, by parent id; never by clock."""
    by_id = {s.snapshot_id: s for s in table.metadata.snapshots}
    current = by_id.get(snapshot_id or main_id(table) or 0)
    while current is not None:
        yield current
        current = by_id.get(current.parent_snapshot_id or 0)


def _of_session(snapshot: Snapshot, session_id: str) -> str | None:
    """The WAP id of a snapshot that belongs to the session; a cherry-picked one keeps it under another name."""
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    for key in (WAP_ID, PUBLISHED_WAP_ID):
        value = properties.get(key)
        if value and value.rsplit(".", 1)[0] == session_id:
            return value
    return None
