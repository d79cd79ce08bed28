"""Which plans repair what others have done to a target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lake_assets.incremental.execution.decisions import left_by
from lake_assets.incremental.planning.outside_changes import OutsideChanges
from lake_assets.incremental.planning.session import PlannedHour, SessionPlan

FOUND = OutsideChanges("was changed by others", (1,), ((2, 3), (6, 6)))
COVERS = SessionPlan(
    process="core.fact",
    session_id="fact-1",
    kind="session",
    load="overwrite",
    sources=(),
    hours=tuple(PlannedHour(hour, "changed") for hour in (2, 3, 4, 6)),
)


@pytest.mark.parametrize(
    ("plan", "found", "left"),
    [
        (COVERS, None, None),
        (COVERS, FOUND, None),
        (replace(COVERS, hours=COVERS.hours[:3]), FOUND, FOUND),
        (replace(COVERS, load="append"), FOUND, FOUND),
        (replace(COVERS, changed_through=4), FOUND, FOUND),
        (COVERS, replace(FOUND, hours=None), replace(FOUND, hours=None)),
        (COVERS, replace(FOUND, hours=()), replace(FOUND, hours=())),
    ],
)
def test_a_plan_that_builds_all_suspect_hours_from_the_sources_alone_is_a_repair(
    plan: SessionPlan, found: OutsideChanges | None, left: OutsideChanges | None
) -> None:
    assert left_by(plan, found) == left
