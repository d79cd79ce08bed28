"""Tables as nobody would make them, by a seed: every target equals a plain replay, or a message says what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lake_assets_tests.doors.hostile.tables import draw
from lake_assets_tests.doors.hostile.world import Outcome, play, tables_of

SEED = int(os.environ.get("LAKE_HOSTILE_SEED", "1"))
"""Of the first data directory of the long run."""

TABLES = int(os.environ.get("LAKE_HOSTILE_TABLES", "50"))
"""Tables of the long run."""

EACH = 10
"""Tables of a data directory of the long run."""


CHOSEN = [(41, 0), (41, 1), (40, 2), (41, 3), (40, 4)]
"""Seeds and numbers of the tables of the short run: one is refused for a name, the others are right to the end."""


def test_a_few_hostile_tables(tmp_path: Path, spark_server: str) -> None:
    tables = [draw(seed, number, "now", steps=1, hours=50) for seed, number in CHOSEN]
    outcome = play(tmp_path, spark_server, tables)
    _require_right(outcome, str(CHOSEN))
    assert outcome.right == ["41/1", "40/2", "41/3", "40/4"], outcome.refused


FOUND = [(6, 3)]
"""Seeds and numbers of tables that found a fault: a removed file without bounds made 3,900,000 hours due."""


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "number"), FOUND)
def test_tables_that_found_a_fault(tmp_path: Path, spark_server: str, seed: int, number: int) -> None:
    table = tables_of(seed, count=EACH, steps=2, hours=50)[number]
    outcome = play(tmp_path, spark_server, [table])
    _require_right(outcome, table.label)
    assert outcome.right == [table.label]


@pytest.mark.journey
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(SEED, SEED + -(-TABLES // EACH)))
def test_hostile_tables(tmp_path: Path, spark_server: str, seed: int) -> None:
    steps = 1 + seed % 2
    print(f"python -m lake_assets_tests.doors.hostile --seed {seed} --tables {EACH} --steps {steps} --show")
    tables = tables_of(seed, count=EACH, steps=steps, hours=50)
    _require_right(play(tmp_path, spark_server, tables), str(seed))


def _require_right(outcome: Outcome, seed: str) -> None:
    assert not outcome.findings, "\n".join([f"seed {seed}", *map(str, outcome.findings)])
    assert outcome.equal, outcome.refused
