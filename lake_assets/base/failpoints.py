"""Failpoints: named points at which a test ends or pauses the process.

The process ends at once, without any clean-up, as when a machine fails. The setting `LAKE_FAILPOINT` names the point;
with the prefix `pause:`, the process stops there until it is continued. Without the setting, nothing happens.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from lake_assets.settings import settings

SESSION_POINTS = ("after-planned", "after-staged", "before-committed", "after-committed")
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
"""In the order of an erasure from tables."""

FILE_POINTS = (
    "landing-round-opened",
    "landing-drafted",
    "landing-put",
    "landing-added",
    "landing-exchanged",
    "landing-swept",
)
"""In the order of an operation on landed files: each file is drafted, put in its place and added; replaced ones are
removed."""

TAILING_POINTS = ("tailing-closed", "tailing-dead-letters-landed")
"""In the order of a file that a tail closes, before the file is drafted."""

LANDING_ACCEPTED = "landing-accepted"
"""In the acceptance of a loss: it is recorded, and the files that one zone lacks are not copied yet."""

LANDED_ERASURE_POINTS = ("erasing-requested", "erasing-scrubbed")
"""In the order of an erasure from the files of one topic."""

LOADING_POINTS = ("loading-read", "loading-staged", "loading-committed")
"""In the order of a batch that is loaded into a raw table."""

METRICS_COMPUTED, METRICS_WRITTEN = "metrics-computed", "metrics-written"
"""In a refresh of the metrics: before and after its one commit."""

CLAIM_CHECKED = "claim-checked"
"""In a claim: no later holder's token was found, and the claim's own token is not written yet."""

BATCH_FAILED, BATCH_HALF_WITHDRAWN, BATCH_WITHDRAWN, BATCH_REPLACED = ISOLATION_POINTS = (
    "batch-failed",
    "batch-half-withdrawn",
    "batch-withdrawn",
    "batch-replaced",
)
"""In the order of a batch that fails and is cut: the failure is recorded, each table is done, all are, the part begins.
"""

TURN_GIVEN = "turn-given"
"""In a lake that moves to another ZooKeeper: an open batch has the next turn; the former token is not replaced yet."""

HALF_OPTIMIZED = "maintenance-half-optimized"
"""In a maintenance: after each statement that rewrites files."""

MAINTENANCE_POINTS = ("maintenance-optimized", "maintenance-half-vacuumed", "maintenance-recorded")
"""In the order of a maintenance of an engagement lake."""

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

BACKUP_POINTS = ("backup-databases-copied", "backup-files-copied", "backup-made")
RESTORE_POINTS = ("restore-copied", "restore-half-moved", "restore-done")

ALL_POINTS = frozenset(
    {
        *SESSION_POINTS,
        *TICK_POINTS,
        *ERASURE_POINTS,
        *FILE_POINTS,
        *TAILING_POINTS,
        LANDING_ACCEPTED,
        *LANDED_ERASURE_POINTS,
        *LOADING_POINTS,
        METRICS_COMPUTED,
        METRICS_WRITTEN,
        CLAIM_CHECKED,
        *ISOLATION_POINTS,
        TURN_GIVEN,
        HALF_OPTIMIZED,
        *MAINTENANCE_POINTS,
        *PUSH_POINTS,
        *REVERT_POINTS,
        *CLEAN_UP_POINTS,
        *PINOT_POINTS,
        *BACKUP_POINTS,
        *RESTORE_POINTS,
    }
)
"""Without those of a micro-batch, which are named after its commits: see `batch_points`."""

PAUSE = "pause:"
EXIT_CODE = 137


def batch_points(commits: Iterable[str]) -> tuple[str, ...]:
    """Return the points of a micro-batch with these commits, in their order."""
    found = ["before-intent", "after-intent"]
    for commit in commits:
        found += [f"before-{commit}", f"written-{commit}", f"recorded-{commit}"]
    return (*found, "before-unlock", "after-unlock")


def reach(point: str) -> None:
    """End or pause the process if the setting names this point.

    Args:
        point: One of `ALL_POINTS`.
    """
    assert point in ALL_POINTS, point
    _strike(point)


def reach_in_batch(point: str, commits: Iterable[str]) -> None:
    """End or pause the process if the setting names this point of a micro-batch.

    Args:
        point: One of `batch_points(commits)`.
        commits: The names of the batch's commits, in their order.
    """
    assert point in batch_points(commits), point
    _strike(point)


def _strike(point: str) -> None:
    if settings().failpoint == point:
        os._exit(EXIT_CODE)
    if settings().failpoint == PAUSE + point:
        os.kill(os.getpid(), signal.SIGSTOP)
