"""The calls of a replacement one by one, as a controller of Apache Pinot carries them out: start, upload, end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
from pyarrow import ArrowException

from lake_assets.errors import UsageError
from lake_assets.serving.errors import EntryReverted, QuotaExceeded, TargetNotNamed, TargetTaken
from lake_assets.serving.lineage.lineage import Change, State, missing
from lake_assets.serving.lineage.protocol import end_replace, start_replace
from lake_assets.serving.lineage.registry import States
from lake_assets.serving.lineage.znrecord import SegmentInfo, checked_segment
from lake_assets.serving.store.files import sha256_of
from lake_assets.serving.store.table_store import TableStore


def start_entry(
    store: TableStore, table: str, sources: Sequence[str], targets: Sequence[str], *, force: bool, snapshots: int
) -> str:
    """Start a replacement: see `protocol.start_replace`. Return the id of its entry."""
    for name in (*sources, *targets):
        checked_segment(name)
    files_before = store.files.stored(table)
    store.registry.sync()
    store.refuse_similar([table])
    started = ""

    def decide(states: States) -> dict[str, Change]:
        nonlocal started
        state = states[table]
        store.check_lineage_exists(table, state, files_before)
        taken = set(targets) & state.segments
        if taken and not force:
            raise TargetTaken(table, taken, "segments with these names are stored")
        change = start_replace(
            state.lineage,
            segments_from=sources,
            segments_to=targets,
            routed=state.routed,
            now=store.clock(),
            force=force,
            snapshots=snapshots,
        )
        started = change.entry_id
        return {table: Change(change.lineage, change.deletions | taken)}

    store.registry.update(decide, table)
    return started


def upload_segment(
    store: TableStore, table: str, segment: str, file: Path, *, quota: int | None, new_schema: bool
) -> None:
    """Store a file as a segment that an entry in progress names, read it back, and register it.

    Raises:
        UsageError: The file is not Parquet.
        TargetNotNamed: No entry in progress names the segment.
        TargetTaken: It is stored already.
        ColumnsChanged: It has other columns than readers see, and `new_schema` is not set.
        QuotaExceeded: The table would exceed its quota.
    """
    try:
        rows = pq.read_metadata(file).num_rows
    except (OSError, ArrowException) as error:
        raise UsageError(
            f"{segment} of {table} is not Parquet: {error}.",
            remedy="Upload a Parquet file. Archives of segments that Pinot built belong into a cluster of Pinot.",
        ) from error
    state = store.registry.read(table)[table]
    naming = [entry for entry in state.lineage.in_state(State.IN_PROGRESS) if segment in entry.segments_to]
    if segment in state.segments:
        raise TargetTaken(table, [segment], "a segment with this name is stored")
    if not naming:
        raise TargetNotNamed(table, segment)
    if not new_schema:
        store.check_columns(table, state.routed, file)
    size = file.stat().st_size
    stored = sum(store.files.stored(table).values())
    if quota is not None and stored + size > quota:
        raise QuotaExceeded(table, stored=stored, new=size, quota=quota)
    entry = naming[-1]
    info = SegmentInfo(segment, rows, size, sha256_of(file), as_of=entry.timestamp, entry_id=entry.id)
    store.files.upload(table, segment, file)
    store.files.verify(table, info)
    try:
        store.registry.register(table, entry.id, [info])
    except EntryReverted:
        store.files.remove(table, [segment])
        raise


def end_entry(store: TableStore, table: str, entry_id: str) -> None:
    """Complete a replacement: see `protocol.end_replace`. Its files must be there."""

    def decide(states: States) -> dict[str, Change]:
        state = states[table]
        entry = state.lineage.entry(entry_id)
        lost = missing(entry.segments_to, store.files.stored(table))
        return {table: end_replace(state.lineage, entry_id, ready=state.segments - lost, now=store.clock())}

    store.registry.update(decide, table)
