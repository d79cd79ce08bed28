"""Which segments replaced which: the protocol of a served table. Pure: state and request in, new state or error out.

An entry replaces the segments `segments_from` by `segments_to`. What is routed, that is what readers see, follows from
one lineage alone: of all segments, those are left out that an entry in progress or reverted brings, and those that a
completed one replaced. So one write of the lineage switches a table, there and back.

The rules are Apache Pinot's (`PinotHelixResourceManager.startReplaceSegments`, `endReplaceSegments`,
`revertReplaceSegments`, `DefaultLineageManager`); docs/adr/012 tells where they are stricter. Each operation returns a
`Change`, or raises an error of `lake_assets.serving.errors`; the lineage that it was given never changes.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from lake_assets.errors import UsageError
from lake_assets.serving.errors import (
    EmptyReplace,
    EntryReverted,
    SegmentHeld,
    SourceGone,
    SourceNotRouted,
    SourceTaken,
    StillInProgress,
    TargetNotReady,
    TargetReplaced,
    TargetTaken,
    UnknownEntry,
)

SNAPSHOTS = 2
"""How many snapshots of a table are kept, the one being pushed included: the fewest that allow going back."""

_IDS = uuid.UUID("5e9b1f0a-6d57-4a55-9d0c-2f6f5a1c7be0")


class State(StrEnum):
    """Of an entry. It is live until it is reverted."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    REVERTED = "REVERTED"


@dataclass(frozen=True)
class LineageEntry:
    """One replacement. timestamp: of its last change of state, UTC, in whole milliseconds."""

    id: str
    segments_from: tuple[str, ...]
    segments_to: tuple[str, ...]
    state: State
    timestamp: datetime

    @property
    def is_live(self) -> bool:
        return self.state is not State.REVERTED

    @property
    def hidden(self) -> tuple[str, ...]:
        """The segments that are not routed because of it."""
        return self.segments_from if self.state is State.COMPLETED else self.segments_to

    def changed(self, state: State, now: datetime) -> LineageEntry:
        return replace(self, state=state, timestamp=whole_milliseconds(now))


@dataclass(frozen=True)
class SegmentLineage:
    """All entries of a table by id, in no order that counts. custom_map: Pinot's field of that name; kept as it is."""

    table: str = ""
    entries: Mapping[str, LineageEntry] = field(default_factory=dict)
    custom_map: Mapping[str, str] | None = None

    def entry(self, entry_id: str) -> LineageEntry:
        """The entry of an id; `UnknownEntry`."""
        if entry_id not in self.entries:
            raise UnknownEntry(self.table, entry_id)
        return self.entries[entry_id]

    def with_entries(self, entries: Iterable[LineageEntry]) -> SegmentLineage:
        """The same table with these entries instead."""
        return replace(self, entries={entry.id: entry for entry in entries})

    def updated(self, entry: LineageEntry) -> SegmentLineage:
        """With this entry in place of the one of its id, or as the last one."""
        return replace(self, entries={**self.entries, entry.id: entry})


class Change(NamedTuple):
    """What an operation comes to. deletions: segments to delete once, and only if, this lineage was written.

    They may be gone already, and none of them is routed.
    """

    lineage: SegmentLineage
    deletions: frozenset[str]


class Started(Change):
    """The `Change` of `start_replace`."""

    @property
    def entry_id(self) -> str:
        """Of the entry that was begun."""
        return list(self.lineage.entries)[-1]


class Retention(NamedTuple):
    """What is kept for how long. replaced: the sources of a completed entry. lineage: an entry that came to nothing."""

    replaced: timedelta
    lineage: timedelta


def routed(lineage: SegmentLineage, segments: Iterable[str]) -> frozenset[str]:
    """Those of all segments that readers see."""
    return frozenset(segments).difference(*(entry.hidden for entry in lineage.entries.values()))


def start_replace(
    lineage: SegmentLineage,
    *,
    segments_from: Iterable[str],
    segments_to: Iterable[str],
    routed: Collection[str],
    now: datetime,
    force: bool = False,
    snapshots: int = SNAPSHOTS,
) -> Started:
    """Begin to replace segments by others, which are uploaded after this and not before.

    routed: what readers see now. Either list may be empty, not both: nothing is replaced the first time, and a table
    is emptied by nothing. force: revert each entry in progress that shares a source or a target with this one, instead
    of being refused; its other targets are deleted. Its shared targets count as this entry's; none left, it is removed.

    snapshots: if the sources are all that a completed entry brought, they are a whole snapshot; what is `snapshots`
    or more back from the one that begins here is deleted. The id follows from the lineage and the arguments.

    Raises `EmptyReplace`, `SourceTaken`, `SourceNotRouted`, `TargetTaken`.
    """
    if snapshots < SNAPSHOTS:
        raise UsageError(f"{snapshots} snapshots cannot be kept.", remedy=f"Keep {SNAPSHOTS} or more.")
    sources, targets = tuple(dict.fromkeys(segments_from)), tuple(dict.fromkeys(segments_to))
    if not sources and not targets:
        raise EmptyReplace(lineage.table)
    rivals = [entry for entry in lineage.entries.values() if force and _overlaps(entry, sources, targets)]
    others = [entry for entry in lineage.entries.values() if entry.is_live and entry not in rivals]
    _check_sources(lineage.table, sources, others, routed)
    _check_targets(lineage.table, targets, others, routed)
    kept = [
        left
        for entry in lineage.entries.values()
        if (left := _given_way(entry.changed(State.REVERTED, now) if entry in rivals else entry, targets))
    ]
    entry_id = str(uuid.uuid5(_IDS, repr((lineage.table, sources, targets, now.isoformat(), sorted(lineage.entries)))))
    begun = LineageEntry(entry_id, sources, targets, State.IN_PROGRESS, whole_milliseconds(now))
    deletions = frozenset(name for entry in rivals for name in entry.segments_to).difference(targets)
    return Started(lineage.with_entries([*kept, begun]), deletions | _retired(lineage, sources, snapshots))


def end_replace(lineage: SegmentLineage, entry_id: str, *, ready: Collection[str], now: datetime) -> Change:
    """Switch: the targets of an entry are routed from here on, its sources are not. A second time it changes nothing.

    ready: the segments that are there and were found readable, of its targets and of its sources.
    Raises `UnknownEntry`, `EntryReverted`, `SourceGone`, `TargetNotReady`.
    """
    entry = _live(lineage, entry_id)
    if entry.state is State.COMPLETED:
        return Change(lineage, frozenset())
    if missing := _missing(entry.segments_from, ready):
        raise SourceGone(lineage.table, entry_id, missing)
    if missing := _missing(entry.segments_to, ready):
        raise TargetNotReady(lineage.table, entry_id, missing)
    return Change(lineage.updated(entry.changed(State.COMPLETED, now)), frozenset())


def revert_replace(
    lineage: SegmentLineage, entry_id: str, *, present: Collection[str], now: datetime, force: bool = False
) -> Change:
    """Go back: the sources of an entry are routed again, its targets are deleted.

    present: the segments that are there. force: also if it is in progress: whoever pushes it can then not end it.
    Raises `UnknownEntry`, `EntryReverted`, `StillInProgress`, `SourceGone`, `TargetReplaced`.
    """
    entry = _live(lineage, entry_id)
    if entry.state is State.IN_PROGRESS and not force:
        raise StillInProgress(lineage.table, entry_id)
    if entry.state is State.COMPLETED and (missing := _missing(entry.segments_from, present)):
        raise SourceGone(lineage.table, entry_id, missing)
    for other in lineage.entries.values():
        if other.is_live and (shared := set(entry.segments_to).intersection(other.segments_from)):
            raise TargetReplaced(lineage.table, entry_id, shared, by=other.id)
    return Change(lineage.updated(entry.changed(State.REVERTED, now)), frozenset(entry.segments_to))


def roll_back(
    lineage: SegmentLineage, entry_id: str, *, present: Collection[str], now: datetime, force: bool = False
) -> Change:
    """As `revert_replace`, the entries that replaced its targets since being reverted first, the newest before others.

    Raises what `revert_replace` raises: all of them are reverted, or none.
    """
    deletions: frozenset[str] = frozenset()
    targets = set(lineage.entry(entry_id).segments_to)
    for later in [e for e in lineage.entries.values() if e.is_live and targets.intersection(e.segments_from)]:
        lineage, more = roll_back(lineage, later.id, present=present, now=now, force=force)
        deletions |= more
    lineage, more = revert_replace(lineage, entry_id, present=present, now=now, force=force)
    return Change(lineage, deletions | more)


def clean_up(
    lineage: SegmentLineage,
    *,
    present: Collection[str],
    now: datetime,
    retention: Retention | timedelta,
    banned: Collection[str] = (),
) -> Change:
    """One cycle of two: the first deletes what an old entry left, the second drops the entry, its segments being gone.

    present: the segments that are there. Old is strictly older than the retention; a timedelta stands for both kinds.
    Of the newest completed entry the sources stay, however old: there would be nothing to go back to. banned: segments
    that nobody may go back to; those that a completed entry has replaced do not stay.
    """
    limits = retention if isinstance(retention, Retention) else Retention(retention, retention)
    newest = max((e.timestamp for e in lineage.entries.values() if e.state is State.COMPLETED), default=None)
    kept: list[LineageEntry] = []
    deletions: set[str] = set()
    for entry in lineage.entries.values():
        completed = entry.state is State.COMPLETED
        is_old = entry.timestamp < now - (limits.replaced if completed else limits.lineage)
        left = set(entry.hidden).intersection(present)
        if left or not (completed or is_old):
            kept.append(entry)
        if is_old and not (completed and entry.timestamp == newest):
            deletions |= left
        elif completed:
            deletions |= left.intersection(banned)
    return Change(lineage.with_entries(kept), frozenset(deletions))


def delete_segments(lineage: SegmentLineage, segments: Iterable[str], *, routed: Collection[str]) -> Change:
    """Delete segments that nothing needs. Raises `SegmentHeld` for one that is routed, or that a live entry names."""
    wanted = frozenset(segments)
    for entry in lineage.entries.values():
        if entry.is_live and (held := wanted.intersection(entry.segments_from + entry.segments_to)):
            raise SegmentHeld(lineage.table, held, f"entry {entry.id} names them")
    if held := wanted.intersection(routed):
        raise SegmentHeld(lineage.table, held, "readers see them")
    return Change(lineage, wanted)


def _live(lineage: SegmentLineage, entry_id: str) -> LineageEntry:
    entry = lineage.entry(entry_id)
    if not entry.is_live:
        raise EntryReverted(lineage.table, entry_id)
    return entry


def _overlaps(entry: LineageEntry, sources: Collection[str], targets: Collection[str]) -> bool:
    """Whether a forced start with these reverts the entry. Two empty lists of sources do not overlap."""
    shared = set(sources).intersection(entry.segments_from) | set(targets).intersection(entry.segments_to)
    return entry.state is State.IN_PROGRESS and bool(shared)


def _check_sources(
    table: str, sources: Collection[str], others: Iterable[LineageEntry], routed: Collection[str]
) -> None:
    for entry in others:
        if taken := set(sources).intersection(entry.segments_from):
            raise SourceTaken(table, taken, by=entry.id, state=entry.state)
    if missing := _missing(sources, routed):
        raise SourceNotRouted(table, missing)


def _check_targets(
    table: str, targets: Collection[str], others: Iterable[LineageEntry], routed: Collection[str]
) -> None:
    if taken := set(targets).intersection(routed):
        raise TargetTaken(table, taken, "readers see them already")
    for entry in others:
        if taken := set(targets).intersection(entry.segments_from + entry.segments_to):
            raise TargetTaken(table, taken, f"entry {entry.id} names them")


def _given_way(entry: LineageEntry, targets: Collection[str]) -> LineageEntry | None:
    """The entry, its targets that begin anew taken out if it is reverted: it would hide them. None if none is left."""
    left = tuple(name for name in entry.segments_to if name not in targets)
    if entry.is_live or left == entry.segments_to:
        return entry
    return replace(entry, segments_to=left) if left else None


def _retired(lineage: SegmentLineage, sources: Iterable[str], snapshots: int) -> frozenset[str]:
    """The snapshots that are too many once these sources are replaced; empty if there are not so many."""
    return frozenset[str]().union(*islice(_going_back(lineage, frozenset(sources)), snapshots - 1, None))


def _going_back(lineage: SegmentLineage, snapshot: frozenset[str]) -> Iterator[frozenset[str]]:
    """A snapshot, the one that it replaced as a whole, and so on, as far as completed entries tell."""
    completed = [entry for entry in lineage.entries.values() if entry.state is State.COMPLETED]
    replaced = {frozenset(entry.segments_to): frozenset(entry.segments_from) for entry in completed}
    while snapshot:
        yield snapshot
        snapshot = replaced.pop(snapshot, frozenset())  # taken out: a lineage that goes in circles has an end, too


def _missing(names: Iterable[str], there: Collection[str]) -> set[str]:
    return set(names).difference(there)


def whole_milliseconds(time: datetime) -> datetime:
    """As Pinot stores it."""
    return time.replace(microsecond=time.microsecond // 1000 * 1000)
