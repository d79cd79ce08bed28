"""The points of a micro-batch at which a test makes its process die or pause, as `LAKE_FAILPOINT` says."""

from __future__ import annotations

from collections.abc import Iterable

from lake_assets.base.failpoints import strike

METRICS_COMPUTED, METRICS_WRITTEN = "metrics-computed", "metrics-written"
"""Of a refresh of the metrics: before its one commit, and after it."""

CLAIM_CHECKED = "claim-checked"
"""Of a claim: when it has seen no later holder's token, before it writes its own."""

TURN_GIVEN = "turn-given"
"""Of going on with another ZooKeeper: the next turn is given to an open batch, and the former token is still there."""


def points(processes: Iterable[str]) -> tuple[str, ...]:
    """All points of a batch with these processes, in their order."""
    of_each = (f"{when}-{process}" for process in processes for when in ("before", "written", "recorded"))
    return ("before-intent", "after-intent", *of_each, "before-unlock", "after-unlock")


HALF_OPTIMIZED = "maintenance-half-optimized"
"""Of a maintenance: behind each statement that writes files anew. Tests stop it there, while another one is taken."""

MAINTENANCE_POINTS = ("maintenance-optimized", "maintenance-half-vacuumed", "maintenance-recorded")
"""In the order of a maintenance."""


def reach(point: str, processes: Iterable[str]) -> None:
    """Die or pause here if this is the point that the setting names."""
    assert point in points(processes), point
    strike(point)


def reach_maintenance(point: str) -> None:
    """As `reach`, in a maintenance."""
    assert point in MAINTENANCE_POINTS, point
    strike(point)
