"""Which targets must be looked at now. Pure.

A target is quiet after an evaluation that changed nothing: it requested no run, reported nothing and left the cursor as
it was. To forget such an evaluation, or to lose the tick that made it, costs nothing but another one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

FULL_LOOK_SECONDS = 600
"""Age from which on a quiet target is looked at although nothing has moved, in case that an input is not known."""

STALE_PER_TICK = 2
"""Targets that a tick looks at only because of their age, so that they do not all come at once."""


@dataclass(frozen=True)
class Quiet:
    """An evaluation that changed nothing.

    Attributes:
        inputs: What the target's inputs were before it.
        runs: The ids of the target's active runs before it.
        at: When it was made, in seconds since 1970-01-01 UTC.
        again_at: The moment from which on its result may be another one although no input moves; None for none.
        reason: Why the target has no session to request, for people.
    """

    inputs: Hashable
    runs: Hashable
    at: float
    again_at: float | None
    reason: str

    def is_over(self, inputs: Hashable, runs: Hashable, now: float) -> bool:
        """Return whether the target must be looked at again. While a run of it is active, nothing is requested."""
        if runs != self.runs:
            return True
        if runs:
            return False
        is_due = self.again_at is not None and now >= self.again_at
        return is_due or inputs != self.inputs


def to_look_at(
    targets: Sequence[str],
    quiet: Mapping[str, Quiet],
    *,
    inputs: Mapping[str, Hashable],
    runs: Mapping[str, Hashable],
    looked_at: Mapping[str, float],
    now: float,
) -> list[str]:
    """Return the targets that must be looked at: those that moved, those that are not quiet, then some by their age.

    Within each of the three, the one whose last evaluation is the longest time ago comes first, so a caller that looks
    at the first few of them comes to each one in turn.

    Args:
        targets: All targets.
        quiet: Target → its last evaluation, if that changed nothing.
        inputs: Target → its present inputs.
        runs: Target → its active runs, if it has any.
        looked_at: Target → when it was looked at last, if it ever was, in seconds since 1970-01-01 UTC.
        now: Seconds since 1970-01-01 UTC.
    """
    moved: list[str] = []
    unknown: list[str] = []
    stale: list[str] = []
    for target in sorted(targets, key=lambda name: looked_at.get(name, 0.0)):
        last = quiet.get(target)
        if last is None:
            unknown.append(target)
        elif last.is_over(inputs.get(target), runs.get(target), now):
            moved.append(target)
        elif abs(now - last.at) >= FULL_LOOK_SECONDS:  # a clock may be set back
            stale.append(target)
    return [*moved, *unknown, *stale[:STALE_PER_TICK]]
