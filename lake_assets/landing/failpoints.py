"""The points of landing at which a test makes its process die or pause, as `LAKE_FAILPOINT` says."""

from __future__ import annotations

from lake_assets.base.failpoints import strike

STEPS = (
    "landing-round-opened",
    "landing-drafted",
    "landing-put",
    "landing-added",
    "landing-exchanged",
    "landing-swept",
)
"""In the order of an operation on files. Each file is drafted, put in its place, and added; replaced, it is swept."""

TAILING_POINTS = ("tailing-closed", "tailing-dead-letters-landed")
"""In the order of a file that a tail closes, before it is drafted."""

ERASING_POINTS = ("erasing-requested", "erasing-scrubbed")
"""In the order of an erasure, in each topic: between them files are scrubbed, in both zones; then swept."""

LOADING_POINTS = ("loading-read", "loading-staged", "loading-committed")
"""In the order of a batch."""


def reach(point: str) -> None:
    """Die or pause here if this is the point that the setting names."""
    assert point in (*STEPS, *TAILING_POINTS, *ERASING_POINTS, *LOADING_POINTS), point
    strike(point)
