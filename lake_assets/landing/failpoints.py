"""The points of landing at which a test makes its process die or pause, as `LAKE_FAILPOINT` says."""

from __future__ import annotations

from lake_assets.incremental.failpoints import strike

TAILING_POINTS = ("tailing-drafted", "tailing-closed", "tailing-dead-letters-added", "tailing-added")
"""In the order of a file."""

LOADING_POINTS = ("loading-read", "loading-staged", "loading-committed")
"""In the order of a batch."""


def reach(point: str) -> None:
    """Die or pause here if this is the point that the setting names."""
    assert point in (*TAILING_POINTS, *LOADING_POINTS), point
    strike(point)
