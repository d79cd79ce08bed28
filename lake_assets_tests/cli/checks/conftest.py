"""A home of this process, without settings from outside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lake_assets.settings import settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that LAKE_HOME names; it exists only once something is written to it."""
    for name in list(os.environ):
        if name.startswith("LAKE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LAKE_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    yield tmp_path / "home"
    monkeypatch.undo()
    settings.cache_clear()
