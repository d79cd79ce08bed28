"""Named points at which a test makes the process die, as a machine does, at once and with nothing tidied up; or pause.

A setting (`LAKE_FAILPOINT`) names the point, `pause:` before it stops the process there until it is continued. Without
it, nothing happens.
"""

from __future__ import annotations

import os
import signal

from lake_assets.settings import settings

POINTS = (
    "before-planned",
    "after-planned",
    "after-staged",
    "after-audits",
    "after-staged-recorded",
    "after-quarantine",
    "before-published",
    "after-published",
    "after-published-recorded",
    "after-watermark",
    "after-committed",
)
"""In the order of a session."""

TICK_POINTS = ("tick-started", "tick-decided", "tick-answered")
"""In the order of a sensor's evaluation."""

ERASURE_POINTS = (
    "erasure-requested",
    "erasure-rows-deleted",
    "erasure-rebuilt",
    "erasure-expired",
    "erasure-files-half-removed",
    "erasure-files-removed",
)
"""In the order of an erasure."""

PAUSE = "pause:"
EXIT_CODE = 137


def reach(point: str) -> None:
    """Die or pause here if this is the point that the setting names."""
    assert point in (*POINTS, *TICK_POINTS, *ERASURE_POINTS), point
    strike(point)


def strike(point: str) -> None:
    """As `reach`, for a part that lists its points itself."""
    if settings().failpoint == point:
        os._exit(EXIT_CODE)
    if settings().failpoint == PAUSE + point:
        os.kill(os.getpid(), signal.SIGSTOP)
