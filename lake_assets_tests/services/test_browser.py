"""A browser for tests of pages: found on the path, installed in CI, otherwise told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from lake_assets.services.browser import COMMANDS, NAMES, browser, install_browser


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str) -> Path:
    file = folder / name
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def done(monkeypatch: pytest.MonkeyPatch, *, ci: str, root: bool = True) -> tuple[list[str], list[Sequence[str]]]:
    """What an installation says and runs."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    said: list[str] = []
    ran: list[Sequence[str]] = []
    install_browser(said.append, ran.append)
    return said, ran


@pytest.mark.parametrize("name", NAMES)
def test_a_browser_on_the_path_is_found_and_nothing_is_installed(
    name: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert browser() == ""
    program(path, "apt-get")
    assert browser() == ""
    assert done(monkeypatch, ci="true")[1] == list(COMMANDS)
    found = program(path, name)
    assert browser() == str(found)
    assert done(monkeypatch, ci="true") == ([], [])


@pytest.mark.parametrize(("ci", "root", "apt"), [("", True, True), ("true", False, True), ("true", True, False)])
def test_outside_of_ci_a_system_is_left_as_it_is(
    ci: str, root: bool, apt: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if apt:
        program(path, "apt-get")
    said, ran = done(monkeypatch, ci=ci, root=root)
    assert ran == []
    assert "Install chromium to test them." in said[0]
