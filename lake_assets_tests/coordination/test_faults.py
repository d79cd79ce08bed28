"""Processes that die or stop in their turn: what is seen is what docs/coordination-faults.md says."""

from __future__ import annotations

from pathlib import Path

from lake_assets_tests.coordination.conftest import Ensemble
from lake_assets_tests.coordination.faults import PAGE, SCENARIOS, page, play


def test_z5_wherever_a_turn_is_hit_it_goes_on_as_the_page_says(three: Ensemble, tmp_path: Path) -> None:
    found = {scenario: play(scenario, three.hosts, tmp_path / scenario) for scenario in SCENARIOS}
    assert page(found) == PAGE.read_text()
