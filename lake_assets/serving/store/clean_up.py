"""Clean-up of served tables by retention, and the deletion of single segments."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lake_assets.base.failpoints import reach
from lake_assets.errors import UsageError
from lake_assets.serving.lineage import retention as rules
from lake_assets.serving.lineage.lineage import Change, missing
from lake_assets.serving.lineage.registry import States
from lake_assets.serving.lineage.retention import Retention
from lake_assets.serving.store.table_store import TableStore


def clean_up(store: TableStore, table: str, *, retention: Retention, erased_at: datetime | None) -> Change:
    """Run one cycle of retention, and remove the files that killed pushes and reverts have left.

    Args:
        store: The served tables.
        table: To clean up.
        retention: How long segments are kept.
        erased_at: Time of the last erasure; replaced segments whose rows were read before are deleted at any age. None:
            there was none.

    Returns:
        The change that was written.
    """

    def decide(states: States) -> dict[str, Change]:
        state = states[table]
        change = rules.clean_up(
            state.lineage,
            present=state.segments,
            now=store.clock(),
            retention=retention,
            banned=store.read_before(table, state.segments - state.routed, erased_at),
        )
        return {table: change}

    change = store.registry.update(decide, table)[table]
    reach("clean-up-written")
    store.remove_unreferenced(table, wait=True, given_up=change.deletions, failpoint="clean-up-half-removed")
    reach("clean-up-done")
    return change


def delete_segments(store: TableStore, table: str, segments: Sequence[str]) -> Change:
    """Delete segments that nothing needs.

    Raises:
        SegmentHeld: Readers see a segment, or a live entry names it.
        UsageError: There is no such segment.
    """
    stored = store.files.stored(table)  # listed before the lineage is read: see `check_lineage_exists`
    store.registry.sync()

    def decide(states: States) -> dict[str, Change]:
        state = states[table]
        store.check_lineage_exists(table, state, stored)
        unknown = missing(segments, state.segments.union(stored))
        if unknown:
            raise UsageError(
                f"{table} has no segment {min(unknown)!r}.", remedy=f"See `lake serving lineage {table} --json`."
            )
        return {table: rules.delete_segments(state.lineage, segments, routed=state.routed)}

    change = store.registry.update(decide, table)[table]
    store.remove_unreferenced(table, wait=True)
    return change
