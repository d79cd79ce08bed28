"""`lake demo landing` checks itself: it ends with 0 only if every command and every row is as it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lake_assets_tests.doors.lake_door import LakeDoor

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_the_landing_demo_proves_itself(tmp_path: Path) -> None:
    said = LakeDoor(tmp_path, longest=1500)("demo", "landing")
    assert said.count("no finding.") == 5
    assert "  ✓ A, B, C and E become one file, and D stays\n" in said
