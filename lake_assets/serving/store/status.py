"""The status of served tables and their lineages, for the command line, HTTP and Dagster. Reads only ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lake_assets.errors import ServingError
from lake_assets.serving.errors import TableNotServed
from lake_assets.serving.lineage.lineage import Change, LineageEntry, State
from lake_assets.serving.lineage.protocol import revert_replace, roll_back
from lake_assets.serving.lineage.registry import Registry, TableState
from lake_assets.serving.store.drafts import push_of


@dataclass(frozen=True)
class TableStatus:
    """The status of a served table.

    Attributes:
        table: The served table.
        segments: Number of segments that readers see.
        rows: Of these segments.
        size_bytes: Of these segments.
        as_of: The rows were read then; None if readers see no segment.
        stored_bytes: Of all segments, including those to go back to and those that are being pushed.
        head: Of the source when it was read; None if it is not known.
    """

    table: str
    segments: int
    rows: int
    size_bytes: int
    as_of: datetime | None
    stored_bytes: int
    head: str | None


@dataclass(frozen=True)
class EntryStatus:
    """A lineage entry.

    Attributes:
        id: Of the entry.
        state: Of the entry.
        timestamp: Of the last change of state.
        segments_from: The sources.
        segments_to: The targets.
        can_revert: Whether it can be reverted now without force.
        can_roll_back: Whether it can be reverted now without force, together with later entries.
    """

    id: str
    state: State
    timestamp: datetime
    segments_from: tuple[str, ...]
    segments_to: tuple[str, ...]
    can_revert: bool
    can_roll_back: bool

    @property
    def goes_back(self) -> str:
        """How it can be reverted, for a person; empty if it cannot."""
        if self.can_revert:
            return "yes"
        return "with --later" if self.can_roll_back else ""


def table_status(registry: Registry, table: str) -> TableStatus:
    """Return the current status of a table. Raises `TableNotServed`."""
    state = _known(registry, table)
    infos = list(registry.infos(table, sorted(state.segments)))
    seen = [info for info in infos if info.name in state.routed]
    return TableStatus(
        table=table,
        segments=len(seen),
        rows=sum(info.rows for info in seen),
        size_bytes=sum(info.size_bytes for info in seen),
        as_of=min((info.as_of for info in seen), default=None),
        stored_bytes=sum(info.size_bytes for info in infos),
        head=seen[0].head if seen else None,
    )


def in_sight(registry: Registry, table: str) -> str:
    """Return what readers see of a table, as a sentence."""
    found = table_status(registry, table)
    if not found.segments:
        return f"Readers of {table} see nothing: there was no earlier push. Queries are refused until the next one."
    return f"Readers of {table} see {found.rows:,} rows, as of {found.as_of:%Y-%m-%d %H:%M:%S} UTC."


def lineage_status(registry: Registry, table: str) -> list[EntryStatus]:
    """Return the entries of a table, the newest first. Raises `TableNotServed`."""
    return entries_status(_known(registry, table))


def entries_status(state: TableState) -> list[EntryStatus]:
    """Return the entries of a lineage, the newest first."""
    entries = sorted(state.lineage.entries.values(), key=_age, reverse=True)
    return [_entry_status(state, entry) for entry in entries]


def switched_with(table: str, entry: EntryStatus, found: Mapping[str, Sequence[EntryStatus]]) -> dict[str, str]:
    """Return the entries of other tables that have to be reverted together with an entry.

    They belong to the same push, and can be reverted in the same way: alone, or together with later entries.

    Args:
        table: The entry's table.
        entry: The entry.
        found: Table → its entries.

    Returns:
        Other table → its entry's id.
    """
    push_ids = _push_ids(entry.segments_to)
    others = {}
    for other, entries in found.items():
        if other == table:
            continue
        for candidate in entries:
            same_way = candidate.can_revert if entry.can_revert else candidate.can_roll_back
            if same_way and push_ids & _push_ids(candidate.segments_to):
                others[other] = candidate.id
    return others


def way_back(table: str, entry_id: str, others: Mapping[str, str] | None = None, *, later: bool = False) -> str:
    """Return the command that reverts a push.

    Args:
        table: The served table.
        entry_id: Its lineage entry.
        others: Other table → its entry, reverted in the same switch.
        later: Whether to revert later pushes, too.
    """
    words = ["lake serving revert", table, entry_id]
    for other, other_id in (others or {}).items():
        words.append(f"--with {other}={other_id}")
    if later:
        words.append("--later")
    return " ".join(words)


def _known(registry: Registry, table: str) -> TableState:
    state = registry.read(table)[table]
    if state.version is None:
        raise TableNotServed(table, registry.tables())
    return state


def _age(entry: LineageEntry) -> tuple[datetime, str]:
    return entry.timestamp, entry.id


def _entry_status(state: TableState, entry: LineageEntry) -> EntryStatus:
    return EntryStatus(
        id=entry.id,
        state=entry.state,
        timestamp=entry.timestamp,
        segments_from=entry.segments_from,
        segments_to=entry.segments_to,
        can_revert=_is_allowed(revert_replace, state, entry),
        can_roll_back=_is_allowed(roll_back, state, entry),
    )


def _is_allowed(operation: Callable[..., Change], state: TableState, entry: LineageEntry) -> bool:
    """Whether an operation that reverts the entry is allowed without force."""
    try:
        operation(state.lineage, entry.id, present=state.segments, now=entry.timestamp)
    except ServingError:
        return False
    return True


def _push_ids(segments: Iterable[str]) -> set[str]:
    """The pushes of segments, except those whose names do not contain one."""
    found = set()
    for segment in segments:
        push_id = push_of(segment)
        if push_id is not None:
            found.add(push_id)
    return found
