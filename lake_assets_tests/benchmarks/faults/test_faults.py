"""Services that are killed while rows flow heal by themselves, and no row is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults.__main__ import PAGE, faults_settings
from benchmarks.faults.player import Player, Row, total
from benchmarks.faults.table import BEGIN, END, table, table_of_rounds, written
from benchmarks.faults.traffic import Count, compare
from lake_assets.settings import PROJECT

PLAYED = (("spark", "kafka", "worker"), ("services",))
"""What runs need, what rows come from and the runs themselves, one after the other; all at once. `make faults` plays
all, also alone.
"""


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_what_is_killed_heals_without_a_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    said: list[str] = []
    player = Player(faults_settings(tmp_path / "home"), said.append)
    with player.started():
        assert player.warm_up().state == "", said
        for faults in PLAYED:
            assert player.play(*faults).state == "", said
            assert total(player.traffic.count()) == Count(lost=0, doubled=0)
    assert player.workers() == []


def test_rows_are_counted_by_their_ids() -> None:
    assert compare(["a", "b"], ["b", "a"]) == Count(lost=0, doubled=0)
    assert compare(["a", "b", "c"], ["b", "b", "b"]) == Count(lost=2, doubled=2)
    assert compare(["a"], ["a", "never sent"]) == Count(lost=0, doubled=1)
    assert compare(["a"], []) == Count(lost=1, doubled=0)


def test_the_table_has_a_row_for_each_fault() -> None:
    rows = [Row("spark", 2, [30.4, 50.0], 0, 0), Row("other", 1, [], 3, 1)]
    assert table(rows).splitlines()[2:] == [
        "| Spark is killed | 2/2 | 40 (at most 50) | 0 |",
        "| other is killed | 0/1 | – | 3 lost, 1 doubled |",
    ]


def test_faults_of_rounds_that_came_out_alike_share_a_row() -> None:
    rows = [Row("spark", 2, [30, 50], 0, 0), Row("other", 1, [], 3, 1), Row("S3 is paused for 20 s", 2, [60, 40], 0, 0)]
    assert table_of_rounds(rows).splitlines()[2:] == [
        "| other is killed | 0/1 | – | 3 lost, 1 doubled |",
        "| Spark is killed; S3 is paused for 20 s | 2/2 | at most 60 | 0 |",
    ]


def test_only_what_is_between_the_markers_changes() -> None:
    page = PAGE.read_text()
    changed = written(page, "| new |")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    assert changed == f"{before}{BEGIN}\n\n| new |\n\n{END}{after}"
    with pytest.raises(ValueError, match="no <!-- faults"):
        written("a page without markers", "| new |")
