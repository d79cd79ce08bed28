"""Whatever happens to a lake, in whatever order: nothing is lost, doubled or stuck."""

from __future__ import annotations

import pytest

from lake_assets_tests.incremental.schedules.play import LENGTH, play
from lake_assets_tests.incremental.schedules.world import schedule

PARTS, EACH = 6, 3
"""Each part plays so many schedules."""


@pytest.mark.journey
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_hold(part: int, spark_server: str) -> None:
    for seed in range(part * EACH, (part + 1) * EACH):
        steps = schedule(seed, LENGTH)
        violation, _ = play(steps, seed, spark_server)
        if violation is not None:
            steps_of_it = "\n".join(map(str, steps))
            violation.add_note(f"seed {seed}, of these steps, which `python -m {__package__}` shortens:\n{steps_of_it}")
            raise violation
