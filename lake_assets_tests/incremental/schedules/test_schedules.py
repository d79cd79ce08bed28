"""Whatever happens to a lake, in whatever order: nothing is lost, doubled or stuck."""

from __future__ import annotations

import pytest

from lake_assets_tests.incremental.schedules.play import LENGTH, play
from lake_assets_tests.incremental.schedules.world import schedule

SEEDS = [
    *(pytest.param(seed, marks=pytest.mark.journey) for seed in (0, 3, 6)),
    *(pytest.param(seed, marks=pytest.mark.faults) for seed in (2, 5, 7, 8, 10, 14, 17)),
]
"""Of the first twenty, those that have most of the operations that are rare."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules_hold(seed: int, spark_server: str) -> None:
    steps = schedule(seed, LENGTH)
    violation, _ = play(steps, seed, spark_server)
    if violation is not None:
        steps_of_it = "\n".join(map(str, steps))
        violation.add_note(f"seed {seed}, of these steps, which `python -m {__package__}` shortens:\n{steps_of_it}")
        raise violation
