"""Damaged segments are found among all that are stored, and restored only as they were pushed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, cast

import pytest

from lake_assets.connections.storage import Folder
from lake_assets.errors import ServingError
from lake_assets.serving.push import Rows
from lake_assets.serving.sources import Reading, Source
from lake_assets.serving.store import SegmentFiles
from lake_assets.serving.upkeep import DamagedSegment, restore_from_copies, restore_from_source, verify_table
from lake_assets_tests.serving.scenario import ROWS, SEGMENTS, World, now, snapshot

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

NO_CATALOG = cast("Catalog", None)


@dataclass(frozen=True)
class Numbered(Source):
    """A source whose rows and head are those of a number."""

    number: int
    pushed: int = 1

    def head(self, catalog: Catalog) -> str:
        return str(self.number)

    def read(self, catalog: Catalog) -> Reading:
        return Reading(Rows.of(snapshot(self.pushed)), "all", ROWS, self.head(catalog))


def push(world: World, number: int, push_id: str) -> None:
    rows = {world.table: snapshot(number)}
    world.writer.push(rows, push_id=push_id, as_of=now(), heads={world.table: str(number)})


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def named(damaged: Iterable[DamagedSegment]) -> dict[str, bool]:
    return {segment.info.name: segment.is_seen for segment in damaged}


def test_all_that_is_stored_is_compared_and_restored_as_it_was_pushed(served: World, tmp_path: Path) -> None:
    push(served, 1, "push0001")
    push(served, 2, "push0002")
    copytree(served.files.folder, tmp_path / "copies")
    state = served.registry.read(served.table)[served.table]
    seen, kept = min(state.routed), min(state.segments - state.routed)
    clean = verify_table(served.registry, served.files, served.table)
    assert (clean.segments, clean.damaged) == (2 * SEGMENTS, ())

    flip(served.files.path(served.table, seen))
    served.files.path(served.table, kept).unlink()
    found = verify_table(served.registry, served.files, served.table)
    assert named(found.damaged) == {seen: True, kept: False}

    for changed in (
        Numbered(served.table, "core.t", 3, 2),
        Numbered(served.table, "core.t", 2, 3),
    ):  # by its head, or by its rows
        assert not restore_from_source(served.files, NO_CATALOG, changed, found.lost, segment_rows=ROWS // SEGMENTS)
    same = Numbered(served.table, "core.t", 2, 2)
    assert restore_from_source(served.files, NO_CATALOG, same, found.lost, segment_rows=ROWS // SEGMENTS) == {seen}
    assert served.files.drafts(served.table) == []
    assert served.seen() == [2]

    copies = SegmentFiles(Folder(tmp_path / "copies"))
    flip(served.files.path(served.table, seen))
    flip(copies.path(served.table, seen))
    assert restore_from_copies(served.files, copies, served.table, found.lost) == {kept}
    assert named(verify_table(served.registry, served.files, served.table).damaged) == {seen: True}


def test_a_table_that_was_never_pushed_has_nothing_to_verify(served: World) -> None:
    with pytest.raises(ServingError, match="is served"):
        verify_table(served.registry, served.files, served.table)
