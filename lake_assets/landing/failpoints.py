"""The points of landing at which a test makes its process die or pause, as `LAKE_FAILPOINT` says."""

from __future__ import annotations

from lake_assets.incremental.failpoints import strike

TAILING_POINTS = ("tailing-closed", "tailing-dead-letters-landed")
"""In the order of a file, beside the steps of landing one (`writing.STEPS`)."""

LOADING_POINTS = ("loading-read", "loading-staged", "loading-committed")
"""In the order of a batch."""


def reach(point: str) -> None:
    """Die or pause here if this is the point that the setting names."""
    assert point in (*TAILING_POINTS, *LOADING_POINTS), point
    strike(point)
