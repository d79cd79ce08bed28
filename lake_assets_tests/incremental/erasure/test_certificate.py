"""The search of several sources: which files are searched, once, and as what. Real files, no catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake_assets.base.id_matcher import IdMatcher
from lake_assets.errors import UsageError
from lake_assets.incremental.erasure.certificate import (
    Certificate,
    FileFacts,
    FileSource,
    Finding,
    matcher_for,
    search_sources,
)

WHO = "account-17"


class Outer(FileSource):
    def facts(self, path: str) -> FileFacts:
        return FileFacts("/".join(self.parts(path)), "other", "nothing")

    def includes(self, path: str) -> bool:
        return not path.endswith(".skipped")


class Inner(FileSource):
    def facts(self, path: str) -> FileFacts:
        return FileFacts("/".join(self.parts(path)), "draft", "main")


def plant(file: Path, text: str) -> int:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return len(text)


def test_a_file_of_two_sources_is_searched_once_as_a_file_of_the_last(tmp_path: Path) -> None:
    sizes = [plant(tmp_path / "a.txt", WHO), plant(tmp_path / "in" / "b.txt", f"{WHO} {WHO}")]
    sizes.append(plant(tmp_path / "in" / "c.txt", "account-170"))
    plant(tmp_path / "d.skipped", WHO)
    progress: list[tuple[int, int]] = []

    found = search_sources(
        [Outer(f"file://{tmp_path}"), Inner(f"{tmp_path}/in/")],
        IdMatcher(WHO),
        subject="account",
        progress=lambda *done: progress.append(done),
    )

    findings = (
        Finding(str(tmp_path / "a.txt"), "a.txt", "other", 1, "nothing"),
        Finding(str(tmp_path / "in" / "b.txt"), "b.txt", "draft", 2, "main"),
    )
    assert found == Certificate("account", 3, sum(sizes), findings)
    assert progress == [(sum(sizes[:n]), sum(sizes)) for n in (1, 2, 3)]


def test_a_folder_that_does_not_exist_has_no_files(tmp_path: Path) -> None:
    found = search_sources(
        [Outer(str(tmp_path / "none"))],
        IdMatcher(WHO),
        subject="account",
        progress=lambda done, size: None,
    )
    assert (found.files, found.nowhere) == (0, True)


def test_an_empty_id_is_refused() -> None:
    with pytest.raises(UsageError, match="The id is empty"):
        matcher_for(" ", name="account")
