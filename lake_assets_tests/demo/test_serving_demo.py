"""`lake demo serving` checks itself: it ends with 0 only if every command and every answer is as it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lake_assets_tests.doors.lake_door import LakeDoor

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.faults
def test_the_serving_demo_proves_itself(tmp_path: Path) -> None:
    said = LakeDoor(tmp_path, longest=500)("demo", "serving")
    assert "  ✓ readers see Monday again\n" in said
    assert "  ✓ it saw every push that went through, the bad one, too\n" in said
