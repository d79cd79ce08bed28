"""Processes that die while they change a served table: what is seen is what docs/serving-faults.md says."""

from __future__ import annotations

from pathlib import Path

from lake_assets_tests.serving.faults import PAGE, SCENARIOS, page, play


def test_wherever_a_process_dies_readers_see_a_whole_snapshot_as_the_page_says(zookeeper: str, tmp_path: Path) -> None:
    found = {what: play(what, zookeeper, tmp_path) for what in SCENARIOS}
    assert page(found) == PAGE.read_text()
