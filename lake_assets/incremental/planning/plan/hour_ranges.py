"""Which hours of a stateful or sequential target to rebuild for the hours that changed, and in which chunks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lake_assets.base.grain import Grain
from lake_assets.incremental.declaration import Sequential, Stateful
from lake_assets.incremental.planning.plan.changed_hours import changed_hours, with_pending
from lake_assets.incremental.planning.plan.complete_hours import key_or_nothing
from lake_assets.incremental.planning.plan.planning_input import (
    PlanningInput,
    hours_are_independent,
    reloads_all,
)

RangeMode = Stateful | Sequential


@dataclass(frozen=True)
class HoursToRebuild:
    """All hours that are to be rebuilt, in one session or several, and those that are not.

    Attributes:
        due: Hour → reason, for the hours to rebuild; ascending, without held hours.
        changed: The hours that have changed or are pending, due or not; without those that only follow from others.
        later: Changed hours above the last buildable hour.
        skipped: Late hours beyond the catch-up threshold.
        held: Held hours that are pending, or lie in the range.
        has_range: Whether the range contains any hour, held or not.
    """

    due: Mapping[int, str]
    changed: frozenset[int]
    later: frozenset[int]
    skipped: frozenset[int]
    held: frozenset[int]
    has_range: bool


@dataclass(frozen=True)
class Chunk:
    """The hours of one session.

    Attributes:
        hours: Hour → reason, for the hours of the session.
        pending: Hours that wait for a later session.
        follows: Hours that wait for a later session if the last hour of this one comes out changed.
    """

    hours: Mapping[int, str]
    pending: frozenset[int] = frozenset()
    follows: frozenset[int] = frozenset()


def hours_to_rebuild(inputs: PlanningInput, mode: RangeMode, last_hour: int) -> HoursToRebuild:
    """Return the hours to rebuild, up to the last buildable hour."""
    pending, held = inputs.committed.pending, inputs.committed.held_hours
    # A pending held hour changed before, and the hours after it were rebuilt then: only the held one is left.
    changed = with_pending(inputs, changed_hours(inputs), pending - held)
    later = {hour for hour in changed if hour > last_hour}
    too_late = _beyond_threshold(changed, inputs, mode)
    within_reach = _only(changed, changed.keys() - later - too_late)
    in_range = _range_of(within_reach, inputs, mode, last_hour)
    due: dict[int, str] = {}
    for hour in sorted(in_range.keys() - held):
        due[hour] = changed.get(hour, in_range[hour])
    return HoursToRebuild(
        due=due,
        changed=_with_changed_rows(changed, inputs, mode),
        later=frozenset(later),
        skipped=frozenset(too_late - in_range.keys()),
        held=held & (in_range.keys() | pending),
        has_range=bool(in_range),
    )


def first_chunk(found: HoursToRebuild, inputs: PlanningInput, mode: RangeMode) -> Chunk:
    """Return the hours of the next session.

    A range that is too long is cut only if some of its hours were built before. New hours come first, all of them in
    one session. In a sequential target they come last: an hour must not be built on a state that is known to be wrong.
    There a chunk begins small, because a late row often has no effect on the next hour, and the next one is twice as
    long if it has.
    """
    due = found.due
    # The first hour is treated as changed: the one that has changed may be held.
    changed = found.changed | {min(due)}
    old = _built_before(due, inputs.committed.last_built)
    new = due.keys() - set(old)
    grain = inputs.grain
    if not old or reloads_all(mode) or mode.chunk_hours is None:
        return Chunk(due)
    limit = grain.rounded_up(mode.chunk_hours)
    if isinstance(mode, Sequential):
        if changed.issuperset(old):
            return Chunk(due)  # all must be built anyway, so a smaller chunk would find out nothing
        size = min(limit, _least_size(inputs, min(due), limit))
        return _sequential_chunk(due, old, changed, grain, size, limit)
    if len(grain.firsts(due)) <= limit:
        return Chunk(due)
    if hours_are_independent(mode):
        before_newest = len(grain.firsts(old)) - limit
        return _newest_hours(due, new or set(_split(old, grain, before_newest)[1]))
    return _new_hours_first(due, old, changed, grain, limit)


def _split(hours: list[int], grain: Grain, partitions: int) -> tuple[list[int], list[int]]:
    """Return ascending hours in two parts: those in the first partitions that contain any, and the others."""
    firsts = grain.firsts(hours)
    if partitions >= len(firsts):
        return hours, []
    length = bisect_left(hours, firsts[max(0, partitions)])
    return hours[:length], hours[length:]


def _with_changed_rows(changed: Collection[int], inputs: PlanningInput, mode: RangeMode) -> frozenset[int]:
    """Return the hours that have changed or are pending, without those that only follow from others."""
    if not isinstance(mode, Sequential):
        return frozenset(changed)
    only_follow = inputs.committed.following - changed_hours(inputs).keys()
    return inputs.grain.whole(frozenset(changed) - only_follow)


def _built_before(due: Iterable[int], last_built: int | None) -> list[int]:
    if last_built is None:
        return []
    return [hour for hour in due if hour <= last_built]


def _newest_hours(due: Mapping[int, str], now: set[int]) -> Chunk:
    waiting = due.keys() - now
    return Chunk(_only(due, now), pending=frozenset(waiting))


def _least_size(inputs: PlanningInput, first: int, limit: int) -> int:
    """Return the least number of partitions of the next chunk: one, or twice those of the chunk that it continues."""
    if inputs.whole_chunks:
        return limit
    continues = first in inputs.committed.pending
    return max(1, 2 * inputs.grain.partitions_in(inputs.committed.chunk_hours) if continues else 0)


def _new_hours_first(
    due: Mapping[int, str],
    old: list[int],
    changed: frozenset[int],
    grain: Grain,
    limit: int,
) -> Chunk:
    new = due.keys() - set(old)
    if new:
        return Chunk(_only(due, new), pending=changed.intersection(old))
    now, waiting = _split(old, grain, limit)
    return Chunk(_only(due, now), pending=frozenset(waiting))


def _sequential_chunk(
    due: Mapping[int, str],
    old: list[int],
    changed: frozenset[int],
    grain: Grain,
    size: int,
    limit: int,
) -> Chunk:
    """Return the first hours. The chunk goes on to an hour that must be built anyway if the gap before it is small.

    Args:
        due: The hours to rebuild, ascending and without a gap.
        old: Those of them that were built before, ascending.
        changed: Hours with changed rows, of whole partitions. They must be built, as all new ones.
        grain: A chunk contains whole partitions.
        size: The number of partitions if no other one must be built; also the longest gap.
        limit: The largest number of old partitions.
    """
    length = size
    all_old = len(grain.firsts(old))
    for index, first in enumerate(grain.firsts(due)):
        must_be_built = not changed.isdisjoint(grain.numbered(grain.number(first))) or first > old[-1]
        old_partitions = min(index + 1, all_old)
        if must_be_built and index - length <= size and old_partitions <= limit:
            length = max(length, index + 1)
    now, after = _split(old, grain, length)
    rest = frozenset(after)
    if not rest:
        return Chunk(due)
    new = due.keys() - set(old)
    return Chunk(
        hours=_only(due, now),
        pending=changed.intersection([*rest, *new]),
        follows=rest - changed,
    )


def _only(due: Mapping[int, str], hours: Iterable[int]) -> dict[int, str]:
    return {hour: due[hour] for hour in sorted(hours)}


def _beyond_threshold(changed: Collection[int], inputs: PlanningInput, mode: RangeMode) -> set[int]:
    """Return the late hours that lie too far back to be rebuilt.

    An hour that was never built, or is pending or held, is never among them.
    """
    committed = inputs.committed
    first_within = _first_within_threshold(inputs, mode)
    if first_within is None:
        return set()
    exempt = committed.pending | committed.held_hours
    return {hour for hour in changed if hour < first_within and hour not in exempt}


def _first_within_threshold(inputs: PlanningInput, mode: RangeMode) -> int | None:
    """Return the first hour that a late row is rebuilt for; None if there is no limit, or no hour was built."""
    last_built = inputs.committed.last_built
    if mode.catchup_threshold is None or last_built is None:
        return None
    partitions = inputs.grain.rounded_up(mode.catchup_threshold)
    return inputs.grain.earlier(last_built, partitions - 1)


def _range_of(
    changed: dict[int, str],
    inputs: PlanningInput,
    mode: RangeMode,
    last_hour: int,
) -> dict[int, str]:
    """Return hour → reason, for all hours to recompute because of the changed ones."""
    if hours_are_independent(mode):
        return changed
    starts = _starts_of(changed, inputs, mode, last_hour)
    if not starts:
        return {}
    first_changed = min(changed, default=last_hour + 1)
    found: dict[int, str] = {}
    for hour in range(min(starts), last_hour + 1):
        found[hour] = changed.get(hour) or _why_in_range(hour, first_changed, inputs)
    return found


def _starts_of(changed: Collection[int], inputs: PlanningInput, mode: RangeMode, last_hour: int) -> list[int]:
    """Return the hours from each of which on all later ones are rebuilt; none if nothing is due."""
    built = inputs.committed.last_built
    starts = list(changed)
    if isinstance(mode, Sequential) and built is not None and built < last_hour:
        starts.append(built + 1)
    first_within = _first_within_threshold(inputs, mode)
    if starts and reloads_all(mode) and first_within is not None:
        starts.append(max(first_within, inputs.grain.first(inputs.start)))
    return starts


def _why_in_range(hour: int, first_changed: int, inputs: PlanningInput) -> str:
    if hour > first_changed:
        return f"follows from {inputs.grain.name} {inputs.grain.format_hours([first_changed])}, which changed"
    if hour in _built_before([hour], inputs.committed.last_built):
        return "reloaded with the whole catch-up threshold range, as declared"
    return f"complete, and not built yet (last built: {key_or_nothing(inputs.committed.last_built)})"
