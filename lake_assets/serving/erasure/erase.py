"""What an erasure leaves in served tables: snapshots whose rows were read before. What was replaced goes at once.

Nobody may go back to it any more. What readers see stays until a push of the rebuilt table replaces it: to take it away
would leave them with nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from lake_assets.serving.lineage.registry import TableState
from lake_assets.serving.served_tables import Serving
from lake_assets.serving.store.drafts import read_at
from lake_assets.serving.store.files import SegmentFiles


@dataclass(frozen=True)
class FromBefore:
    """Segments of a served table whose rows were read before an erasure was done, and that are or were there.

    deleted: those that went now. shown: those that readers see; None: ZooKeeper does not run, so it is not known. left:
    others, as a push leaves them that died; without ZooKeeper all.
    """

    table: str
    deleted: int
    shown: int | None
    left: int


def forget_replaced(serving: Serving, *, erased_at: datetime) -> list[FromBefore]:
    """Delete what was replaced and read before, table by table; those tables that had any. Waits for running queries.

    Tables that have no folder here are another home's on the same ZooKeeper. Raises `ServingError`.
    """
    found = (_forget_replaced(serving, table, erased_at) for table in serving.files.tables())
    return [one for one in found if one]


def stored_before(files: SegmentFiles, *, erased_at: datetime) -> Iterator[FromBefore]:
    """The tables that have files from before, as these are called. Changes nothing, and needs no ZooKeeper."""
    for table in files.tables():
        if names := _named_before(files.stored(table), erased_at):
            yield FromBefore(table, 0, None, len(names))


def _forget_replaced(serving: Serving, table: str, erased_at: datetime) -> FromBefore | None:
    before = _before(serving, table, serving.registry.read(table)[table], erased_at)
    if not before:
        return None
    serving.writer.clean_up(table, retention=serving.retention, erased_at=erased_at)
    state = serving.registry.read(table)[table]
    still = _before(serving, table, state, erased_at)
    shown = still & state.routed
    return FromBefore(table, len(before - still), len(shown), len(still - shown))


def _before(serving: Serving, table: str, state: TableState, erased_at: datetime) -> set[str]:
    """What was read before by its name, or by what is registered of it: names are not always ours."""
    return _named_before(serving.files.stored(table), erased_at) | set(
        serving.registry.read_by(table, state.segments, erased_at)
    )


def _named_before(names: Iterable[str], erased_at: datetime) -> set[str]:
    return {name for name in names if (at := read_at(name)) and at <= erased_at}
