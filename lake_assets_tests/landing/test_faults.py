"""Faults of landed files: what is seen is what docs/landing-faults.md says."""

from __future__ import annotations

from pathlib import Path

from lake_assets_tests.landing.faults import PAGE, page, play_all


def test_every_fault_is_noticed_where_the_page_says(tmp_path: Path) -> None:
    assert page(play_all(tmp_path)) == PAGE.read_text()
