"""Publishing: the audited snapshot becomes main, unchanged, in one Iceberg commit, or nothing changes. Without Spark.

The commit of a session moves main and the tag `lake-published`, and requires that both are as they were when the
session was planned: main alone comes back after a rollback. What the session leaves behind, its state, stands in the
summary of that snapshot, so it goes where main goes, and the tag keeps it from expiring. A cherry-pick onto a moved
main is not used: it would publish a snapshot that was not audited, and could bring erased rows back.

pyiceberg's own transactions keep one requirement of each type, and its `set_current_snapshot` drops the retention
settings of main; so the updates are put together here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntryStatus
from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles, _SnapshotProducer

from lake_assets.base.hours import hour_key
from lake_assets.errors import main_moved, write_audit_publish_disabled
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.iceberg import changed_entries

WAP_ID = "wap.id"
"""The id of a staged snapshot in its summary."""

TAG = "lake-published"
"""The snapshot that a session of the target published last."""

NEVER = 2**63 - 1
"""The age, in milliseconds, that no reference reaches."""


@dataclass(frozen=True)
class Base:
    """A target as it was when a session was planned. The commit of the session requires that it still is."""

    uuid: str
    main: int | None
    tag: int | None


def base_of(table: Table) -> Base:
    """Return what a commit requires of a table that was loaded just now."""
    return Base(str(table.metadata.table_uuid), main_id(table), tag_id(table))


def tag_id(table: Table) -> int | None:
    """Return the snapshot that a session published last; None before the first session."""
    tag = table.metadata.refs.get(TAG)
    return tag.snapshot_id if tag else None


def lags_behind(table: Table) -> bool:
    """Return whether main has moved since the last session, so that the tag keeps files that main may have replaced."""
    return tag_id(table) not in (None, main_id(table))


def end_session(
    catalog: Catalog,
    name: str,
    base: Base,
    staged: int | None,
    *,
    summary: Mapping[str, str],
    properties: Mapping[str, str | None],
) -> tuple[Table, int | None]:
    """Make a staged snapshot main, and move the tag to it, in one commit.

    Args:
        catalog: The catalog of the target.
        name: The target.
        base: What main and the tag must be.
        staged: The snapshot; None to commit an empty one.
        summary: The summary of the empty snapshot; a staged one has its own.
        properties: Table properties to set in the same commit; None removes one.

    Returns:
        The table after the commit, and the snapshot that was made main, which others may have followed since.

    Raises:
        PublishConflict: Main or the tag is not as planned.
    """
    for attempt in iceberg.retrying():
        with attempt:
            table = iceberg.load(catalog, name)
            check_base(table, name, base)
            made: tuple[TableUpdate, ...] = ()
            snapshot_id = staged
            if snapshot_id is None:
                snapshot_id, made = _snapshot(table, Operation.APPEND, (), (), summary)
            try:
                _commit(catalog, table, snapshot_id, properties, made, refs=("main", TAG))
            except Exception:  # a reply may be lost, and a refusal may be that of a repeated request
                if all(each.snapshot_id != snapshot_id for each in ancestors(iceberg.load(catalog, name))):
                    raise
    return iceberg.load(catalog, name), snapshot_id


def check_base(table: Table, name: str, base: Base) -> None:
    """Check that main and the tag of a table are as they were.

    Raises:
        PublishConflict: They are not, or the table is another one.
    """
    found = base_of(table)
    if found != base:
        moved = found.main if found.main != base.main else found.tag
        raise main_moved(name, expected=base.main, found=moved)


def _commit(
    catalog: Catalog,
    table: Table,
    snapshot_id: int | None,
    properties: Mapping[str, str | None],
    made: Collection[TableUpdate] = (),
    *,
    refs: Collection[str],
) -> None:
    """Move references to a snapshot (None: leave them) and set properties, and require them to be as in `table`."""
    requirements: list[TableRequirement] = [AssertTableUUID(uuid=table.metadata.table_uuid)]
    updates: list[TableUpdate] = list(made)
    for name in refs:
        ref = table.metadata.refs.get(name)
        # pyiceberg refuses the requirement of a tag for a table without snapshots, which has no tag.
        if table.metadata.snapshots or name == "main":
            found = ref.snapshot_id if ref else None
            requirements.append(AssertRefSnapshotId(ref=name, snapshot_id=found))  # type: ignore[call-arg]
        if snapshot_id is not None:
            limits: dict[str, Any] = {"max_ref_age_ms": NEVER}
            if name == "main":
                limits = ref.model_dump(exclude={"snapshot_id", "snapshot_ref_type"}) if ref else {}
            type_ = SnapshotRefType.TAG if name == TAG else SnapshotRefType.BRANCH
            moved = SetSnapshotRefUpdate(ref_name=name, type=type_, snapshot_id=snapshot_id, **limits)  # type: ignore[call-arg]
            updates.append(moved)
    new = {key: value for key, value in properties.items() if value is not None}
    gone = [key for key, value in properties.items() if value is None and key in table.metadata.properties]
    if new:
        updates.append(SetPropertiesUpdate(updates=new))
    if gone:
        updates.append(RemovePropertiesUpdate(removals=gone))
    response = catalog.commit_table(table, tuple(requirements), tuple(updates))
    Catalog._delete_old_metadata(table.io, table.metadata, response.metadata)


def stage_again(catalog: Catalog, name: str, written: Snapshot, *, overwrites: bool, summary: Mapping[str, str]) -> int:
    """Stage the files of a snapshot again, on the main that it was staged on, with a summary of ours.

    Returns:
        The snapshot; main does not refer to it.
    """
    for attempt in iceberg.retrying():
        with attempt:
            table = iceberg.load(catalog, name)
            data = [e for e in changed_entries(written, table.io) if e.data_file.content is DataFileContent.DATA]
            added = [entry.data_file for entry in data if entry.status is not ManifestEntryStatus.DELETED]
            removed = [entry.data_file for entry in data if entry.status is ManifestEntryStatus.DELETED]
            operation = Operation.OVERWRITE if overwrites else Operation.APPEND
            snapshot_id, made = _snapshot(table, operation, added, removed, summary)
            catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), made)
            return snapshot_id
    raise AssertionError("unreachable: the last attempt returns or raises")


def _snapshot(
    table: Table,
    operation: Operation,
    added: Collection[DataFile],
    removed: Collection[DataFile],
    summary: Mapping[str, str],
) -> tuple[int, tuple[TableUpdate, ...]]:
    """Write the manifests of a snapshot that follows main; return its id, and the updates that add it to the table."""
    kind: type[_SnapshotProducer] = _OverwriteFiles if operation is Operation.OVERWRITE else _FastAppendFiles  # type: ignore[type-arg]
    transaction = Transaction(table)
    producer = kind(operation, transaction, table.io, snapshot_properties=dict(summary), branch=None)
    for file in added:
        producer.append_data_file(file)
    for file in removed:
        producer.delete_data_file(file)
    made, _ = producer._commit()
    return producer.snapshot_id, made


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
        session, _, number = summary_of(snapshot).get(WAP_ID, "").rpartition(".")
        if session == session_id and number.isdigit():
            highest = max(highest, int(number))
    return highest + 1


def staged_snapshot(table: Table, wap: str) -> Snapshot:
    """Return the snapshot that was staged under a WAP id, the first if there are several.

    Raises:
        TargetError: There is none, because Iceberg ignored the id.
    """
    found = staged_snapshots(table, wap)
    if not found:
        raise write_audit_publish_disabled(".".join(table.name()))
    return found[0]


def staged_snapshots(table: Table, wap: str) -> list[Snapshot]:
    """Return all snapshots that were staged under a WAP id: one, unless somebody wrote twice."""
    return [snapshot for snapshot in table.metadata.snapshots if summary_of(snapshot).get(WAP_ID) == wap]


def rows_added(snapshot: Snapshot) -> int:
    """Return the rows that a snapshot added, by its summary."""
    return int(summary_of(snapshot).get("added-records", 0))


def rows_of(table: Table, snapshot_id: int | None) -> float:
    """Return the rows of a snapshot, by its summary; infinite if the summary lacks them, 0 without a snapshot."""
    if snapshot_id is None:
        return 0
    snapshot = table.snapshot_by_id(snapshot_id)
    total = summary_of(snapshot).get("total-records") if snapshot else None
    return inf if total is None else int(total)


def only_compacted_since(table: Table, snapshot_id: int | None) -> bool:
    """Whether main is a snapshot, or was only compacted since; False if the history that would show it has expired."""
    for snapshot in ancestors(table):
        if snapshot.snapshot_id == snapshot_id:
            return True
        if operation_of(snapshot) is not Operation.REPLACE:
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
    """Make a staged snapshot of a raw table main and move complete-through, in one commit.

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
    for attempt in iceberg.retrying():
        with attempt:
            table = iceberg.load(catalog, name)
            if main_id(table) != parent:
                raise main_moved(name, expected=parent, found=main_id(table))
            changed = {**(properties or {}), iceberg.SESSION_PROPERTY: session_id}
            before = iceberg.complete_through(table, name)
            if complete_through is not None and (before is None or complete_through > before):
                changed[iceberg.COMPLETE_THROUGH] = hour_key(complete_through)
            _commit(catalog, table, snapshot_id, changed, refs=("main",))


def ancestors(table: Table, snapshot_id: int | None = None) -> Iterator[Snapshot]:
    """Yield a snapshot (default: main) and those before it, newest first, by parent id and never by clock."""
    by_id = {s.snapshot_id: s for s in table.metadata.snapshots}
    current = by_id.get(snapshot_id or main_id(table) or 0)
    while current is not None:
        yield current
        current = by_id.get(current.parent_snapshot_id or 0)


def operation_of(snapshot: Snapshot) -> Operation:
    """Return a snapshot's operation; a snapshot without one may have changed any row."""
    return snapshot.summary.operation if snapshot.summary else Operation.OVERWRITE


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the summary of a snapshot; empty without one."""
    return snapshot.summary.additional_properties if snapshot.summary else {}
