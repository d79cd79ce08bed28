"""Up to which hour a target may be built, and be called complete."""

from __future__ import annotations

from collections.abc import Collection

from lake_assets.base.hours import hour_key
from lake_assets.incremental.declaration import Stateless
from lake_assets.incremental.planning.plan.planning_input import PlanningInput
from lake_assets.incremental.planning.verdicts import capped


def sources_complete_through(inputs: PlanningInput) -> int | None:
    """Return the least complete-through of all sources.

    For a stateful or sequential target it is rounded down to the last hour of a whole partition.

    Returns:
        None if a source's complete-through is not set, or no partition is complete.
    """
    known: list[int] = []
    for source in inputs.changes:
        if source.head.complete_through is None:
            return None
        known.append(source.head.complete_through)
    least = min(known)
    if isinstance(inputs.mode, Stateless):
        return least
    last = inputs.grain.complete(least)
    return last if last >= inputs.start else None


def next_complete_through(inputs: PlanningInput, *, built: Collection[int] = ()) -> int | None:
    """Return the target's complete-through after a session.

    Args:
        inputs: The planning input.
        built: Held hours that the session builds.

    Returns:
        None if it is unknown, because a source's complete-through is.
    """
    still_held = inputs.committed.held_hours - set(built)
    return capped(sources_complete_through(inputs), still_held, inputs.committed.complete_through)


def last_buildable_hour(inputs: PlanningInput) -> int | None:
    """Return the last hour that may be built; None if no hour may.

    If a source's complete-through went back, hours that were built already are still rebuilt.
    """
    complete, built = sources_complete_through(inputs), inputs.committed.last_built
    if complete is None or built is None:
        return complete
    return max(complete, built)


def advances(inputs: PlanningInput, complete_through: int | None) -> bool:
    """Whether a complete-through is later than the target's present one."""
    if complete_through is None:
        return False
    before = inputs.committed.complete_through
    return before is None or complete_through > before


def why_none_is_complete(inputs: PlanningInput) -> str:
    """Return, for people, why no hour of the target is complete yet."""
    not_set = [c.source for c in inputs.changes if c.head.complete_through is None]
    if not_set:
        return f"{', '.join(not_set)}: complete-through is not set yet, so no hour is known to be complete"
    first = inputs.grain.format_hours([inputs.start])
    return f"no {inputs.grain.name} is complete yet: {first} waits for {incomplete_sources(inputs, inputs.start)}"


def incomplete_sources(inputs: PlanningInput, hour: int) -> str:
    """Return, for people, the sources that are not complete through the partition of an hour, and their progress."""
    last = inputs.grain.last(hour)
    waiting: list[str] = []
    for source in inputs.changes:
        through = source.head.complete_through
        if through is None or through < last:
            waiting.append(f"{source.source}, complete through {key_or_nothing(through)}")
    return ", ".join(waiting) or "nothing"


def key_or_nothing(hour: int | None) -> str:
    """Return the key of an hour, or `nothing yet` for None."""
    return "nothing yet" if hour is None else hour_key(hour)
