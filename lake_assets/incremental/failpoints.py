"""Named points at which a test makes the process die, as a machine does: at once, with nothing tidied up.

A setting (`LAKE_FAILPOINT`) names the point; without it, nothing happens. The points, in the order of a session:
"""

from __future__ import annotations

import os

from lake_assets.settings import settings

POINTS = (
    "before-planned",
    "after-planned",
    "after-staged",
    "after-staged-recorded",
    "after-audits",
    "after-quarantine",
    "after-published",
    "after-published-recorded",
    "after-watermark",
    "after-committed",
)
EXIT_CODE = 137


def reach(point: str) -> None:
    """Die here if this is the point that the setting names."""
    assert point in POINTS, point
    if settings().failpoint == point:
        os._exit(EXIT_CODE)
