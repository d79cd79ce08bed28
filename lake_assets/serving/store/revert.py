"""Reverts: tables return to the snapshots that entries of their lineages have replaced, all of them in one switch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from lake_assets.base.failpoints import reach
from lake_assets.serving.errors import ErasedSince
from lake_assets.serving.lineage.lineage import Change, routed
from lake_assets.serving.lineage.protocol import revert_replace, roll_back
from lake_assets.serving.lineage.registry import States, TableState
from lake_assets.serving.store.table_store import TableStore


def revert_entries(
    store: TableStore,
    entries: Mapping[str, str],
    *,
    force: bool,
    later: bool,
    erased_at: datetime | None,
) -> Mapping[str, Change]:
    """Revert entries of several tables, or none of them.

    Files that a query may still read are kept until the next push or clean-up.

    Args:
        store: The served tables.
        entries: Table → the entry's id.
        force: Whether to revert also entries in progress.
        later: Whether to revert also the entries that replaced these since.
        erased_at: Time of the last erasure; None if there was none.

    Returns:
        Table → the change that was written.

    Raises:
        ErasedSince: Readers would see rows that were read before the erasure.
        ReplaceRefused: The lineage does not allow it.
    """
    operation = roll_back if later else revert_replace

    def decide(states: States) -> dict[str, Change]:
        changes = {}
        for table, entry_id in entries.items():
            state = states[table]
            present = state.segments.intersection(store.files.stored(table))
            change = operation(state.lineage, entry_id, present=present, now=store.clock(), force=force)
            _refuse_erased(store, table, state, change, erased_at)
            changes[table] = change
        return changes

    changes = store.registry.update(decide, *entries)
    reach("revert-written")
    for table in entries:
        store.remove_unreferenced(table, wait=False, failpoint="revert-half-removed")
    reach("revert-done")
    return changes


def _refuse_erased(
    store: TableStore, table: str, state: TableState, change: Change, erased_at: datetime | None
) -> None:
    if erased_at is None:
        return
    routed_after = routed(change.lineage, state.segments - change.deletions)
    banned = store.read_before(table, routed_after - state.routed, erased_at)
    if banned:
        raise ErasedSince(table, pushed_at=min(banned.values()), erased_at=erased_at)
