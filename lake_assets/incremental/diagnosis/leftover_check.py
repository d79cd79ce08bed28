"""The check for staged snapshots of targets that no session needs any more."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pyiceberg.table import Table

from lake_assets.base.findings import Finding, Repair
from lake_assets.errors import TableDamaged
from lake_assets.incremental.diagnosis.context import Context
from lake_assets.incremental.execution.state import State, number_of
from lake_assets.incremental.metadata import publish, tables

CHECK = "leftovers"


def check_leftovers(context: Context) -> Iterator[Finding]:
    """Yield the targets with staged snapshots that were never published and that no session needs."""
    any_found = False
    loaded = {name: _load(context, name) for name in sorted(context.targets & context.present)}
    for name, table in loaded.items():
        ids = leftover_snapshots(table) if table else []
        if ids:
            any_found = True
            what = f"expires {len(ids)} staged snapshots of {name}"
            repair = Repair(what, partial(_expire, context, name))
            text = f"{name} has {len(ids)} staged snapshots of ended sessions: {', '.join(map(str, ids))}."
            remedy = f"Maintenance expires them later; `lake doctor --repair` {what}."
            yield Finding(CHECK, "warning", text, remedy, repair)
    if not any_found:
        yield Finding(CHECK, "ok", "No target has staged snapshots that no session needs.")


def leftover_snapshots(table: Table) -> list[int]:
    """Return the staged snapshots of a target that can never be published: a session of a later number has ended.

    A snapshot of the next number may belong to a session that runs now, or to one that an audit has stopped, which
    people may inspect.
    """
    kept = {snapshot.snapshot_id for snapshot in publish.ancestors(table)}
    kept.update(ref.snapshot_id for ref in table.metadata.refs.values())
    ended = max((number_of(each) for each in table.metadata.snapshots if each.snapshot_id in kept), default=0)
    opened = State("", table=table).opened
    written_for = opened["plan"]["session_id"] if opened else None
    found = []
    for snapshot in table.metadata.snapshots:
        wap_id = publish.summary_of(snapshot).get(publish.WAP_ID)
        if wap_id is None or snapshot.snapshot_id in kept:
            continue
        if wap_id.rpartition(".")[0] != written_for and number_of(snapshot) <= ended:
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
            ids = leftover_snapshots(table)
            if ids:
                table.maintenance.expire_snapshots().by_ids(ids).commit()
