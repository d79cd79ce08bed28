"""A data directory for each test, on the Spark server that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake_assets_tests.doors.lake_door import LakeDoor


@pytest.fixture
def lake(tmp_path: Path, spark_server: str) -> LakeDoor:
    """The `lake` command in an empty folder."""
    return LakeDoor(tmp_path, {"LAKE_SPARK_REMOTE": spark_server})


@pytest.fixture
def lake_without_spark(tmp_path: Path) -> LakeDoor:
    """The same for commands that need no Spark."""
    return LakeDoor(tmp_path)
