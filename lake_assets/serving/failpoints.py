"""The points of a push, a revert and a clean-up at which a test makes its process die, as `LAKE_FAILPOINT` says."""

from __future__ import annotations

from lake_assets.base.failpoints import strike

PUSH_POINTS = (
    "push-drafted",
    "push-started",
    "push-tidied",
    "push-half-uploaded",
    "push-uploaded",
    "push-registered",
    "push-ended",
)
"""In the order of a push."""

REVERT_POINTS = ("revert-written", "revert-half-removed", "revert-done")
CLEAN_UP_POINTS = ("clean-up-written", "clean-up-half-removed", "clean-up-done")
PINOT_POINTS = ("pinot-started", "pinot-uploaded", "pinot-ended")


def reach(point: str) -> None:
    """Die or pause here if this is the point that the setting names."""
    assert point in (*PUSH_POINTS, *REVERT_POINTS, *CLEAN_UP_POINTS, *PINOT_POINTS), point
    strike(point)
