"""The table of long files names files that are there, in the order in which they are taken."""

from __future__ import annotations

from pathlib import Path

from lake_assets_tests.longest_files import SECONDS, TESTS, seconds_of


def test_every_listed_file_is_there() -> None:
    assert [file for file in SECONDS if not (TESTS / file).is_file()] == []


def test_the_table_is_read_from_the_longest_down() -> None:
    assert list(SECONDS.values()) == sorted(SECONDS.values(), reverse=True)


def test_a_file_is_found_by_its_whole_path() -> None:
    assert seconds_of(TESTS / "engagement" / "test_faults.py") == 261
    assert seconds_of(TESTS / "coordination" / "test_faults.py") == 0
    assert seconds_of(Path(__file__)) == 0
