"""The lineage of a served table: which segments replaced which, which of them are routed, and what may be done to it.

An entry replaces the segments `segments_from` by `segments_to`. The routed segments, which readers see, follow from one
lineage: all segments, except the targets of entries that are in progress or reverted, and the sources of completed
entries. So one write of the lineage switches a table, in both directions.

The rules are Apache Pinot's (`PinotHelixResourceManager.startReplaceSegments`, `endReplaceSegments`,
`revertReplaceSegments`, `DefaultLineageManager`); docs/adr/012 lists where they are stricter. All is pure: each
operation returns a `Change`, or raises a `ServingError`; it never modifies its arguments.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice

from lake_assets.base.hours import from_milliseconds, milliseconds
from lake_assets.errors import EntryEnded, ServingError, UsageError, named, replace_refused, target_taken


class State(StrEnum):
    """The state of a lineage entry. An entry is live until it is reverted."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    REVERTED = "REVERTED"


@dataclass(frozen=True)
class LineageEntry:
    """One replacement of segments.

    Attributes:
        id: Unique within the table.
        segments_from: The sources, which are replaced.
        segments_to: The targets, which replace them.
        state: How far the replacement is.
        timestamp: Of the last change of state; UTC, in whole milliseconds.
    """

    id: str
    segments_from: tuple[str, ...]
    segments_to: tuple[str, ...]
    state: State
    timestamp: datetime

    @property
    def is_live(self) -> bool:
        """Whether it was not reverted."""
        return self.state is not State.REVERTED

    @property
    def segments(self) -> tuple[str, ...]:
        """Its sources and targets."""
        return self.segments_from + self.segments_to

    @property
    def hidden(self) -> tuple[str, ...]:
        """The segments that this entry excludes from routing."""
        if self.state is State.COMPLETED:
            return self.segments_from
        return self.segments_to

    def changed(self, state: State, now: datetime) -> LineageEntry:
        """Return the entry with another state."""
        return replace(self, state=state, timestamp=whole_milliseconds(now))


@dataclass(frozen=True)
class SegmentLineage:
    """All lineage entries of a table.

    Attributes:
        table: The served table.
        entries: By id; their order has no meaning.
        custom_map: Pinot's field of that name; it is preserved as it is.
    """

    table: str = ""
    entries: Mapping[str, LineageEntry] = field(default_factory=dict)
    custom_map: Mapping[str, str] | None = None

    def entry(self, entry_id: str) -> LineageEntry:
        """Return the entry with an id. Raises `EntryEnded`."""
        if entry_id not in self.entries:
            raise EntryEnded(
                f"The lineage of {self.table} has no entry {entry_id}.",
                remedy=f"See `lake serving lineage {self.table}`.",
            )
        return self.entries[entry_id]

    def live_entry(self, entry_id: str) -> LineageEntry:
        """Return the live entry with an id. Raises `EntryEnded`."""
        entry = self.entry(entry_id)
        if not entry.is_live:
            raise self.reverted(entry_id)
        return entry

    def reverted(self, entry_id: str) -> EntryEnded:
        """Return the error of an entry that was reverted."""
        return EntryEnded(f"Entry {entry_id} of {self.table} was reverted.", remedy="Push again.")

    def live_entries(self) -> list[LineageEntry]:
        """Return the entries that were not reverted."""
        return [entry for entry in self.entries.values() if entry.is_live]

    def in_state(self, state: State) -> list[LineageEntry]:
        """Return the entries in a state."""
        return [entry for entry in self.entries.values() if entry.state is state]

    def with_entries(self, entries: Iterable[LineageEntry]) -> SegmentLineage:
        """Return the lineage with other entries."""
        return replace(self, entries={entry.id: entry for entry in entries})

    def updated(self, entry: LineageEntry) -> SegmentLineage:
        """Return the lineage with an entry replaced, or added if its id is new."""
        return replace(self, entries={**self.entries, entry.id: entry})


@dataclass(frozen=True)
class Change:
    """The result of an operation on a lineage.

    Attributes:
        lineage: To be written.
        deletions: Segments to delete once, and only if, this lineage was written. None of them is routed; some may not
            exist any more.
    """

    lineage: SegmentLineage
    deletions: frozenset[str]


@dataclass(frozen=True)
class StartedReplace(Change):
    """The result of `start_replace`. entry_id: of the entry that was started."""

    entry_id: str


def routed(lineage: SegmentLineage, segments: Iterable[str]) -> frozenset[str]:
    """Return those of all existing segments that readers see."""
    hidden: set[str] = set()
    for entry in lineage.entries.values():
        hidden.update(entry.hidden)
    return frozenset(segments) - hidden


def missing(names: Iterable[str], existing: Collection[str]) -> set[str]:
    """Return the names that do not exist."""
    return set(names).difference(existing)


def whole_milliseconds(time: datetime) -> datetime:
    """Return a time, in UTC, without its microseconds, as Pinot stores it."""
    return from_milliseconds(milliseconds(time))


MIN_SNAPSHOTS = 2
"""How many snapshots of a table are kept at least, including the one that is being pushed: one to go back to."""

_ENTRY_IDS = uuid.UUID("5e9b1f0a-6d57-4a55-9d0c-2f6f5a1c7be0")


def start_replace(
    lineage: SegmentLineage,
    *,
    segments_from: Iterable[str],
    segments_to: Iterable[str],
    routed: Collection[str],
    now: datetime,
    force: bool = False,
    snapshots: int = MIN_SNAPSHOTS,
) -> StartedReplace:
    """Start a replacement of segments by others, which must be uploaded after this.

    If the sources are all targets of a completed entry, they are a whole snapshot. Then the snapshots that are
    `snapshots` or more steps before the started one are deleted.

    Args:
        lineage: The lineage before.
        segments_from: The sources; empty for the first push of a table.
        segments_to: The targets; empty to empty a table. One of both must not be empty.
        routed: The segments that readers see now.
        now: In UTC. The entry's id follows from it, the lineage and the other arguments.
        force: Whether to revert entries in progress that share a source or a target with this one, instead of refusing.
            Their targets are deleted, except those that they share with this entry; an entry without other targets is
            removed.
        snapshots: How many snapshots to keep.

    Raises:
        ServingError: There is neither a source nor a target; another live entry replaces a source; readers do not see
            a source; readers see a target, or another live entry names it.
        UsageError: `snapshots` is too small.
    """
    if snapshots < MIN_SNAPSHOTS:
        raise UsageError(f"{snapshots} snapshots cannot be kept.", remedy=f"Keep {MIN_SNAPSHOTS} or more.")
    sources = tuple(dict.fromkeys(segments_from))
    targets = tuple(dict.fromkeys(segments_to))
    if not sources and not targets:
        raise replace_refused(
            f"A replacement in {lineage.table} names neither a source nor a target.",
            remedy="Name a source or a target.",
        )
    overlapping = _overlapping(lineage, sources, targets) if force else []
    others = [entry for entry in lineage.live_entries() if entry not in overlapping]
    _check_sources(lineage.table, sources, others, routed)
    _check_targets(lineage.table, targets, others, routed)
    started = LineageEntry(
        id=_entry_id(lineage, sources, targets, now),
        segments_from=sources,
        segments_to=targets,
        state=State.IN_PROGRESS,
        timestamp=whole_milliseconds(now),
    )
    deletions = set(retired_segments(lineage, sources, kept=snapshots - 1))
    after_reverts = lineage
    for entry in overlapping:
        after_reverts = after_reverts.updated(entry.changed(State.REVERTED, now))
        deletions |= set(entry.segments_to).difference(targets)
    kept = _without_targets(after_reverts, targets)
    return StartedReplace(
        lineage=lineage.with_entries([*kept, started]),
        deletions=frozenset(deletions),
        entry_id=started.id,
    )


def end_replace(lineage: SegmentLineage, entry_id: str, *, ready: Collection[str], now: datetime) -> Change:
    """Complete an entry: from now on its targets are routed and its sources are not. A second call changes nothing.

    Args:
        lineage: The lineage before.
        entry_id: The entry.
        ready: The segments that exist and were found readable, among its sources and targets.
        now: In UTC.

    Raises:
        EntryEnded: There is no such entry, or it was reverted.
        ServingError: A source or a target is not ready.
    """
    entry = lineage.live_entry(entry_id)
    if entry.state is State.COMPLETED:
        return Change(lineage, frozenset())
    sources_gone = missing(entry.segments_from, ready)
    if sources_gone:
        raise _source_gone(lineage.table, entry_id, sources_gone)
    targets_missing = missing(entry.segments_to, ready)
    if targets_missing:
        raise replace_refused(
            f"Entry {entry_id} of {lineage.table} adds {named(targets_missing)}, which was not uploaded or is not"
            " readable.",
            remedy="Upload all of its targets, then end it; or revert it with --force.",
        )
    return Change(lineage.updated(entry.changed(State.COMPLETED, now)), frozenset())


def revert_replace(
    lineage: SegmentLineage, entry_id: str, *, present: Collection[str], now: datetime, force: bool = False
) -> Change:
    """Revert an entry: its sources are routed again, and its targets are deleted.

    Args:
        lineage: The lineage before.
        entry_id: The entry.
        present: The segments that exist.
        now: In UTC.
        force: Whether to revert also an entry in progress. Its push cannot end then.

    Raises:
        EntryEnded: There is no such entry, or it was reverted before.
        ServingError: It is in progress, and `force` is not set; a source does not exist any more; or another live
            entry replaces a target.
    """
    entry = lineage.live_entry(entry_id)
    if entry.state is State.IN_PROGRESS and not force:
        raise replace_refused(
            f"Entry {entry_id} of {lineage.table} is in progress: its push may still run.",
            remedy="Wait for its push. If that has died, revert the entry with --force.",
        )
    sources_gone = missing(entry.segments_from, present)
    if sources_gone and entry.state is State.COMPLETED:
        raise _source_gone(lineage.table, entry_id, sources_gone)
    for other in lineage.live_entries():
        replaced = set(entry.segments_to).intersection(other.segments_from)
        if replaced:
            raise replace_refused(
                f"Entry {entry_id} of {lineage.table} added {named(replaced)}, which entry {other.id} replaces.",
                remedy=f"Revert {other.id} first, or revert this one with --later.",
            )
    return Change(lineage.updated(entry.changed(State.REVERTED, now)), frozenset(entry.segments_to))


def roll_back(
    lineage: SegmentLineage, entry_id: str, *, present: Collection[str], now: datetime, force: bool = False
) -> Change:
    """Revert an entry, and before it the entries that have replaced its targets since, the newest first.

    Args:
        lineage: The lineage before.
        entry_id: The entry.
        present: The segments that exist.
        now: In UTC.
        force: Whether to revert also entries in progress.

    Raises:
        ServingError: What `revert_replace` raises. All of the entries are reverted, or none.
    """
    targets = set(lineage.entry(entry_id).segments_to)
    later_entries = [entry for entry in lineage.live_entries() if targets.intersection(entry.segments_from)]
    deletions: set[str] = set()
    for later in later_entries:
        rolled_back = roll_back(lineage, later.id, present=present, now=now, force=force)
        lineage = rolled_back.lineage
        deletions |= rolled_back.deletions
    reverted = revert_replace(lineage, entry_id, present=present, now=now, force=force)
    return Change(reverted.lineage, reverted.deletions | deletions)


def _source_gone(table: str, entry_id: str, segments: Iterable[str]) -> ServingError:
    return replace_refused(
        f"Entry {entry_id} of {table} replaces {named(segments)}, which no longer exists.",
        remedy="A deleted snapshot cannot be restored. An entry in progress can be reverted with --force.",
    )


def _entry_id(lineage: SegmentLineage, sources: Sequence[str], targets: Sequence[str], now: datetime) -> str:
    content = (lineage.table, sources, targets, now.isoformat(), sorted(lineage.entries))
    return str(uuid.uuid5(_ENTRY_IDS, repr(content)))


def _overlapping(lineage: SegmentLineage, sources: Collection[str], targets: Collection[str]) -> list[LineageEntry]:
    """The entries that a forced start reverts. Two empty lists of sources do not overlap."""
    found = []
    for entry in lineage.in_state(State.IN_PROGRESS):
        shared_sources = set(sources).intersection(entry.segments_from)
        shared_targets = set(targets).intersection(entry.segments_to)
        if shared_sources or shared_targets:
            found.append(entry)
    return found


def _check_sources(
    table: str, sources: Collection[str], others: Iterable[LineageEntry], routed: Collection[str]
) -> None:
    for entry in others:
        taken = set(sources).intersection(entry.segments_from)
        if taken:
            raise replace_refused(
                f"Entry {entry.id} of {table}, {entry.state}, already replaces {named(taken)}.",
                remedy="Wait for its push. If that has died, push with --force, or run "
                f"`lake serving revert {table} {entry.id} --force` first.",
            )
    not_routed = missing(sources, routed)
    if not_routed:
        raise replace_refused(
            f"Readers of {table} do not see {named(not_routed)}, so it cannot be replaced.",
            remedy=f"Replace only segments that readers see: `lake serving list {table}`.",
        )


def _check_targets(
    table: str, targets: Collection[str], others: Iterable[LineageEntry], routed: Collection[str]
) -> None:
    already_routed = set(targets).intersection(routed)
    if already_routed:
        raise target_taken(table, already_routed, "readers see them already")
    for entry in others:
        taken = set(targets).intersection(entry.segments)
        if taken:
            raise target_taken(table, taken, f"entry {entry.id} names them")


def _without_targets(lineage: SegmentLineage, targets: Collection[str]) -> list[LineageEntry]:
    """Return the entries; reverted ones lose targets that are pushed again, because they would hide them."""
    kept = []
    for entry in lineage.entries.values():
        own_targets = tuple(name for name in entry.segments_to if name not in targets)
        if entry.is_live or own_targets == entry.segments_to:
            kept.append(entry)
        elif own_targets:
            kept.append(replace(entry, segments_to=own_targets))
    return kept


def retired_segments(lineage: SegmentLineage, newest: Iterable[str], *, kept: int) -> frozenset[str]:
    """Return the segments of the snapshots before the newest one that are too many. kept: the newest one included."""
    retired: set[str] = set()
    for snapshot in islice(_snapshots_back(lineage, frozenset(newest)), kept, None):
        retired |= snapshot
    return frozenset(retired)


def _snapshots_back(lineage: SegmentLineage, newest: frozenset[str]) -> Iterator[frozenset[str]]:
    """A snapshot, the one that it replaced as a whole, and so on, as far as completed entries go back."""
    replaced = {}
    for entry in lineage.in_state(State.COMPLETED):
        replaced[frozenset(entry.segments_to)] = frozenset(entry.segments_from)
    snapshot = newest
    while snapshot:
        yield snapshot
        snapshot = replaced.pop(snapshot, frozenset())  # removed, so that a circular lineage ends, too


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
    retention: Retention,
    banned: Collection[str] = (),
) -> Change:
    """Run one cycle of clean-up. The first cycle deletes an old entry's segments, the next one removes the entry.

    The sources of the newest completed entry are kept at any age: without them there would be nothing to go back to.

    Args:
        lineage: The lineage before.
        present: The segments that exist.
        now: In UTC.
        retention: An entry is old if it is strictly older than this.
        banned: Segments that nobody may go back to. They are deleted at any age if a completed entry has replaced them.
    """
    newest = max((entry.timestamp for entry in lineage.in_state(State.COMPLETED)), default=None)
    kept: list[LineageEntry] = []
    deletions: set[str] = set()
    for entry in lineage.entries.values():
        is_completed = entry.state is State.COMPLETED
        is_newest = is_completed and entry.timestamp == newest
        is_old = entry.timestamp < now - retention.of(entry)
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
        ServingError: A segment is routed, or a live entry names it.
    """
    wanted = frozenset(segments)
    held = {f"entry {entry.id} names them": wanted.intersection(entry.segments) for entry in lineage.live_entries()}
    for why, names in {**held, "readers see them": wanted.intersection(routed)}.items():
        if names:
            raise replace_refused(
                f"{named(names)} of {lineage.table} cannot be deleted: {why}.",
                remedy="Revert the entry, or wait for `lake serving clean-up` to delete them.",
            )
    return Change(lineage, wanted)
