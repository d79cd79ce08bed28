"""What others have done to a target: rollbacks, and snapshots of main that no session published. From metadata alone.

A compaction (operation `replace`) changes no row. A snapshot of a session has the session's WAP id, also after a
cherry-pick. Everything else was done by somebody else, and the event hours of its files are suspect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from lake_assets.base.hours import hour_key
from lake_assets.incremental.declaration import Source
from lake_assets.incremental.metadata import publish
from lake_assets.incremental.planning.changes import SnapshotChange
from lake_assets.incremental.planning.changes.row_hours import HourRange
from lake_assets.incremental.planning.changes.snapshot_reader import Chain, SnapshotReader, merge_ranges
from lake_assets.incremental.planning.session import TargetVersion

FIRST_HOUR = 0
"""Hours count from 1970 on: others may write rows from before the pipeline's start."""


@dataclass(frozen=True)
class OutsideChanges:
    """What others have done to a target.

    Attributes:
        what: What happened, as the end of a sentence that begins with the target.
        snapshots: The snapshots of main that others made, oldest first.
        hours: The suspect event hours: ranges, both ends inclusive, ascending. None if every hour is suspect.
    """

    what: str
    snapshots: tuple[int, ...] = ()
    hours: tuple[HourRange, ...] | None = None

    @property
    def hours_in_words(self) -> str:
        """The suspect hours, for people."""
        if self.hours is None:
            return "all hours"
        if not self.hours:
            return "rows without a time"
        return ", ".join(_span(first, last) for first, last in self.hours)

    def within(self, first: int, last: int) -> set[int]:
        """Return the suspect hours from `first` to `last`, both inclusive. There must be known ones."""
        found: set[int] = set()
        for start, end in self.hours or ():
            found.update(range(max(start, first), min(end, last) + 1))
        return found

    def covered_by(self, hours: Collection[int]) -> bool:
        """Whether all suspect hours are known and among these."""
        if not self.hours or not hours:
            return False
        first, last = self.hours[0][0], self.hours[-1][1]
        if first < min(hours) or last > max(hours):
            return False
        return self.within(first, last) <= set(hours)


def outside_changes(
    table: Table,
    name: str,
    time_column: str,
    known: TargetVersion,
) -> OutsideChanges | None:
    """Return what others have done to a target since a known version; None if nothing.

    Args:
        table: The target, of the UUID that the version names.
        name: Its name, `namespace.name`.
        time_column: The column of its event time.
        known: The version up to which the engine answers for all rows.
    """
    if publish.main_id(table) == known.snapshot_id:
        return None
    reader = SnapshotReader(table, Source(name, time_column=time_column), FIRST_HOUR)
    head = table.current_snapshot()
    chain = reader.ancestors(head, known.snapshot_id)
    if _reaches(chain, known) or _lost_only_compactions(reader, chain, known):
        return _made_by_others(reader, chain, name)
    if head is None or known.snapshot_id not in reader.by_id:
        what = f"has no history back to snapshot {known.snapshot_id}, which the engine knew last"
        return OutsideChanges(what)
    difference = reader.difference(reader.by_id[known.snapshot_id], head)
    what = f"was rolled back behind snapshot {known.snapshot_id}, which the engine knew last"
    return OutsideChanges(what, (head.snapshot_id,), difference.hours)


def is_of_session(snapshot: Snapshot, name: str) -> bool:
    """Whether a session of a target staged a snapshot, by its WAP id."""
    session_prefix = f"{name.rpartition('.')[2]}-"
    return any(wap.startswith(session_prefix) for wap in publish.wap_ids(snapshot))


def version_of(table: Table) -> TargetVersion:
    """Return the present version of a target."""
    head = table.current_snapshot()
    uuid = str(table.metadata.table_uuid)
    if head is None:
        return TargetVersion(uuid, None, rows=0)
    return TargetVersion(
        table_uuid=uuid,
        snapshot_id=head.snapshot_id,
        sequence_number=head.sequence_number or 0,
        rows=_number(head, "total-records"),
    )


def _reaches(chain: Chain, known: TargetVersion) -> bool:
    """Whether the ancestors of the head go back to the known snapshot, which may have expired."""
    if chain.complete:
        return True
    oldest = chain.snapshots[-1] if chain.snapshots else None
    return oldest is not None and oldest.parent_snapshot_id == known.snapshot_id


def _lost_only_compactions(reader: SnapshotReader, chain: Chain, known: TargetVersion) -> bool:
    """Whether the expired snapshots after the known one, which has expired too, left the number of rows as it was.

    Maintenance by other programs compacts a target and expires what it compacted. Of a version that an older engine
    stored, only the snapshot is known, and nothing contradicts it.
    """
    if known.snapshot_id in reader.by_id or not chain.snapshots:
        return False
    if known.table_uuid is None:
        return True
    oldest = chain.snapshots[-1]
    is_newer = (oldest.sequence_number or 0) > known.sequence_number
    return is_newer and known.rows is not None and _rows_before(oldest) == known.rows


def _rows_before(snapshot: Snapshot) -> int | None:
    """Return the rows of a snapshot's parent, by the snapshot's summary; None if it lacks the total."""
    total = _number(snapshot, "total-records")
    if total is None:
        return None
    added = _number(snapshot, "added-records") or 0
    deleted = _number(snapshot, "deleted-records") or 0
    return total - added + deleted


def _made_by_others(reader: SnapshotReader, chain: Chain, name: str) -> OutsideChanges | None:
    changes = list(_changes_by_others(reader, chain, name))
    if not changes:
        return None
    named = ", ".join(f"{change.operation} {change.snapshot_id}" for change in changes)
    hours: list[HourRange] = []
    for change in changes:
        hours += change.hours
    snapshots = tuple(change.snapshot_id for change in changes)
    return OutsideChanges(f"was changed by others ({named})", snapshots, merge_ranges(hours))


def _changes_by_others(reader: SnapshotReader, chain: Chain, name: str) -> Iterator[SnapshotChange]:
    """Yield what others did to rows, oldest first. Without a snapshot of others, no manifest is read."""
    others = {s.snapshot_id for s in chain.snapshots if not _is_ours(s, name)}
    if not others:
        return
    for change in reader.history(chain.snapshots):
        if change.snapshot_id in others and _changes_rows(change):
            yield change


def _is_ours(snapshot: Snapshot, name: str) -> bool:
    is_compaction = snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE
    return is_compaction or is_of_session(snapshot, name)


def _changes_rows(change: SnapshotChange) -> bool:
    return bool(change.added or change.hours or change.rows_gone)


def _number(snapshot: Snapshot, name: str) -> int | None:
    found = snapshot.summary.additional_properties.get(name) if snapshot.summary else None
    return None if found is None else int(found)


def _span(first: int, last: int) -> str:
    return hour_key(first) if first == last else f"{hour_key(first)}..{hour_key(last)}"
