"""Reading the changes of a source: which snapshots are new, depending on what is left of the table's history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.base.hours import FIRST_HOUR
from lake_assets.errors import HistoryCut, SourceReplaced
from lake_assets.incremental.declaration import Source
from lake_assets.incremental.planning.changes.data_files import FileChange
from lake_assets.incremental.planning.changes.earlier_versions import earlier_versions
from lake_assets.incremental.planning.changes.row_hours import ReadBudget
from lake_assets.incremental.planning.changes.snapshot_reader import SnapshotReader
from lake_assets.incremental.planning.changes.source_changes import (
    Head,
    HowFound,
    SnapshotChange,
    SourceChanges,
    Totals,
    Watermark,
)

TOTALS = ("total-data-files", "total-records", "total-files-size")
"""The fields of a snapshot's summary that `Totals` is read from. They are optional in Iceberg."""


def changes(
    table: Table,
    source: Source,
    since: Watermark | None,
    *,
    start: int,
    up_to: Head | None = None,
    budget: ReadBudget | None = None,
) -> SourceChanges:
    """Return what changed in a table after a watermark. Nothing is written.

    Args:
        table: The source table.
        source: Its declaration.
        since: The watermark; None if every row is new.
        start: The pipeline's first event hour. Earlier rows are quarantined and cause no plan.
        up_to: The head to read up to; None for the table's present head.
        budget: How many data files may be opened because their bounds are far apart; None for none.

    Raises:
        SourceReplaced: The table was created again since the watermark.
        HistoryCut: The snapshots that are needed have expired.
        InvalidHourKey: The table's complete-through is no hour key.
    """
    uuid = str(table.metadata.table_uuid)
    if since is not None and since.table_uuid != uuid:
        raise SourceReplaced(source.table, expected=since.table_uuid, found=uuid)
    reader = SnapshotReader(table, source, start, budget)
    seen = up_to or reader.current_head()
    head = reader.snapshot(seen.snapshot_id)
    how, snapshots = _new_snapshots(reader, since, head)
    found = SourceChanges(
        source=source.table,
        time_column=source.time_column,
        since=since,
        head=_watermark_at(source.table, uuid, head, seen, _last_hour(since, snapshots)),
        how=how,
        snapshots=snapshots,
        added=_added_files(snapshots),
        since_expired=since is not None and not reader.is_retained(since.snapshot_id),
    )
    if not source.has_versions:
        return found
    return replace(found, earlier=earlier_versions(reader, source, found))


def hours_present(table: Table, time_column: str) -> frozenset[int]:
    """Return the hours for which the head of an hour-partitioned table has data files."""
    source = Source(table="own.own", time_column=time_column)
    present: set[int] = set()
    for snapshot in changes(table, source, None, start=FIRST_HOUR).snapshots:
        for first, last in snapshot.hours:
            present.update(range(first, last + 1))
    return frozenset(present)


def raw_history(
    table: Table,
    source: Source,
    since: int | None,
    start: int,
) -> Iterator[SnapshotChange]:
    """Yield every retained snapshot after `since`, oldest first; all of them if `since` is None or has expired."""
    reader = SnapshotReader(table, source, start)
    head = reader.snapshot(reader.current_head().snapshot_id)
    yield from reader.history(reader.ancestors(head, since).snapshots)


def _new_snapshots(
    reader: SnapshotReader, since: Watermark | None, head: Snapshot | None
) -> tuple[HowFound, tuple[SnapshotChange, ...]]:
    if since is None or since.snapshot_id is None:
        return "initial", tuple(reader.all_files(head))
    chain = reader.ancestors(head, since.snapshot_id)
    if chain.complete:
        return "history", tuple(reader.history(chain.snapshots))
    if head is None:
        raise HistoryCut(reader.name, since.snapshot_id)
    if since.snapshot_id in reader.by_id:
        return "rewound", (reader.difference(reader.by_id[since.snapshot_id], head),)
    # If the watermark's snapshot was an ancestor of the head, every retained ancestor is newer.
    oldest_retained = chain.snapshots[-1].sequence_number or 0
    if oldest_retained <= since.sequence_number:
        raise HistoryCut(reader.name, since.snapshot_id)
    return "expired", (reader.newer_files(head, since),)


def _watermark_at(
    name: str,
    uuid: str,
    head: Snapshot | None,
    seen: Head,
    last_hour: int | None,
) -> Watermark:
    if head is None:
        return Watermark(name, uuid, None, complete_through=seen.complete_through, last_hour=last_hour)
    return Watermark(
        source=name,
        table_uuid=uuid,
        snapshot_id=head.snapshot_id,
        sequence_number=head.sequence_number or 0,
        timestamp_ms=head.timestamp_ms,
        complete_through=seen.complete_through,
        totals=_totals(head),
        last_hour=last_hour,
    )


def _last_hour(since: Watermark | None, snapshots: Iterable[SnapshotChange]) -> int | None:
    last_hour = since.last_hour if since else None
    for snapshot in snapshots:
        if snapshot.hours:
            last = snapshot.hours[-1][1]
            last_hour = last if last_hour is None else max(last_hour, last)
    return last_hour


def _added_files(snapshots: Iterable[SnapshotChange]) -> tuple[FileChange, ...]:
    added: list[FileChange] = []
    for snapshot in snapshots:
        added += snapshot.added
    return tuple(added)


def _totals(snapshot: Snapshot) -> Totals | None:
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    if any(name not in summary for name in TOTALS):
        return None
    data_files, rows, size = (int(summary[name]) for name in TOTALS)
    return Totals(data_files, rows, size)
