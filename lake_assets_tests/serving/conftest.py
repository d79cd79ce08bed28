"""A served table of a test's own, on the shared ZooKeeper; and an ensemble of three."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lake_assets_tests.coordination.conftest import three
from lake_assets_tests.serving.scenario import World, fresh_name, world

__all__ = ["served", "three"]


@pytest.fixture
def served(zookeeper: str, tmp_path: Path) -> Iterator[World]:
    with world(zookeeper, tmp_path / "segments", fresh_name()) as found:
        yield found
