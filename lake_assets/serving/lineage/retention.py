"""Retention of a served table: which segments and entries are deleted when. Pure, like the protocol.

The rules are those of Apache Pinot's `DefaultLineageManager`; docs/adr/012 lists where they are stricter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from lake_assets.serving.errors import SegmentHeld
from lake_assets.serving.lineage.lineage import Change, LineageEntry, SegmentLineage, State


@dataclass(frozen=True)
class Retention:
    """How long segments are kept after their entry's last change of state.

    Attributes:
        replaced: The sources of completed entries.
        lineage: The targets of entries that were reverted, or never completed.
    """

    replaced: timedelta
    lineage: timedelta

    def of(self, entry: LineageEntry) -> timedelta:
        """Return the retention of an entry."""
        return self.replaced if entry.state is State.COMPLETED else self.lineage


def clean_up(
    lineage: SegmentLineage,
    *,
    present: Collection[str],
    now: datetime,
    retention: Retention | timedelta,
    banned: Collection[str] = (),
) -> Change:
    """Run one cycle of clean-up. The first cycle deletes an old entry's segments, the next one removes the entry.

    The sources of the newest completed entry are kept at any age: without them there would be nothing to go back to.

    Args:
        lineage: The lineage before.
        present: The segments that exist.
        now: In UTC.
        retention: An entry is old if it is strictly older than this. A timedelta is used for both kinds.
        banned: Segments that nobody may go back to. They are deleted at any age if a completed entry has replaced them.
    """
    limits = _limits(retention)
    newest = _newest_completed(lineage)
    kept: list[LineageEntry] = []
    deletions: set[str] = set()
    for entry in lineage.entries.values():
        is_completed = entry.state is State.COMPLETED
        is_newest = _is_newest(entry, newest)
        is_old = entry.timestamp < now - limits.of(entry)
        remaining = set(entry.hidden).intersection(present)
        if remaining or not (is_completed or is_old):
            kept.append(entry)
        if is_old and not is_newest:
            deletions |= remaining
        elif is_completed:
            deletions |= remaining.intersection(banned)
    return Change(lineage.with_entries(kept), frozenset(deletions))


def delete_segments(lineage: SegmentLineage, segments: Iterable[str], *, routed: Collection[str]) -> Change:
    """Delete segments that nothing needs.

    Raises:
        SegmentHeld: A segment is routed, or a live entry names it.
    """
    wanted = frozenset(segments)
    for entry in lineage.live_entries():
        named = wanted.intersection(entry.segments)
        if named:
            raise SegmentHeld(lineage.table, named, f"entry {entry.id} names them")
    seen = wanted.intersection(routed)
    if seen:
        raise SegmentHeld(lineage.table, seen, "readers see them")
    return Change(lineage, wanted)


def _newest_completed(lineage: SegmentLineage) -> datetime | None:
    timestamps = [entry.timestamp for entry in lineage.in_state(State.COMPLETED)]
    return max(timestamps, default=None)


def _is_newest(entry: LineageEntry, newest: datetime | None) -> bool:
    return entry.state is State.COMPLETED and entry.timestamp == newest


def _limits(retention: Retention | timedelta) -> Retention:
    if isinstance(retention, timedelta):
        return Retention(replaced=retention, lineage=retention)
    return retention
