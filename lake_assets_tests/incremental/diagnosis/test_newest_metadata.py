"""The newest metadata file is that of the last commit, whatever refused commits left; or none is chosen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.incremental.operations.doctor import MetadataFile, newest_metadata

LOG = 3
"""Number of predecessors that a file names."""


def name(version: int, writer: str) -> str:
    return f"{version:05d}-{writer}.metadata.json"


def play(refused: list[int], kept: int, uuid: str = "u") -> tuple[list[MetadataFile], str]:
    """Write a metadata file for each commit, and one for each refused commit, which has the same version.

    Args:
        refused: Number of refused commits beside each commit.
        kept: How many of the newest committed files still exist.

    Returns:
        The files, and the name of the last commit's.
    """
    files: list[tuple[int, MetadataFile]] = []
    chain: list[str] = []
    for version, losers in enumerate(refused):
        log = frozenset(chain[-LOG:])
        for number in range(losers):
            lost = MetadataFile(name(version, f"{uuid}-lost{number}"), uuid, version * 10 + 9, True, log)
            files.append((version, lost))
        committed = MetadataFile(name(version, uuid), uuid, version * 10, version > 0, log)
        chain.append(committed.name)
        if version >= len(refused) - kept:
            files.append((version, committed))
    return [file for _, file in files], chain[-1]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(1, 8), st.randoms(use_true_random=False))
def test_the_last_commit_is_found_unless_a_refused_one_has_its_version(
    refused: list[int], kept: int, random: object
) -> None:
    files, last = play(refused, kept)
    random.shuffle(files)  # type: ignore[attr-defined]
    chosen, problem, _ = newest_metadata(files)
    if refused[-1]:
        assert chosen == ""
        assert last in problem
    else:
        assert chosen == last


@given(st.lists(st.integers(0, 1), min_size=1, max_size=6), st.integers(0, 6))
def test_a_damaged_file_matters_only_if_it_may_be_the_newest(refused: list[int], version: int) -> None:
    files, last = play([*refused, 0], 8)
    damaged = MetadataFile(name(version, "damaged"), None)
    chosen, problem, remedy = newest_metadata([*files, damaged])
    if version >= len(refused):
        assert chosen == ""
        assert damaged.name in problem
        assert damaged.name in remedy
    else:
        assert chosen == last


def test_an_empty_table_does_not_hide_the_former_one_with_rows() -> None:
    former, last = play([0, 0, 0], 8, "former")
    empty = MetadataFile(name(0, "new"), "new", 10**6, False)
    assert newest_metadata([*former, empty])[0] == last
    later = MetadataFile(name(1, "new"), "new", 10**6 + 1, True, frozenset([empty.name]))
    assert newest_metadata([*former, empty, later])[0] == later.name


def test_names_of_other_writers_have_versions_too() -> None:
    one, two = MetadataFile("v9.metadata.json", "u", 1, True), MetadataFile("v10.gz.metadata.json", "u", 2, True)
    assert newest_metadata([one, two])[0] == two.name


def test_without_a_readable_file_there_is_no_choice() -> None:
    assert "no metadata file" in newest_metadata([])[1]
    assert "x.metadata.json" in newest_metadata([MetadataFile("x.metadata.json", None)])[1]
