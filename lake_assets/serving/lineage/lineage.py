"""The lineage of a served table: which segments replaced which, and which of them are routed.

An entry replaces the segments `segments_from` by `segments_to`. The routed segments, which readers see, follow from one
lineage: all segments, except the targets of entries that are in progress or reverted, and the sources of completed
entries. So one write of the lineage switches a table, in both directions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from lake_assets.serving.errors import EntryReverted, UnknownEntry

MICROSECONDS_PER_MILLISECOND = 1000


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
        """Return the entry with an id. Raises `UnknownEntry`."""
        if entry_id not in self.entries:
            raise UnknownEntry(self.table, entry_id)
        return self.entries[entry_id]

    def live_entry(self, entry_id: str) -> LineageEntry:
        """Return the live entry with an id. Raises `UnknownEntry` or `EntryReverted`."""
        entry = self.entry(entry_id)
        if not entry.is_live:
            raise EntryReverted(self.table, entry_id)
        return entry

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
    """Return a time without its microseconds, as Pinot stores it."""
    milliseconds = time.microsecond // MICROSECONDS_PER_MILLISECOND
    return time.replace(microsecond=milliseconds * MICROSECONDS_PER_MILLISECOND)
