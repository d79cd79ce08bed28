"""Turns that are hit, or under which something breaks: what is seen is what docs/coordination-faults.md says."""

from __future__ import annotations

from pathlib import Path

from lake_assets_tests.coordination.breaking import play_faults
from lake_assets_tests.coordination.ensembles import Ensemble
from lake_assets_tests.coordination.faults import PAGE, SCENARIOS, page, play

WITHOUT_QUORUM_SECONDS = 4.0


def test_z3_z4_z5_whatever_hits_a_turn_the_streams_go_on_as_the_page_says(three: Ensemble, tmp_path: Path) -> None:
    hit = {scenario: play(scenario, three.hosts, tmp_path / scenario) for scenario in SCENARIOS}
    broken = play_faults(three, tmp_path / "broken", without_quorum=WITHOUT_QUORUM_SECONDS)
    assert page(hit, broken) == PAGE.read_text()
