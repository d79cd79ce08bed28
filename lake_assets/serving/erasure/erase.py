"""Erasure in served tables: segments whose rows were read before an erasure. Replaced ones are deleted at once.

Nobody may go back to a replaced snapshot from before an erasure. The snapshot that readers see stays until a push of
the rebuilt table replaces it; without it, readers would see nothing.
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
class OutdatedSegments:
    """Numbers of segments of a served table whose rows were read before an erasure.

    Attributes:
        table: The served table.
        deleted: They were deleted now.
        shown: Readers see them; None: not known, because ZooKeeper does not run.
        left: Other files, as a push leaves them that died. Without ZooKeeper: all files.
    """

    table: str
    deleted: int
    shown: int | None
    left: int


def delete_replaced(serving: Serving, *, erased_at: datetime) -> list[OutdatedSegments]:
    """Delete replaced segments whose rows were read before an erasure. Blocks until running queries have ended.

    Tables without a folder here are skipped: they belong to another data directory on the same ZooKeeper.

    Args:
        serving: The served tables.
        erased_at: Time of the last erasure, inclusive.

    Returns:
        One for each table that had such segments.

    Raises:
        ServingError: A table could not be cleaned up.
    """
    found = []
    for table in serving.files.tables():
        outdated = _delete_replaced(serving, table, erased_at)
        if outdated is not None:
            found.append(outdated)
    return found


def stored_before(files: SegmentFiles, *, erased_at: datetime) -> Iterator[OutdatedSegments]:
    """Yield the tables with files from before an erasure, by the names of their segments.

    Changes nothing, and needs no ZooKeeper.
    """
    for table in files.tables():
        names = _named_before(files.stored(table), erased_at)
        if names:
            yield OutdatedSegments(table=table, deleted=0, shown=None, left=len(names))


def _delete_replaced(serving: Serving, table: str, erased_at: datetime) -> OutdatedSegments | None:
    state = serving.registry.read(table)[table]
    before = _read_before(serving, table, state, erased_at)
    if not before:
        return None
    serving.writer.clean_up(table, retention=serving.retention, erased_at=erased_at)
    state = serving.registry.read(table)[table]
    remaining = _read_before(serving, table, state, erased_at)
    shown = remaining & state.routed
    return OutdatedSegments(
        table=table,
        deleted=len(before - remaining),
        shown=len(shown),
        left=len(remaining - shown),
    )


def _read_before(serving: Serving, table: str, state: TableState, erased_at: datetime) -> set[str]:
    """By the names of the files, and by the registry, because other tools may have named them."""
    by_name = _named_before(serving.files.stored(table), erased_at)
    registered = serving.registry.read_by(table, state.segments, erased_at)
    return by_name.union(registered)


def _named_before(names: Iterable[str], erased_at: datetime) -> set[str]:
    found = set()
    for name in names:
        time = read_at(name)
        if time is not None and time <= erased_at:
            found.add(name)
    return found
