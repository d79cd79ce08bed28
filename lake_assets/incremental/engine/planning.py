"""Up to which hour a target may be built, and be called complete.

Which hours of the target have changed, by the changes of its sources.

Which hours of a stateful or sequential target to rebuild for the hours that changed, and in which chunks.

Which changed hours of a stateless target wait, by its policy for late rows (`Defer`), and what is read once they
are due. Pure: the clock is an input.

An hour may wait if the target was complete through it, it is old enough, and all that changed it are appended rows.
Deletions, corrections and everything that a history does not show in full are never deferred. All hours that wait are
due together: when one of them has waited for the declared time, or when too many rows or hours wait.

Building a session plan: its id, its sources, its cost, and the notes for people.

Planning the next session of a target: from what changed, or from an hour that an audit holds back.

Planning a rebuild: hours that a person chose, from the sources as of the watermark.

What a target has committed after a session.

Which hours of a target wait to be built, and why. Pure.

Whether a session recomputes, in hours that were built before, all entities or only those that changed. Pure.

If the rows of one entity depend on no row of another, an entity without a changed source row comes out as it was
published. This holds if everything that was read has been built, by the present code, and nobody else has written to
the target. Then the cheaper way is chosen.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Literal

from lake_assets.base.grain import Grain
from lake_assets.base.hours import format_hours, hour_key, ranges
from lake_assets.base.timestamps import milliseconds, moment
from lake_assets.incremental.declaration import Defer, Mode, Sequential, Stateful, Stateless
from lake_assets.incremental.engine.model import (
    Committed,
    Cost,
    Decision,
    DeferredHour,
    HeldHour,
    Kind,
    LateRows,
    NoSession,
    OlderCode,
    PlannedHour,
    PlanningInput,
    SessionPlan,
    SourceRange,
    Waiting,
    capped,
    check_none_held,
    cut,
    due_at,
    hours_are_independent,
    reloads_all,
    still_deferred,
    still_held,
    verdicts_in_words,
    wait_in_words,
)
from lake_assets.incremental.engine.model import wait_in_words as deferred_in_words
from lake_assets.incremental.engine.source_changes import (
    FileChange,
    SnapshotChange,
    SourceChanges,
    describe,
    describe_earlier,
)


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


def changed_hours(inputs: PlanningInput) -> dict[int, str]:
    """Return changed hour → reason: the first snapshot that touched its partition; else an earlier version of a key."""
    reasons: dict[int, str] = {}
    for source in inputs.changes:
        for snapshot in source.effective:
            for hours in snapshot.hours:
                reason = describe(source, snapshot, hours)
                for hour in _of_whole_partitions(inputs, *hours):
                    reasons.setdefault(hour, reason)
    for source in inputs.changes:
        for hours in source.earlier.hours:
            reason = describe_earlier(source, hours)
            for hour in _of_whole_partitions(inputs, *hours):
                reasons.setdefault(hour, reason)
    return reasons


def with_pending(inputs: PlanningInput, reasons: dict[int, str], pending: Collection[int]) -> dict[int, str]:
    """Return the reasons, with the one that was found first for each pending hour."""
    return {**reasons, **{hour: inputs.committed.why(hour) for hour in pending}}


def only_appends(inputs: PlanningInput) -> bool:
    """Whether appending the new rows of every source brings the target up to date: they replace no earlier version."""
    return all(c.appends_only and not c.earlier.exist for c in inputs.changes)


def has_new_rows(inputs: PlanningInput) -> bool:
    """Whether any source has new data files with rows, in hours that count or not."""
    return any(source.rows_added for source in inputs.changes)


def has_new_snapshots(inputs: PlanningInput) -> bool:
    """Whether any source has snapshots after its watermark, compactions included."""
    return any(c.since is not None and c.snapshots for c in inputs.changes)


def _of_whole_partitions(inputs: PlanningInput, first: int, last: int) -> range:
    first_of_partition = inputs.grain.first(first)
    last_of_partition = inputs.grain.last(last)
    return range(first_of_partition, last_of_partition + 1)


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


CLOCK_TOLERANCE = timedelta(minutes=1)
"""How far a commit may be ahead of the planner's clock. One that is further ahead tells no time to wait from."""

MOST_HOURS = 1_000
"""The most hours that wait. The state of a target lists them one by one."""

MOST_READS = 50
"""The most ranges of snapshots that one append reads: Spark plans a scan for each."""


def waiting_hours(inputs: PlanningInput) -> tuple[DeferredHour, ...]:
    """Return the hours that are not built now, ascending; none if the target defers none, or all of them are due."""
    if inputs.late is None or inputs.now is None:
        return ()
    found = _deferrable(inputs, inputs.late, inputs.now)
    if _are_due(found, inputs.late, inputs.now):
        return ()
    return tuple(found[hour] for hour in sorted(found))


def why_due(inputs: PlanningInput) -> dict[int, str]:
    """Return hour → reason, for the hours that an earlier session deferred and that are pending."""
    reasons: dict[int, str] = {}
    for hour, each in _deferred_before(inputs).items():
        reasons[hour] = f"late rows, deferred since {each.since:%Y-%m-%d %H:%M} UTC, are due"
    return reasons


def late_rows(inputs: PlanningInput, hours: Collection[int]) -> tuple[LateRows, ...] | None:
    """Return the rows that an append of hours has to read besides those of the new snapshots.

    Each snapshot is in one range at most, with the hours whose rows it may have brought and the target lacks.

    Returns:
        None if rows of a pending hour cannot be appended: it is pending for another reason than the policy, or the
        source does not have all snapshots any more that brought rows which wait.
    """
    begins = _places_in_history(inputs)
    pending = inputs.committed.pending.intersection(hours)
    starts = sorted({begins[hour] for hour in pending & begins.keys()})
    if not pending <= begins.keys() or len(starts) > MOST_READS:
        return None
    found = []
    for start, end in pairwise([*starts, len(inputs.history) - 1]):
        waiting = tuple(sorted(hour for hour in pending if begins[hour] <= start))
        if start < end:
            found.append(LateRows(inputs.history[start], inputs.history[end], waiting))
    return tuple(found)


def _places_in_history(inputs: PlanningInput) -> dict[int, int]:
    """Return deferred hour → place in the history of the snapshot after which its rows wait, where that is there."""
    places = {snapshot_id: place for place, snapshot_id in enumerate(inputs.history)}
    deferred = _deferred_before(inputs).values()
    return {each.hour: places[each.after] for each in deferred if each.after in places}


def wait_for_due(inputs: PlanningInput, waiting: Collection[DeferredHour]) -> NoSession:
    """Return that there is no session now, because only hours that wait have changed."""
    return NoSession(
        "wait",
        wait_in_words(waiting, inputs.late, inputs.grain),
        look_again_at=due_at(waiting, inputs.late),
        deferred=tuple(waiting),
    )


def _are_due(found: Mapping[int, DeferredHour], late: Defer, now: datetime) -> bool:
    due = due_at(found.values(), late)
    if due is not None and due <= now:
        return True
    rows = sum(each.rows for each in found.values())
    return len(found) > MOST_HOURS or (late.or_rows is not None and rows >= late.or_rows)


def _deferrable(inputs: PlanningInput, late: Defer, now: datetime) -> dict[int, DeferredHour]:
    """Return the hours that may wait, whether they are due or not."""
    found = _deferred_before(inputs)
    last = _last_late_hour(inputs, late)
    # An hour that is pending without such a record lacks more than the rows that are new.
    urgent = {*inputs.committed.held_hours, *inputs.committed.pending.difference(found)}
    for snapshot, may_wait in _changes(inputs, now):
        hours = _touched_hours(inputs, snapshot)
        old = {hour for hour in hours if hour <= last} if may_wait else set()
        _add_rows(found, inputs, snapshot, old, now)
        urgent |= hours - old
    whole = inputs.grain.whole(urgent)
    return {hour: each for hour, each in found.items() if hour not in whole}


def _deferred_before(inputs: PlanningInput) -> dict[int, DeferredHour]:
    """Return the hours that earlier sessions deferred. One that is pending for another reason has no such record."""
    return {each.hour: each for each in inputs.committed.deferred if each.hour in inputs.committed.pending}


def _add_rows(
    found: dict[int, DeferredHour],
    inputs: PlanningInput,
    snapshot: SnapshotChange,
    hours: Collection[int],
    now: datetime,
) -> None:
    """Add the rows that a snapshot of the driving source brought to some hours."""
    watermark = inputs.changes[0].since
    after = watermark.snapshot_id if watermark else None
    rows = _rows_by_hour(snapshot, hours)
    since_ms = min(snapshot.committed_at_ms, milliseconds(now))
    for hour in hours:
        before = found.get(hour, DeferredHour(hour, since_ms, 0, after))
        found[hour] = replace(before, since_ms=min(before.since_ms, since_ms), rows=before.rows + rows.get(hour, 0))


def _last_late_hour(inputs: PlanningInput, late: Defer) -> int:
    """Return the last hour, of a whole partition, that is old enough; one before the first hour if none is."""
    before = inputs.committed.complete_through
    newest = sources_complete_through(inputs)
    if before is None or newest is None:
        return inputs.start - 1
    last = inputs.grain.complete(min(before, newest - late.older_than_hours))
    return inputs.start - 1 if last is None else last


def _changes(inputs: PlanningInput, now: datetime) -> Iterator[tuple[SnapshotChange, bool]]:
    """Yield the snapshots that changed rows, each with whether its late rows may wait."""
    for source in inputs.changes:
        is_shown = source.how == "history" and not source.earlier.exist
        for snapshot in source.effective:
            committed = moment(snapshot.committed_at_ms)
            is_past = committed <= now + CLOCK_TOLERANCE
            yield snapshot, is_shown and is_past and snapshot.effect == "append"


def _touched_hours(inputs: PlanningInput, snapshot: SnapshotChange) -> frozenset[int]:
    touched: set[int] = set()
    for first, last in snapshot.hours:
        touched.update(range(first, last + 1))
    return inputs.grain.whole(touched)


def _rows_by_hour(snapshot: SnapshotChange, waiting: Collection[int]) -> dict[int, int]:
    """Return hour → rows that a snapshot added, for those of some hours that have any."""
    found: dict[int, int] = {}
    for file in snapshot.added:
        for hour, rows in _rows_of_file(file, waiting):
            found[hour] = found.get(hour, 0) + rows
    return found


def _rows_of_file(file: FileChange, waiting: Collection[int]) -> Iterator[tuple[int, int]]:
    if file.rows_by_hour:
        yield from ((hour, rows) for hour, rows in file.rows_by_hour if hour in waiting)
        return
    if file.hours is None:
        return
    first, last = file.hours
    first_waiting = min((hour for hour in waiting if first <= hour <= last), default=None)
    if first_waiting is not None:
        yield first_waiting, file.rows


Load = Literal["append", "overwrite", "none"]
"""How a session writes its hours, as in `SessionPlan.load`."""

ID_DIGITS = 16
"""Hexadecimal digits of the hash in a session id."""


def new_session(
    inputs: PlanningInput,
    load: Load,
    hours: Mapping[int, str],
    *,
    complete_through: int | None,
    pending: Collection[int] = (),
    skipped: Collection[int] = (),
    follows: Collection[int] = (),
    late: tuple[LateRows, ...] = (),
) -> SessionPlan:
    """Return the plan of a session over all changes of the sources.

    Args:
        inputs: The planning input.
        load: How the hours are written.
        hours: Hour → reason, for the hours to build.
        complete_through: The target's complete-through after the session; ignored unless it advances.
        pending: Hours that will be pending.
        skipped: Hours that will be skipped.
        follows: Hours that will be pending unless the last hour comes out unchanged.
        late: What an append reads besides the new snapshots.
    """
    still_held = [held for held in inputs.committed.held if held.hour not in hours]
    deferred = tuple(waiting for waiting in waiting_hours(inputs) if waiting.hour in pending)
    notes = _notes(inputs, skipped, follows, still_held, deferred)
    draft = SessionPlan(
        process=inputs.process,
        session_id="",
        kind="session",
        load=load,
        sources=source_ranges(inputs),
        hours=tuple(PlannedHour(hour, hours[hour]) for hour in sorted(hours)),
        pending=tuple(sorted(pending)),
        skipped=tuple(sorted(skipped)),
        follows=tuple(sorted(follows)),
        held=tuple(held.hour for held in still_held),
        complete_through=complete_through if advances(inputs, complete_through) else None,
        processing_uris=tuple(uri for source in inputs.changes for uri in processing_uris(source)),
        cost=_cost(inputs.changes),
        notes=tuple(notes),
        code_version=inputs.code_version,
        deferred=deferred,
        late_rows=late,
        reasons=_reasons_to_wait(inputs, {*pending, *skipped, *follows}),
    )
    return identified(draft, inputs)


def _reasons_to_wait(inputs: PlanningInput, hours: Collection[int]) -> dict[int, str]:
    """Return hour → reason, for hours that wait after a session: the one that was found first."""
    changed = changed_hours(inputs) if hours else {}
    known = inputs.committed.waiting
    return {hour: known[hour].why if hour in known else changed.get(hour, "") for hour in sorted(hours)}


def identified(draft: SessionPlan, inputs: PlanningInput, token: str = "") -> SessionPlan:
    """Return the plan, of a bounded number of hours, with its session id: planning again gives the same id.

    Args:
        draft: A plan without an id, of any number of hours.
        token: Distinguishes sessions that plan the same.
    """
    draft = _bounded(draft, inputs)
    parts = [
        draft.process,
        draft.kind,
        draft.load,
        str(draft.complete_through),
        str(inputs.revision),
        token,
    ]
    for source in draft.sources:
        parts.append(f"{source.source}:{source.table_uuid}:{source.from_snapshot_id}:{source.to_snapshot_id}")
    for hours in (draft.hour_numbers, draft.pending, draft.skipped, draft.follows):
        parts.append(format_hours(hours))
    return replace(draft, session_id=_session_id(draft.process, parts))


def _bounded(draft: SessionPlan, inputs: PlanningInput) -> SessionPlan:
    """Return the plan of its first `max_hours`, in whole partitions; the others are pending.

    Hours that the target was not complete through come first, unless hours depend on those before them. An append
    becomes an overwrite: the new snapshots have the rows of the other hours, too.
    """
    committed = inputs.committed
    limit = inputs.max_hours
    if reloads_all(inputs.mode) and committed.last_built is not None:
        # Each session begins with the hours of the threshold again, so it has to go beyond them.
        limit += sum(hour <= committed.last_built for hour in draft.hour_numbers)
    if len(draft.hours) <= limit:
        return draft
    complete = committed.complete_through
    in_order = list(draft.hour_numbers)
    if hours_are_independent(inputs.mode) and complete is not None:
        in_order.sort(key=lambda hour: (hour <= complete, hour))
    now = inputs.grain.whole(in_order[:limit])
    rest = sorted(set(in_order) - now)
    through = capped(draft.complete_through, rest, complete)
    return replace(
        draft,
        load="overwrite",
        hours=tuple(planned for planned in draft.hours if planned.hour in now),
        pending=tuple(sorted({*draft.pending, *rest})),
        reasons={**draft.reasons, **{each.hour: each.reason for each in draft.hours if each.hour not in now}},
        complete_through=through if advances(inputs, through) else None,
        notes=(*draft.notes, f"{len(rest):,} more hours wait for the next sessions: each builds {limit:,} at most"),
        late_rows=(),
    )


def source_ranges(inputs: PlanningInput) -> tuple[SourceRange, ...]:
    """Return the snapshots of each source that a session covers."""
    return tuple(_source_range(source) for source in inputs.changes)


def _source_range(source: SourceChanges) -> SourceRange:
    head = source.head
    return SourceRange(
        source=source.source,
        table_uuid=head.table_uuid,
        from_snapshot_id=source.since.snapshot_id if source.since else None,
        from_timestamp_ms=source.snapshots[0].committed_at_ms if source.since and source.snapshots else None,
        to_snapshot_id=head.snapshot_id,
        to_sequence_number=head.sequence_number,
        to_timestamp_ms=head.timestamp_ms,
        complete_through=head.complete_through,
        totals=head.totals,
        last_hour=head.last_hour,
        appends_only=source.appends_only,
    )


MAX_FILE_URIS = 1_000
"""Most new files of a source that are named one by one; of more, the range of snapshots that brought them is."""


def _session_id(process: str, parts: Iterable[str]) -> str:
    digest = hashlib.sha256("|".join(parts).encode()).hexdigest()
    name = process.split(".")[-1]
    return f"{name}-{digest[:ID_DIGITS]}"


def processing_uris(source: SourceChanges, hours: Collection[int] | None = None) -> list[dict[str, object]]:
    """Return where the new files of a source are, each place once, ordered by its values.

    Args:
        source: What is new in the source.
        hours: Only files that may have rows of one of these hours; None for all files.

    Returns:
        Each with `source`, the table; and with the landing partition (`landing_date`, `landing_hour`, `batch_id`), or
        with `partition` and `file` of a file that has none. If there are too many such files, with `from_snapshot_id`
        (exclusive; None for the table's beginning) and `to_snapshot_id`.
    """
    places: dict[tuple[str, ...], dict[str, object]] = {}
    files: list[dict[str, object]] = []
    for file in source.added:
        if hours is not None and not _may_have_rows(file, hours):
            continue
        if file.is_landed:
            values = tuple(map(str, file.partition.values()))
            places.setdefault(values, {"source": source.source, **file.partition})
        else:
            files.append({"source": source.source, "partition": dict(file.place), "file": file.path})
    if len(files) > MAX_FILE_URIS:
        since = source.since.snapshot_id if source.since else None
        head = source.head.snapshot_id
        files = [{"source": source.source, "from_snapshot_id": since, "to_snapshot_id": head}]
    return [places[values] for values in sorted(places)] + sorted(files, key=lambda uri: str(uri.get("file")))


def _may_have_rows(file: FileChange, hours: Collection[int]) -> bool:
    spans = file.row_hours or ((file.hours,) if file.hours else ())
    return any(first <= hour <= last for first, last in spans for hour in hours)


def _cost(changes: Iterable[SourceChanges]) -> Cost:
    files = rows = size = 0
    for source in changes:
        files += len(source.added)
        rows += source.rows_added
        size += sum(file.bytes for file in source.added)
    return Cost(files=files, rows=rows, bytes=size)


def _notes(
    inputs: PlanningInput,
    skipped: Collection[int],
    follows: Collection[int],
    still_held: Sequence[HeldHour],
    deferred: Sequence[DeferredHour],
) -> Iterator[str]:
    for source in inputs.changes:
        yield from _notes_on_source(source)
    grain = inputs.grain
    if follows:
        yield (
            f"{grain.format_hours(follows)}: recomputed next,"
            f" but only if the last {grain.name} of this session comes out changed"
        )
    if skipped:
        yield f"skipped, beyond the catch-up threshold, open to a backfill: {grain.format_hours(skipped)}"
    if still_held:
        yield verdicts_in_words(still_held)
    if deferred:
        yield deferred_in_words(deferred, inputs.late, grain)


def _notes_on_source(source: SourceChanges) -> Iterator[str]:
    compactions = sum(snapshot.effect == "none" for snapshot in source.snapshots)
    if compactions:
        yield f"{source.source}: {compactions} compaction(s) skipped, no row changed"
    if source.how == "expired":
        yield f"{source.source}: the watermark's snapshot has expired; the hours of newer files are overwritten"
    if source.how == "rewound":
        yield (
            f"{source.source}: the head does not descend from the watermark;"
            " the hours of all files that differ are rebuilt"
        )


def plan(inputs: PlanningInput) -> Decision:
    """Return the next session of a target, or the reason why there is none.

    Held hours come last, one partition in each session.

    Raises:
        ConfigurationError: A sequential target has held hours.
    """
    held = inputs.committed.held
    check_none_held(inputs.process, inputs.mode, held)
    decision = _plan_changes(inputs)
    if isinstance(decision, SessionPlan) and decision.load != "none":
        return decision
    return _plan_held(inputs, decision) or _with_held_hours(decision, held)


def plan_acknowledged(inputs: PlanningInput) -> Decision:
    """Return the next session like `plan`; but instead of waiting, move the watermark to the sources' heads.

    The changed hours become pending. This releases the source snapshots that the watermark refers to.
    """
    decision = plan(inputs)
    has_moved = any(c.moved for c in inputs.changes)
    if isinstance(decision, SessionPlan) or not has_moved:
        return decision
    if not isinstance(inputs.mode, Stateless) and last_buildable_hour(inputs) is None:
        return decision
    # The watermark passes rows without an hour, too: no other session would put them into quarantine.
    is_stateless = isinstance(inputs.mode, Stateless)
    return new_session(
        inputs,
        "append" if is_stateless and _can_append_bad_rows(inputs) else "none",
        {},
        pending=changed_hours(inputs).keys() | inputs.committed.pending,
        complete_through=next_complete_through(inputs),
    )


def _plan_changes(inputs: PlanningInput) -> Decision:
    """Return the decision apart from held hours."""
    if isinstance(inputs.mode, Stateless):
        return _plan_stateless(inputs)
    return _plan_range(inputs, inputs.mode)


def _plan_stateless(inputs: PlanningInput) -> Decision:
    waiting = waiting_hours(inputs)
    hours = {**with_pending(inputs, changed_hours(inputs), inputs.committed.pending), **why_due(inputs)}
    left = inputs.committed.held_hours.intersection(hours).union(each.hour for each in waiting)
    for hour in left:
        del hours[hour]
    through = next_complete_through(inputs)
    if hours:
        return _build_hours(inputs, hours, left, through)
    if waiting and not advances(inputs, through):
        return wait_for_due(inputs, waiting)
    load = _load_without_hours(inputs, waiting, through)
    if load is None:
        return _nothing_new(inputs)
    return new_session(inputs, load, {}, pending=left, complete_through=through)


def _build_hours(
    inputs: PlanningInput, hours: Mapping[int, str], left: Collection[int], through: int | None
) -> SessionPlan:
    """Return a session that appends what the hours lack, or overwrites them if that is not known or not all."""
    late = late_rows(inputs, hours) if only_appends(inputs) else None
    load: Load = "overwrite" if late is None else "append"
    return new_session(inputs, load, hours, pending=left, complete_through=through, late=late or ())


def _load_without_hours(
    inputs: PlanningInput, waiting: Collection[DeferredHour], through: int | None
) -> Literal["append", "none"] | None:
    """Return what a session does that builds no hour; None if there is none."""
    changed = changed_hours(inputs)
    if (waiting or not changed) and _can_append_bad_rows(inputs):
        return "append"
    if changed or has_new_snapshots(inputs) or advances(inputs, through):
        return "none"
    return None


def _can_append_bad_rows(inputs: PlanningInput) -> bool:
    # No hour to build has changed, so new rows lie in no such hour, or wait. A session puts the others into quarantine.
    return has_new_rows(inputs) and all(c.appends_only for c in inputs.changes)


def _plan_range(inputs: PlanningInput, mode: RangeMode) -> Decision:
    last_hour = last_buildable_hour(inputs)
    if last_hour is None:
        return NoSession("wait", why_none_is_complete(inputs))
    found = hours_to_rebuild(inputs, mode, last_hour)
    if found.due:
        return _rebuild_chunk(inputs, mode, found)
    through = next_complete_through(inputs)
    moves_on = found.skipped or found.has_range or advances(inputs, through)
    if moves_on or _has_only_compactions(inputs, found):
        return new_session(
            inputs,
            "none",
            {},
            pending=found.later | found.held,
            skipped=found.skipped,
            complete_through=through,
        )
    if found.later:
        return _wait_for_sources(inputs, found)
    return _nothing_new(inputs)


def _has_only_compactions(inputs: PlanningInput, found: HoursToRebuild) -> bool:
    return has_new_snapshots(inputs) and not found.later


def _rebuild_chunk(inputs: PlanningInput, mode: RangeMode, found: HoursToRebuild) -> SessionPlan:
    chunk = first_chunk(found, inputs, mode)
    is_last_chunk = max(chunk.hours) == max(found.due)
    # Until its last chunk is built, the new hours of a sequential target do not exist yet.
    all_new_hours_built = is_last_chunk or not isinstance(mode, Sequential)
    return new_session(
        inputs,
        "overwrite",
        chunk.hours,
        pending=found.later | chunk.pending | found.held,
        skipped=found.skipped,
        follows=chunk.follows,
        complete_through=next_complete_through(inputs) if all_new_hours_built else None,
    )


def _wait_for_sources(inputs: PlanningInput, found: HoursToRebuild) -> NoSession:
    grain = inputs.grain
    hours = f"{grain.name}s {grain.format_hours(found.later)}"
    return NoSession("wait", f"{hours} wait for {incomplete_sources(inputs, min(found.later))}")


def _nothing_new(inputs: PlanningInput) -> NoSession:
    return NoSession("idle", f"no new snapshot of {inputs.source_names}")


def _plan_held(inputs: PlanningInput, others: Decision) -> SessionPlan | None:
    """Return a session for the earliest held partition that has a reason to be tried again; None if there is none.

    others: the decision without it, which moves the watermark at most.
    """
    changed = changed_hours(inputs)
    if isinstance(others, SessionPlan):
        pending, skipped = set(others.pending), others.skipped
    else:
        pending, skipped = changed.keys() | inputs.committed.pending, ()
    first = _first_held_due(inputs, pending)
    if first is None:
        return None
    partition = inputs.grain.whole([first.hour])
    hours: dict[int, str] = {}
    for hour in partition:
        what_changed = changed.get(hour, "a source or the code has changed")
        hours[hour] = f"{what_changed}; was held back by {first.why}"
    return new_session(
        inputs,
        "overwrite",
        hours,
        pending=pending - partition,
        skipped=skipped,
        complete_through=next_complete_through(inputs, built=partition),
    )


def _first_held_due(inputs: PlanningInput, pending: set[int]) -> HeldHour | None:
    """Return the earliest held hour that changed, or was held by other code, and may be built."""
    last_hour = last_buildable_hour(inputs)
    for held in inputs.committed.held:
        is_complete = last_hour is not None and held.hour <= last_hour
        may_be_built = is_complete or isinstance(inputs.mode, Stateless)
        has_reason = held.hour in pending or held.code_version != inputs.code_version
        if may_be_built and has_reason:
            return held
    return None


def _with_held_hours(decision: Decision, held: Sequence[HeldHour]) -> Decision:
    """Add the held hours to the reason why there is no session. A plan has them in its notes."""
    if isinstance(decision, SessionPlan) or not held:
        return decision
    waiting = f"{verdicts_in_words(held)}; it waits for a change of a source or the code"
    return replace(decision, reason=f"{decision.reason}; {waiting}")


def plan_rebuild(
    inputs: PlanningInput,
    hours: Collection[int],
    *,
    present: Collection[int],
    token: str,
) -> Decision:
    """Return a rebuild of hours from the sources as of the changes' heads; it leaves the watermark where it is.

    A sequential target is rebuilt from the first hour to the last one built. So is a target whose hours depend on their
    sequence, if one of the hours is pending or was skipped. Hours above complete-through are left out.

    Args:
        inputs: The planning input; its changes end at the watermark.
        hours: The hours to rebuild, in any order.
        present: All event hours of the sources. Before the first session, those that are not rebuilt become pending.
        token: Distinguishes this rebuild from another one of the same hours.

    Raises:
        ConfigurationError: A sequential target has held hours that the rebuild does not cover.
    """
    grain = inputs.grain
    is_first_session = any(c.since is None for c in inputs.changes)
    unread = grain.whole(present) if is_first_session else frozenset()
    wanted = _with_dependent_hours(inputs, set(grain.whole(hours)), unread)
    if not wanted:
        return NoSession("idle", "no hour was chosen")
    rebuilt = _buildable(inputs, wanted)
    left_out = wanted - rebuilt
    if not rebuilt:
        waits_for = incomplete_sources(inputs, min(left_out))
        return NoSession("wait", f"{grain.format_hours(left_out)} cannot be rebuilt yet: {waits_for}")
    check_none_held(inputs.process, inputs.mode, inputs.committed.held, first=min(rebuilt))

    notes = []
    if left_out:
        notes.append(f"left out, not complete yet: {grain.format_hours(left_out)}")
    pending = (inputs.committed.pending | unread) - rebuilt
    draft = SessionPlan(
        process=inputs.process,
        session_id="",
        kind="rebuild",
        load="overwrite",
        sources=source_ranges(inputs),
        hours=tuple(PlannedHour(hour, "a rebuild was requested") for hour in sorted(rebuilt)),
        pending=tuple(sorted(pending)),
        deferred=() if is_first_session else _still_late(inputs, pending),
        reasons={hour: inputs.committed.why(hour) for hour in sorted(pending)},
        complete_through=_first_complete_through(inputs, rebuilt) if is_first_session else None,
        cost=Cost(),
        notes=tuple(notes),
        code_version=inputs.code_version,
    )
    return identified(draft, inputs, token)


def _still_late(inputs: PlanningInput, pending: Collection[int]) -> tuple[DeferredHour, ...]:
    """Return the hours that go on waiting by the policy for late rows."""
    return tuple(each for each in inputs.committed.deferred if each.hour in pending)


def _buildable(inputs: PlanningInput, hours: set[int]) -> set[int]:
    if isinstance(inputs.mode, Stateless):
        return hours
    last_hour = last_buildable_hour(inputs)
    if last_hour is None:
        return set()
    return hours.intersection(range(min(hours), last_hour + 1))


def _with_dependent_hours(inputs: PlanningInput, hours: set[int], unread: Collection[int]) -> set[int]:
    """Return the hours, and all that depend on them. unread: hours of sources without a watermark."""
    if not hours or hours_are_independent(inputs.mode):
        return hours
    if isinstance(inputs.mode, Sequential):
        return _sequential_range(inputs, hours, unread)
    return _with_overdue_range(inputs, hours, unread)


def _with_overdue_range(inputs: PlanningInput, hours: set[int], unread: Collection[int]) -> set[int]:
    """Return the hours; from the first one that is overdue, all up to the last one built."""
    committed = inputs.committed
    # Hours after a held hour were already built from the sources.
    unbuilt_changes = committed.pending.union(committed.skipped, unread)
    overdue = hours.intersection(unbuilt_changes) - committed.held_hours
    if not overdue:
        return hours
    return hours.union(range(min(overdue), _last_of(inputs, hours) + 1))


def _sequential_range(inputs: PlanningInput, hours: set[int], unread: Collection[int]) -> set[int]:
    """Return all hours from the first to the last one built.

    The first hour needs the state of the hour before it. So no earlier hour may be missing or overdue.
    """
    last = _last_of(inputs, hours)
    starts = [*hours, *unread]
    for hour in inputs.committed.pending:
        if hour < last:
            starts.append(hour)
    if inputs.committed.last_built is not None:
        starts.append(inputs.committed.last_built + 1)
    return set(range(min(starts), last + 1))


def _last_of(inputs: PlanningInput, hours: set[int]) -> int:
    last_built = inputs.committed.last_built
    return max(hours) if last_built is None else max(*hours, last_built)


def _first_complete_through(inputs: PlanningInput, rebuilt: set[int]) -> int | None:
    # A first rebuild leaves out hours. Only a sequential target has none before the last one that it rebuilds.
    return max(rebuilt) if isinstance(inputs.mode, Sequential) else None


def committed_after(
    mode: Mode,
    before: Committed,
    planned: SessionPlan,
    built: Collection[int],
    unchanged: Collection[int] = (),
    held: Collection[HeldHour] = (),
) -> Committed:
    """Return what a target has committed after a session.

    Args:
        mode: The target's mode.
        before: What it had committed before.
        planned: The session.
        built: The hours that the session built, unchanged ones included.
        unchanged: Those of them that came out as they were published.
        held: The hours that the session held back instead.
    """
    follows = () if _converged(planned, unchanged) else planned.follows
    complete_through = _complete_through(before, planned, held)
    return Committed(
        waiting=_waiting(before, planned, follows, built, held),
        last_built=_last_built(mode, before, built, complete_through),
        complete_through=complete_through,
        code_version=planned.code_version if planned.hours else before.code_version,
        older=older_code(before, planned, built),
        span=_span(before, built),
        chunk_hours=len(planned.hours) if follows else 0,
    )


def _waiting(
    before: Committed,
    planned: SessionPlan,
    follows: Collection[int],
    built: Collection[int],
    held: Collection[HeldHour],
) -> dict[int, Waiting]:
    """Return the hours that wait after a session."""
    pending = {*planned.pending, *follows}
    # Of those that waited before, another process may have changed what the target has since: the plan knows.
    late = still_deferred((), planned.deferred, pending)
    since_ms = max((source.to_timestamp_ms for source in planned.sources), default=0)
    only_follow = _following(planned, follows)
    waiting: dict[int, Waiting] = {}
    kind: Kind
    for hour in sorted(before.skipped.union(planned.skipped).difference(built)):
        waiting[hour] = before.waiting.get(hour, _found(planned, "skipped", hour, since_ms))
    for hour in sorted(pending):
        kind = "follows" if hour in only_follow else "changed"
        known = before.waiting.get(hour)
        waiting[hour] = known if known and known.kind == kind else _found(planned, kind, hour, since_ms)
    for each in late:
        why = waiting[each.hour].why
        waiting[each.hour] = Waiting("late", why, each.since_ms, planned.session_id, rows=each.rows, after=each.after)
    for stays in still_held(before.held, built, held):
        kind = "retry" if stays.hour in pending else "held"
        waiting[stays.hour] = Waiting(kind, stays.why, since_ms, stays.session_id, stays.code_version)
    return dict(sorted(waiting.items()))


def _found(planned: SessionPlan, kind: Kind, hour: int, since_ms: int) -> Waiting:
    return Waiting(kind, planned.reasons.get(hour, ""), since_ms, planned.session_id)


def older_code(before: Committed, planned: SessionPlan, built: Collection[int]) -> tuple[OlderCode, ...]:
    """Return which hours of a target other code has built than that of a session.

    An hour to which rows are appended keeps those that the other code has built.
    """
    if not planned.hours:
        return before.older
    older = list(before.older)
    if before.span is not None and before.code_version != planned.code_version:
        of_older = [range(first, last + 1) for first, last, _ in older]
        first, last = before.span
        older += [(*each, before.code_version) for each in cut((first, last), of_older)]
    rebuilt = [range(first, last + 1) for first, last in ranges(built if planned.load == "overwrite" else ())]
    left = sorted((*each, version) for first, last, version in older for each in cut((first, last), rebuilt))
    merged: list[OlderCode] = []
    for first, last, version in left:
        if merged and merged[-1][1] + 1 == first and merged[-1][2] == version:
            merged[-1] = (merged[-1][0], last, version)
        else:
            merged.append((first, last, version))
    return tuple(merged)


def _span(before: Committed, built: Collection[int]) -> tuple[int, int] | None:
    hours = [*(before.span or ()), *built]
    return (min(hours), max(hours)) if hours else None


def _following(planned: SessionPlan, follows: Collection[int]) -> frozenset[int]:
    """Return the hours that follow from a later hour than the last planned one.

    The hour after the last planned one has an earlier state that changed: it must be rebuilt in any case.
    """
    last_planned = planned.hours[-1].hour if planned.hours else None
    return frozenset(hour for hour in follows if last_planned is None or hour > last_planned + 1)


def _converged(planned: SessionPlan, unchanged: Collection[int]) -> bool:
    """Whether the last planned hour came out unchanged, so that nothing follows from it."""
    return bool(planned.hours) and planned.hours[-1].hour in unchanged


def _complete_through(before: Committed, planned: SessionPlan, held: Collection[HeldHour]) -> int | None:
    held_hours = [h.hour for h in held]
    planned_through = capped(planned.complete_through, held_hours, before.complete_through)
    return _latest([before.complete_through, planned_through])


def _last_built(
    mode: Mode,
    before: Committed,
    built: Collection[int],
    complete_through: int | None,
) -> int | None:
    if isinstance(mode, Stateless):
        return None
    last = _latest([before.last_built, *built])
    if isinstance(mode, Stateful):
        # An hour without rows counts as built, too, once it is complete.
        return _latest([last, complete_through])
    return last


def _latest(hours: Iterable[int | None]) -> int | None:
    return max((hour for hour in hours if hour is not None), default=None)


@dataclass(frozen=True)
class PendingHours:
    """What a target still has to build.

    Attributes:
        hours: Hours that have changed and are not built yet, ascending. They may be unknown although something waits.
        why: What the target waits for, for people; empty if nothing waits.
    """

    hours: tuple[int, ...] = ()
    why: str = ""


def pending_hours(committed: Committed, decision: Decision, *, stuck: str = "") -> PendingHours:
    """Return what a target still has to build.

    Args:
        committed: What the target has committed.
        decision: Its next session, or why there is none.
        stuck: Why the session that is due does not run; empty if it is about to run.
    """
    if isinstance(decision, NoSession):
        if decision.kind == "idle" and not committed.pending:
            return PendingHours()
        waiting = committed.pending.union(each.hour for each in decision.deferred)
        return PendingHours(tuple(sorted(waiting)), decision.reason)
    hours = committed.pending.union(decision.hour_numbers, decision.pending)
    if not hours and not stuck:
        return PendingHours()
    return PendingHours(tuple(sorted(hours)), stuck or f"session {decision.session_id} is due: {decision.reason}")


MIN_ENTITIES_PER_CHANGED = 10
"""Changed entities alone are recomputed if at most one in this many has changed."""

MAX_CHANGED_ROWS = 5_000_000
"""Changed entities alone are recomputed up to this many changed rows: each Spark task holds their ids in memory."""


def rebuilt(inputs: PlanningInput, planned: SessionPlan) -> tuple[int, ...]:
    """Return the planned hours, ascending, that were built before and may be recomputed for some entities only.

    Returns:
        Empty if the target declares no entity, or was never built.
    """
    last_built = inputs.committed.last_built
    declares_entity = isinstance(inputs.mode, Sequential) and inputs.mode.entity is not None
    if not declares_entity or last_built is None:
        return ()
    return tuple(hour for hour in planned.hour_numbers if hour <= last_built)


def narrowed(
    inputs: PlanningInput,
    planned: SessionPlan,
    *,
    rows: int,
    intact: bool,
) -> SessionPlan:
    """Return the plan with the decision which entities it recomputes, and a note with the reason.

    Args:
        inputs: The planning input.
        planned: The plan; it is returned as it is if none of its hours was built before.
        rows: Rows of the target in the hours of `rebuilt`.
        intact: Whether nobody else has written to the target.
    """
    hours = rebuilt(inputs, planned)
    if not hours:
        return planned
    assert isinstance(inputs.mode, Sequential)
    entity = inputs.mode.entity
    obstacle = next(_obstacles(inputs, hours, intact), None)
    if obstacle is not None:
        return _with_note(planned, f"recomputes every {entity}: {obstacle}")
    changed = rows_changed(inputs.changes, hours[-1])
    costs = f"about {changed:,} source rows changed, and {rows:,} rows are published"
    if not is_cheaper(changed, rows, hours=len(hours), few=inputs.mode.few_rows):
        return _with_note(planned, f"recomputes every {entity}, which is cheaper: {costs}")
    note = f"in hours that were built before, recomputes each {entity} that changed, which is cheaper: {costs}"
    return replace(_with_note(planned, note), changed_through=hours[-1])


def is_cheaper(
    changed: int,
    rows: int,
    *,
    hours: int,
    few: int,
) -> bool:
    """Whether it is cheaper to recompute only the changed entities.

    Args:
        changed: Number of changed source rows; at most as many entities have changed.
        rows: Rows published in the hours, one for each entity and hour.
        hours: Number of the hours.
        few: Up to this many published rows, it is cheaper to recompute all.
    """
    if rows <= few or changed > MAX_CHANGED_ROWS:
        return False
    return changed * hours * MIN_ENTITIES_PER_CHANGED <= rows


def rows_changed(changes: Iterable[SourceChanges], last_hour: int) -> int:
    """Return about how many source rows were added, changed or removed, in hours up to the last one, by metadata."""
    rows = 0
    for source in changes:
        rows += max(_rows_added(source, last_hour), _rows_removed(source, last_hour))
    return rows


def _rows_added(source: SourceChanges, last_hour: int) -> int:
    rows = 0
    for file in source.added:
        if file.hours:
            first_hour, _ = file.hours
            rows += file.rows if first_hour <= last_hour else 0
    return rows


def _rows_removed(source: SourceChanges, last_hour: int) -> int:
    rows = 0
    for snapshot in source.effective:
        if snapshot.hours:
            first_hour, _ = snapshot.hours[0]
            rows += snapshot.rows_gone if first_hour <= last_hour else 0
    return rows


def _obstacles(inputs: PlanningInput, hours: tuple[int, ...], intact: bool) -> Iterator[str]:
    """Yield the reasons why no entity may be left out."""
    for source in inputs.changes:
        if source.since is None or not _shows_changed_rows(source):
            yield f"the rows of {source.source} that were read before are not available for comparison"
    if _was_read_before(inputs, hours[-1]):
        yield "an earlier session has read the changes of hours that are pending or were skipped"
    if not _was_built_by_this_code(inputs, hours[0]):
        yield "some of the hours were built by other code"
    if not intact:
        yield "somebody else has written to the target"


def _shows_changed_rows(source: SourceChanges) -> bool:
    """Whether the changed rows can be read: those appended, or the rows before and after."""
    return source.appends_only or not source.since_expired


def _was_read_before(inputs: PlanningInput, last_hour: int) -> bool:
    """Whether an earlier session read changes of hours up to the last one without building them."""
    committed = inputs.committed
    return bool(committed.skipped) or any(hour <= last_hour for hour in committed.pending)


def _was_built_by_this_code(inputs: PlanningInput, first_hour: int) -> bool:
    """Whether all hours from the first one on were built by the present code."""
    committed = inputs.committed
    if any(last >= first_hour for _, last, _ in committed.older):
        return False
    return committed.code_version == inputs.code_version


def _with_note(planned: SessionPlan, note: str) -> SessionPlan:
    return replace(planned, notes=(*planned.notes, note))
