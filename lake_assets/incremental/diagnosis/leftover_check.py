"""The check for staged snapshots of targets that no session needs any more."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pyiceberg.table import Table

from lake_assets.base.findings import Finding, Repair
from lake_assets.errors import TableDamaged
from lake_assets.incremental.diagnosis.context import Context
from lake_assets.incremental.maintenance.snapshot_references import SnapshotReferences, read_references
from lake_assets.incremental.metadata import publish, tables

CHECK = "leftovers"


def check_leftovers(context: Context) -> Iterator[Finding]:
    """Yield the targets with staged snapshots that were never published and that no session needs."""
    any_found = False
    loaded = {name: _load(context, name) for name in sorted(context.targets & context.present)}
    references = read_references(context.catalog)  # only now: see there
    for name, table in loaded.items():
        ids = leftover_snapshots(table, name, references) if table else []
        if ids:
            any_found = True
            what = f"expires {len(ids)} staged snapshots of {name}"
            repair = Repair(what, partial(_expire, context, name))
            text = f"{name} has {len(ids)} staged snapshots of ended sessions: {', '.join(map(str, ids))}."
            remedy = f"Maintenance expires them later; `lake doctor --repair` {what}."
            yield Finding(CHECK, "warning", text, remedy, repair)
    if not any_found:
        yield Finding(CHECK, "ok", "No target has staged snapshots that no session needs.")


def leftover_snapshots(table: Table, name: str, references: SnapshotReferences) -> list[int]:
    """Return the staged snapshots of a target that are not in the history of main and that nothing refers to.

    Args:
        table: The target, loaded before the references were read: a session that staged meanwhile is then included.
        name: Its name.
        references: What all processes refer to.
    """
    needed = set(references.pinned(table, name))
    needed.update(snapshot.snapshot_id for snapshot in publish.ancestors(table))
    found = []
    for snapshot in table.metadata.snapshots:
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if publish.WAP_ID in summary and snapshot.snapshot_id not in needed:
            found.append(snapshot.snapshot_id)
    return found


def _load(context: Context, name: str) -> Table | None:
    try:
        return tables.load(context.catalog, name)
    except TableDamaged:  # the check of tables reports it
        return None


def _expire(context: Context, name: str) -> None:
    for attempt in tables.retrying():
        with attempt:
            table = tables.load(context.catalog, name)
            ids = leftover_snapshots(table, name, read_references(context.catalog))
            if ids:
                table.maintenance.expire_snapshots().by_ids(ids).commit()
