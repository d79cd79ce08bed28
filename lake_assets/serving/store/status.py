"""What is served, and how it came to be: for the command line, the endpoint and Dagster. Reads ZooKeeper alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lake_assets.errors import ServingError
from lake_assets.serving.errors import TableNotServed
from lake_assets.serving.lineage.lineage import Change, LineageEntry, State, revert_replace, roll_back
from lake_assets.serving.lineage.registry import Registry, TableState
from lake_assets.serving.store.drafts import push_of


@dataclass(frozen=True)
class TableStatus:
    """A served table. segments, rows, size_bytes: what readers see. as_of: its rows were read then; None for no row.

    stored_bytes: with what is kept to go back to, or being pushed. head: of its source when it was read;
    None: not known.
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
    """An entry of a lineage. can_revert: without force, as things are. can_roll_back: so, with later ones on top."""

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
        return "yes" if self.can_revert else "with --later" if self.can_roll_back else ""


def table_status(registry: Registry, table: str) -> TableStatus:
    """What readers see of a table now. `TableNotServed`."""
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


def lineage_status(registry: Registry, table: str) -> list[EntryStatus]:
    """The entries of a table, the newest first. `TableNotServed`."""
    state = _known(registry, table)
    entries = sorted(state.lineage.entries.values(), key=lambda e: (e.timestamp, e.id), reverse=True)
    return [
        EntryStatus(
            e.id,
            e.state,
            e.timestamp,
            e.segments_from,
            e.segments_to,
            can_revert=_goes(revert_replace, state, e),
            can_roll_back=_goes(roll_back, state, e),
        )
        for e in entries
    ]


def switched_with(table: str, entry: EntryStatus, found: Mapping[str, Sequence[EntryStatus]]) -> dict[str, str]:
    """Other table → its entry that the same push brought, and that goes back as this one does. found: of tables.

    That is by itself, or together with later ones if this one can only go back so.
    """
    push_ids = set(map(push_of, entry.segments_to)) - {None}

    def goes(e: EntryStatus) -> bool:
        return e.can_revert if entry.can_revert else e.can_roll_back

    return {
        other: e.id
        for other, entries in found.items()
        for e in entries
        if other != table and goes(e) and push_ids.intersection(map(push_of, e.segments_to))
    }


def way_back(table: str, entry_id: str, others: Mapping[str, str] | None = None, *, later: bool = False) -> str:
    """The command that takes a push back. others: table → entry, switched with it, that go back with it.

    later: the pushes that came on top of it, too.
    """
    together = "".join(f" --with {other}={of_other}" for other, of_other in (others or {}).items())
    return f"lake serving revert {table} {entry_id}{together}{' --later' if later else ''}"


def _known(registry: Registry, table: str) -> TableState:
    state = registry.read(table)[table]
    if state.version is None:
        raise TableNotServed(table, registry.tables())
    return state


def _goes(operation: Callable[..., Change], state: TableState, entry: LineageEntry) -> bool:
    """Whether an operation that goes back is allowed, without force."""
    try:
        operation(state.lineage, entry.id, present=state.segments, now=entry.timestamp)
    except ServingError:
        return False
    return True
