"""What a session does with an index costs as much in a large one as in a small one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from lake_assets.incremental.engine.key_index import IndexedFile, add, files_with, forget, opened, remove


def filled(index: sqlite3.Connection, files: int) -> None:
    for number in range(files):
        file = IndexedFile(f"file-{number}", rows=1, bytes=1, spec_id=0, partition="[]")
        add(index, file, {f"value-{number}"}, at=1)
    remove(index, "file-0", at=2)


def instructions(index: sqlite3.Connection) -> int:
    """The instructions of SQLite for a lookup and for forgetting files."""
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    index.set_progress_handler(count, 1)
    assert [file.path for file in files_with(index, {"value-0", "value-5"}, at=1)] == ["file-0", "file-5"]
    forget(index, before=3)
    index.set_progress_handler(None, 0)
    assert [file.path for file in files_with(index, {"value-0", "value-5"}, at=3)] == ["file-5"]
    return counted


def test_a_lookup_and_what_is_forgotten_cost_the_same_in_an_index_of_many_files(tmp_path: Path) -> None:
    found = []
    for files in (10, 2_000):
        with opened(tmp_path / f"{files}.db") as index:
            filled(index, files)
            found.append(instructions(index))
    assert found[1] == pytest.approx(found[0], rel=0.2)
