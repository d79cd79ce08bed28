"""Planning: new changes of the sources and what waits → what a session builds, and what waits after it. Pure.

`plan` decides on the next session in one pass, `plan_rebuild` on hours that a person chose, `committed_after` on what a
session leaves behind. The clock is an input: by it, late rows that wait by the declared policy (`Defer`) are due.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from math import inf
from typing import Literal

from lake_assets.base.hours import format_hours, from_milliseconds, hour_key, milliseconds, ranges
from lake_assets.incremental.declaration import Mode, Sequential, Stateful, Stateless
from lake_assets.incremental.engine.model import (
    HELD,
    Committed,
    Cost,
    Decision,
    DeferredHour,
    HeldHour,
    Kind,
    LateRows,
    Load,
    NoSession,
    OlderCode,
    PlannedHour,
    PlanningInput,
    SessionPlan,
    Waiting,
    capped,
    check_none_held,
    cut,
    deferred_of,
    due_at,
    hours_are_independent,
    reloads_all,
    source_range,
    verdicts_in_words,
    wait_in_words,
)
from lake_assets.incremental.engine.source_changes import FileChange, SourceChanges, describe

CLOCK_TOLERANCE = timedelta(minutes=1)
"""How far a commit may be ahead of the planner's clock. One that is further ahead tells no time to wait from."""

MOST_HOURS = 1_000
"""The most hours that wait for late rows. The state of a target lists them one by one."""

MOST_READS = 50
"""The most ranges of snapshots that one append reads: Spark plans a scan for each."""

ID_DIGITS = 16
"""Hexadecimal digits of the hash in a session id."""

MAX_FILE_URIS = 1_000
"""Most new files of a source that are named one by one; of more, the range of snapshots that brought them is."""

MIN_ENTITIES_PER_CHANGED = 10
"""Changed entities alone are recomputed if at most one in this many has changed."""

MAX_CHANGED_ROWS = 5_000_000
"""Changed entities alone are recomputed up to this many changed rows: each Spark task holds their ids in memory."""


def plan(inputs: PlanningInput, *, acknowledge: bool = False) -> Decision:
    """Return the next session of a target, or the reason why there is none.

    Hours that audits hold back come last, one partition in each session: when they have changed, or the code has.

    Args:
        inputs: The planning input.
        acknowledge: Instead of waiting, move the watermarks to the sources' heads, so that the changed hours wait. This
            releases the source snapshots that the watermarks refer to.

    Raises:
        ConfigurationError: A sequential target has held hours.
    """
    committed, mode, grain = inputs.committed, inputs.mode, inputs.grain
    pending, held = committed.pending, committed.held_hours
    check_none_held(inputs.process, mode, committed.held)
    last = last_buildable_hour(inputs)
    if last is None:
        not_set = [each.source for each in inputs.changes if each.head.complete_through is None]
        why = f"{', '.join(not_set)}: complete-through is not set yet, so no hour is known to be complete"
        if not not_set:
            first = grain.format_hours([inputs.start])
            why = f"no {grain.name} is complete yet: {first} waits for {_incomplete_sources(inputs, inputs.start)}"
        return _no_session(inputs, "wait", why)

    # What waits or has changed now is due, unless it is not complete, too old, held back, or waits for more late rows.
    fresh = changed_hours(inputs)
    late = deferred_hours(inputs)
    first_within = _first_within_threshold(inputs)
    waiting: dict[int, Waiting] = {}
    within: dict[int, str] = {}
    later: list[int] = []
    for hour in sorted({*committed.waiting, *fresh}):
        is_pending = hour in pending and hour not in held
        if hour in late:
            waiting[hour] = replace(late[hour], why=late[hour].why or fresh.get(hour, ""))
        elif hour not in fresh and not is_pending:
            if hour in held:
                waiting[hour] = committed.waiting[hour]
        elif hour > last:
            waiting[hour] = _waits(inputs, hour, "changed", fresh)
            later.append(hour)
        elif hour < first_within and hour not in pending and hour not in held:
            waiting[hour] = _waits(inputs, hour, "skipped", fresh)
        else:
            within[hour] = _why_pending(committed.waiting[hour]) if is_pending else fresh[hour]
    affected = within if hours_are_independent(mode) else _range_from(inputs, within, int(last))
    for hour in held & affected.keys():
        waiting[hour] = _waits(inputs, hour, "changed", fresh)
    reasons = {**affected, **fresh, **within}
    due = {hour: reasons[hour] for hour in sorted(affected.keys() - held)}

    through = _next_complete_through(inputs)
    load: Load
    build: dict[int, str] = {}
    waited: tuple[LateRows, ...] | None = None
    if due:
        # An hour that only follows from others is rebuilt if the hour before it comes out changed.
        only_follow = committed.following - fresh.keys() if isinstance(mode, Sequential) else frozenset[int]()
        own = {*fresh, *(pending - held)} - only_follow
        now, rest, follows = _first_chunk(inputs, due, grain.whole(own))
        build = {hour: due[hour] for hour in now}
        waiting = {hour: waits for hour, waits in waiting.items() if hour not in build}
        for hour in rest:
            waiting[hour] = _waits(inputs, hour, "follows" if hour in follows else "changed", {**due, **fresh})
        if isinstance(mode, Stateless) and all(each.appends_only and not each.earlier.exist for each in inputs.changes):
            waited = late_rows(inputs, due)
        load = "overwrite" if waited is None else "append"
        if isinstance(mode, Sequential) and max(now) < max(due):
            through = None  # until its last chunk is built, the new hours of a sequential target do not exist yet
    else:
        # New rows that lie in no hour, or that wait, are read all the same: the bad ones are quarantined.
        appends = isinstance(mode, Stateless) and all(each.appends_only for each in inputs.changes)
        appends = appends and (bool(late) or not fresh) and any(each.rows_added for each in inputs.changes)
        has_compactions = any(each.since is not None and each.snapshots for each in inputs.changes) and not later
        skips = any(waits.kind == "skipped" for waits in waiting.values())
        moves = bool(appends or affected or skips or through is not None or has_compactions)
        moves = moves and (not late or through is not None)
        load = "append" if appends else "none"
        retried = [
            each
            for each in committed.held
            if each.hour <= last and (waiting[each.hour].kind == "retry" or each.code_version != inputs.code_version)
        ]
        if retried and not (moves and appends):
            partition = grain.whole([retried[0].hour])
            reason = "a source or the code has changed"
            load = "overwrite"
            for hour in sorted(partition):
                build[hour] = f"{fresh.get(hour, reason)}; was held back by {retried[0].why}"
                waiting.pop(hour, None)
            through = _next_complete_through(inputs, built=partition)
        elif not moves and not (acknowledge and any(each.moved for each in inputs.changes)):
            if late:
                deferred = deferred_of(late)
                return _no_session(inputs, "wait", wait_in_words(deferred, inputs.late, grain), deferred)
            if later:
                hours = f"{grain.name}s {grain.format_hours(later)}"
                return _no_session(inputs, "wait", f"{hours} wait for {_incomplete_sources(inputs, min(later))}")
            names = ", ".join(each.source for each in inputs.changes)
            return _no_session(inputs, "idle", f"no new snapshot of {names}")
    return _session(inputs, load, build, waiting, late=waited or (), complete_through=through)


def _waits(inputs: PlanningInput, hour: int, kind: Kind, reasons: Mapping[int, str]) -> Waiting:
    """Return why an hour waits after a session. A held hour stays held, and one that has waited keeps its reason."""
    known = inputs.committed.waiting.get(hour)
    if known is None:
        return Waiting(kind, reasons.get(hour, ""))
    return Waiting("retry" if known.kind in HELD else kind, known.why)


def plan_rebuild(inputs: PlanningInput, hours: Collection[int], *, present: Collection[int], token: str) -> Decision:
    """Return a rebuild of hours from the sources as of the changes' heads; it leaves the watermark where it is.

    A sequential target is rebuilt from the first hour to the last one built. So is a target whose hours depend on their
    sequence, if one of the hours is pending or was skipped. Hours above complete-through are left out.

    Args:
        inputs: The planning input; its changes end at the watermark.
        hours: The hours to rebuild, in any order.
        present: Hours of the target. Before the first session, those of it or the sources that are not rebuilt become
            pending.
        token: Distinguishes this rebuild from another one of the same hours.

    Raises:
        ConfigurationError: A sequential target has held hours that the rebuild does not cover.
    """
    committed, mode, grain = inputs.committed, inputs.mode, inputs.grain
    is_first = any(each.since is None for each in inputs.changes)
    fresh = changed_hours(inputs) if is_first else {}
    unread = grain.whole([*fresh, *present]) if is_first else frozenset()
    wanted = set(grain.whole(hours))
    if not wanted:
        return NoSession("idle", "no hour was chosen")
    last = max(*wanted, -inf if committed.last_built is None else committed.last_built)
    starts: list[int] = []
    if isinstance(mode, Sequential):
        # The first hour needs the state of the hour before it. So no earlier hour may be missing or overdue.
        starts = [*wanted, *unread, *(hour for hour in committed.pending if hour < last)]
        starts += [] if committed.last_built is None else [committed.last_built + 1]
    elif not hours_are_independent(mode):
        # Hours after a held hour were already built from the sources.
        starts = [*wanted.intersection(committed.pending.union(committed.skipped, unread) - committed.held_hours)]
    if starts:
        wanted.update(range(min(starts), int(last) + 1))
    last_buildable = last_buildable_hour(inputs)
    rebuilt = {hour for hour in wanted if last_buildable is not None and hour <= last_buildable}
    left_out = wanted - rebuilt
    if not rebuilt:
        waits_for = _incomplete_sources(inputs, min(left_out))
        return NoSession("wait", f"{grain.format_hours(left_out)} cannot be rebuilt yet: {waits_for}")
    check_none_held(inputs.process, mode, committed.held, first=min(rebuilt))
    # A first rebuild reads beyond the rows that wait, so their hours cannot be appended to.
    overdue = {*unread, *committed.following, *(committed.pending if is_first else ())}
    changed = committed.pending.union(unread) - committed.held_hours
    if not hours_are_independent(mode) and changed and committed.last_built is not None:
        overdue.update(range(min(changed), committed.last_built + 1))
    waiting = {hour: committed.waiting[hour] for hour in committed.pending.union(committed.held_hours) - rebuilt}
    for hour in overdue - rebuilt:
        waiting[hour] = _waits(inputs, hour, "changed", fresh)
    return _session(
        inputs,
        "overwrite",
        dict.fromkeys(sorted(rebuilt), "a rebuild was requested"),
        waiting,
        kind="rebuild",
        # A first rebuild leaves out hours. Only a sequential target has none before the last one that it rebuilds.
        complete_through=max(rebuilt) if is_first and isinstance(mode, Sequential) else None,
        notes=[f"left out, not complete yet: {grain.format_hours(left_out)}"] if left_out else [],
        token=token,
    )


# What is complete


def sources_complete_through(inputs: PlanningInput) -> int | None:
    """Return the least complete-through of all sources; of a stateful or sequential target, of whole partitions.

    None if a source's complete-through is not set, or no partition is complete.
    """
    known = [each.head.complete_through for each in inputs.changes if each.head.complete_through is not None]
    if len(known) < len(inputs.changes):
        return None
    if isinstance(inputs.mode, Stateless):
        return min(known)
    last = inputs.grain.complete(min(known))
    return last if last >= inputs.start else None


def last_buildable_hour(inputs: PlanningInput) -> float | None:
    """Return the last hour that may be built: infinity for a stateless target, None if no hour may.

    If a source's complete-through went back, or is not known any more because all rows are gone, hours that were built
    already are still rebuilt.
    """
    if isinstance(inputs.mode, Stateless):
        return inf
    known = sources_complete_through(inputs), inputs.committed.last_built
    return max((hour for hour in known if hour is not None), default=None)


def _next_complete_through(inputs: PlanningInput, *, built: Collection[int] = ()) -> int | None:
    """Return the target's complete-through after a session that builds these held hours; None if it stays."""
    return _if_later(inputs, sources_complete_through(inputs), inputs.committed.held_hours.difference(built))


def _if_later(inputs: PlanningInput, through: int | None, unbuilt: Collection[int]) -> int | None:
    """Return a complete-through, limited to below each hour that is not built; None if it is not later than before."""
    before = inputs.committed.complete_through
    found = capped(through, unbuilt, before)
    return None if found is None or (before is not None and found <= before) else found


def _no_session(
    inputs: PlanningInput, kind: Literal["idle", "wait"], why: str, deferred: Collection[DeferredHour] = ()
) -> NoSession:
    held = inputs.committed.held
    if held:
        why = f"{why}; {verdicts_in_words(held, inputs.grain)}; it waits for a change of a source or the code"
    return NoSession(kind, why, due_at(deferred, inputs.late), tuple(deferred))


def _incomplete_sources(inputs: PlanningInput, hour: int) -> str:
    """Return, for people, the sources that are not complete through the partition of an hour, and their progress."""
    waiting: list[str] = []
    for source in inputs.changes:
        through = source.head.complete_through
        if through is None or through < inputs.grain.last(hour):
            waiting.append(f"{source.source}, complete through {_key_or_nothing(through)}")
    return ", ".join(waiting) or "nothing"


def _key_or_nothing(hour: int | None) -> str:
    return "nothing yet" if hour is None else hour_key(hour)


# What has changed


def changed_hours(inputs: PlanningInput) -> dict[int, str]:
    """Return changed hour → reason: the first snapshot that touched its partition; else an earlier version of a key."""
    found = []
    for source in inputs.changes:
        for snapshot in source.effective:
            found += [(hours, describe(source, snapshot, hours)) for hours in snapshot.hours]
    for source in inputs.changes:
        found += [(hours, describe(source, None, hours)) for hours in source.earlier.hours]
    reasons: dict[int, str] = {}
    for (first, last), reason in found:
        for hour in range(inputs.grain.first(first), inputs.grain.last(last) + 1):
            reasons.setdefault(hour, reason)
    return reasons


def _why_pending(waits: Waiting) -> str:
    if waits.kind == "late":
        return f"late rows, deferred since {from_milliseconds(waits.since_ms):%Y-%m-%d %H:%M} UTC, are due"
    return waits.why or "changed before"


def _first_within_threshold(inputs: PlanningInput) -> float:
    """Return the first hour that a late row is rebuilt for; minus infinity without a limit, or before the first."""
    mode, last_built = inputs.mode, inputs.committed.last_built
    if isinstance(mode, Stateless) or mode.catchup_threshold is None or last_built is None:
        return -inf
    return inputs.grain.earlier(last_built, inputs.grain.rounded_up(mode.catchup_threshold) - 1)


def _range_from(inputs: PlanningInput, changed: Collection[int], last: int) -> dict[int, str]:
    """Return hour → reason, for all hours to recompute because hours of a sequence changed, up to the last one."""
    built, grain = inputs.committed.last_built, inputs.grain
    starts = [*changed]
    if isinstance(inputs.mode, Sequential) and built is not None and built < last:
        starts.append(built + 1)
    if not starts:
        return {}
    first_changed = min(changed, default=last + 1)
    first_within = _first_within_threshold(inputs)
    if reloads_all(inputs.mode) and first_within > -inf:
        starts.append(max(int(first_within), grain.first(inputs.start)))
    found: dict[int, str] = {}
    for hour in range(min(starts), last + 1):
        if hour > first_changed:
            found[hour] = f"follows from {grain.name} {grain.format_hours([first_changed])}, which changed"
        elif built is not None and hour <= built:
            found[hour] = "reloaded with the whole catch-up threshold range, as declared"
        else:
            found[hour] = f"complete, and not built yet (last built: {_key_or_nothing(built)})"
    return found


# Chunks


def _first_chunk(
    inputs: PlanningInput, due: Mapping[int, str], changed: frozenset[int]
) -> tuple[list[int], set[int], set[int]]:
    """Return the hours of the next session; those that wait for later ones; and which of these only follow from others.

    A range that is too long is cut only if some of its hours were built before. New hours come first, all of them in
    one session. In a sequential target they come last: an hour must not be built on a state that is known to be wrong.
    There a chunk begins small, because a late row often has no effect on the next hour, and the next one is twice as
    long if it has. It goes on to an hour that must be built anyway if the gap before it is small.

    Args:
        inputs: The planning input.
        due: The hours to rebuild, ascending.
        changed: Hours, of whole partitions, that have changed themselves, or whose changes wait.
    """
    mode, grain, built = inputs.mode, inputs.grain, inputs.committed.last_built
    everything = [*due], set[int](), set[int]()
    if isinstance(mode, Stateless) or mode.chunk_hours is None or reloads_all(mode) or built is None:
        return everything
    old = [hour for hour in due if hour <= built]
    new = [hour for hour in due if hour > built]
    firsts, limit = grain.firsts(old), grain.rounded_up(mode.chunk_hours)
    if isinstance(mode, Sequential):
        changed |= {min(due)}  # the hour that has changed may be held
        if changed.issuperset(old):
            return everything  # all must be built anyway, so a smaller chunk would find out nothing
        continued = 2 * grain.partitions_in(inputs.committed.chunk_hours) if min(due) in inputs.committed.pending else 0
        gap = end = limit if inputs.whole_chunks else min(limit, max(1, continued))
        for number, hour in enumerate(grain.firsts(due), start=1):
            must_be_built = hour > built or not changed.isdisjoint(grain.whole([hour]))
            if must_be_built and number - 1 - end <= gap and min(number, len(firsts)) <= limit:
                end = max(end, number)
        firsts = firsts[:end]
    elif not old or len(grain.firsts(due)) <= limit:
        return everything
    elif new:
        return new, {*old}, set()
    else:
        firsts = firsts[-limit:] if hours_are_independent(mode) else firsts[:limit]
    inside = grain.whole(firsts)
    now = [hour for hour in old if hour in inside]
    rest = {*old}.difference(now)
    if not rest:
        return everything
    if not isinstance(mode, Sequential):
        return now, rest, set()
    return now, {*new} & changed | rest, rest - changed


# Late rows that wait


def deferred_hours(inputs: PlanningInput) -> dict[int, Waiting]:
    """Return the changed hours that are not built now, by the policy for late rows, and how many rows wait; ascending.

    An hour may wait if the target was complete through it, it is old enough, and all that changed it are appended rows.
    Deletions, corrections and everything that a history does not show in full are never deferred. All hours that wait
    are due together: when one of them has waited for the declared time, or when too many rows or hours wait.
    """
    late, now, grain = inputs.late, inputs.now, inputs.grain
    if late is None or now is None:
        return {}
    before, newest = inputs.committed.complete_through, sources_complete_through(inputs)
    last = inputs.start - 1
    if before is not None and newest is not None:
        last = grain.complete(min(before, newest - late.older_than_hours))
    found = {hour: waits for hour, waits in inputs.committed.waiting.items() if waits.kind == "late"}
    # An hour that is pending without such a record lacks more than the rows that are new.
    urgent = {*inputs.committed.held_hours, *inputs.committed.pending.difference(found)}
    watermark = inputs.changes[0].since
    after = watermark.snapshot_id if watermark else None
    for source in inputs.changes:
        is_shown = source.how == "history" and not source.earlier.exist
        for snapshot in source.effective:
            touched = grain.whole(hour for first, end in snapshot.hours for hour in range(first, end + 1))
            is_past = from_milliseconds(snapshot.committed_at_ms) <= now + CLOCK_TOLERANCE
            may_wait = is_shown and is_past and snapshot.effect == "append"
            old = {hour for hour in touched if may_wait and hour <= last}
            urgent |= touched - old
            since_ms = min(snapshot.committed_at_ms, milliseconds(now))
            for hour in old:
                each = found.get(hour) or Waiting("late", since_ms=since_ms, after=after)
                found[hour] = replace(each, since_ms=min(each.since_ms, since_ms))
            for file in snapshot.added:
                rows = file.rows_by_hour
                if not rows and file.hours is not None:
                    first, end = file.hours
                    first_old = min((hour for hour in old if first <= hour <= end), default=None)
                    rows = () if first_old is None else ((first_old, file.rows),)
                for hour, number in rows:
                    if hour in old:
                        found[hour] = replace(found[hour], rows=found[hour].rows + number)
    whole = grain.whole(urgent)
    found = {hour: found[hour] for hour in sorted(found) if hour not in whole}
    due = due_at(found.values(), late)
    rows_waiting = sum(each.rows for each in found.values())
    is_due = due is not None and due <= now
    is_full = len(found) > MOST_HOURS or (late.or_rows is not None and rows_waiting >= late.or_rows)
    return {} if is_due or is_full else found


def late_rows(inputs: PlanningInput, hours: Collection[int]) -> tuple[LateRows, ...] | None:
    """Return the rows that an append of hours has to read besides those of the new snapshots.

    Each snapshot is in one range at most, with the hours whose rows it may have brought and the target lacks.

    Returns:
        None if rows of a pending hour cannot be appended: it is pending for another reason than the policy, or the
        source does not have all snapshots any more that brought rows which wait.
    """
    history = inputs.history
    places = {snapshot_id: place for place, snapshot_id in enumerate(history)}
    begins = {each.hour: places[each.after] for each in inputs.committed.deferred if each.after in places}
    pending = inputs.committed.pending.intersection(hours)
    starts = sorted({begins[hour] for hour in pending & begins.keys()})
    if not pending <= begins.keys() or len(starts) > MOST_READS:
        return None
    found = []
    for start, end in pairwise([*starts, len(history) - 1]):
        if start < end:
            waiting = tuple(sorted(hour for hour in pending if begins[hour] <= start))
            found.append(LateRows(history[start], history[end], waiting))
    return tuple(found)


# The plan of a session


def _session(
    inputs: PlanningInput,
    load: Load,
    hours: Mapping[int, str],
    waiting: Mapping[int, Waiting],
    *,
    kind: Literal["session", "rebuild"] = "session",
    late: tuple[LateRows, ...] = (),
    complete_through: int | None,
    notes: Iterable[str] = (),
    token: str = "",
) -> SessionPlan:
    """Return the plan of a session of a bounded number of hours. Planning again gives the same id.

    Hours that the target was not complete through come first, unless hours depend on those before them.

    Args:
        inputs: The planning input.
        load: How the hours are written. An append of too many hours becomes an overwrite: the new snapshots have the
            rows of the other hours, too.
        hours: Hour → reason, for the hours to build, ascending.
        waiting: Hour → why it waits afterwards.
        kind: Of the session. A rebuild reads the sources as they were read before: its cost is not known.
        late: What an append reads besides the new snapshots.
        complete_through: The target's complete-through after the session; None if it stays.
        notes: The notes of a rebuild.
        token: Distinguishes sessions that plan the same.
    """
    committed, grain, mode = inputs.committed, inputs.grain, inputs.mode
    is_rebuild = kind == "rebuild"
    limit, left = inputs.max_hours, ""
    if reloads_all(mode) and committed.last_built is not None:
        # Each session begins with the hours of the threshold again, so it has to go beyond them.
        limit += sum(hour <= committed.last_built for hour in hours)
    if len(hours) > limit:
        complete = committed.complete_through
        in_order = sorted(hours)
        if hours_are_independent(mode) and complete is not None:
            in_order.sort(key=lambda hour: (hour <= complete, hour))
        now = grain.whole(in_order[:limit])
        rest = [hour for hour in hours if hour not in now]
        load, late = "overwrite", ()
        waiting = {**waiting, **{hour: _waits(inputs, hour, "changed", hours) for hour in rest}}
        complete_through = _if_later(inputs, complete_through, rest)
        left = f"{len(rest):,} more hours wait for the next sessions: each builds {limit:,} at most"
        hours = {hour: why for hour, why in hours.items() if hour in now}

    sources = []
    added: list[FileChange] = []
    uris: list[dict[str, object]] = []
    for each in inputs.changes:
        if not is_rebuild:
            added += each.added
            uris += processing_uris(each)
        began = each.snapshots[0].committed_at_ms if each.since and each.snapshots else None
        since = each.since.snapshot_id if each.since else None
        sources.append(source_range(each.head, since, appends_only=each.appends_only, from_timestamp_ms=began))
    parts = [inputs.process, kind, load, str(complete_through), str(inputs.revision), token]
    parts += [f"{each.source}:{each.table_uuid}:{each.from_snapshot_id}:{each.to_snapshot_id}" for each in sources]
    planned = SessionPlan(
        process=inputs.process,
        session_id="",
        kind=kind,
        load=load,
        sources=tuple(sources),
        hours=tuple(PlannedHour(hour, why) for hour, why in hours.items()),
        waiting=dict(sorted(waiting.items())),
        complete_through=complete_through,
        processing_uris=tuple(uris),
        cost=Cost(len(added), sum(file.rows for file in added), sum(file.bytes for file in added)),
        code_version=inputs.code_version,
        late_rows=late,
    )
    parts += [format_hours(found, most=None) for found in (hours, planned.pending, planned.skipped, planned.follows)]
    digest = hashlib.sha256("|".join(parts).encode()).hexdigest()
    notes = [*notes] if is_rebuild else _notes(inputs, planned)
    session_id = f"{inputs.process.split('.')[-1]}-{digest[:ID_DIGITS]}"
    return replace(planned, session_id=session_id, notes=(*notes, left) if left else tuple(notes))


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
        if hours is not None and not any(first <= hour <= last for first, last in file.touched for hour in hours):
            continue
        if file.is_landed:
            values = tuple(map(str, file.partition.values()))
            places.setdefault(values, {"source": source.source, **file.partition})
        else:
            files.append({"source": source.source, "partition": dict(file.partition), "file": file.path})
    if len(files) > MAX_FILE_URIS:
        since = source.since.snapshot_id if source.since else None
        head = source.head.snapshot_id
        files = [{"source": source.source, "from_snapshot_id": since, "to_snapshot_id": head}]
    return [places[values] for values in sorted(places)] + sorted(files, key=lambda uri: str(uri.get("file")))


def _notes(inputs: PlanningInput, planned: SessionPlan) -> list[str]:
    grain = inputs.grain
    notes = []
    for source in inputs.changes:
        compactions = sum(snapshot.effect == "none" for snapshot in source.snapshots)
        if compactions:
            notes.append(f"{source.source}: {compactions} compaction(s) skipped, no row changed")
        if source.how == "expired":
            what = "the watermark's snapshot has expired; the hours of newer files are overwritten"
            notes.append(f"{source.source}: {what}")
        if source.how == "rewound":
            what = "the head does not descend from the watermark; the hours of all files that differ are rebuilt"
            notes.append(f"{source.source}: {what}")
    if planned.conditional:
        condition = f"but only if the last {grain.name} of this session comes out changed"
        notes.append(f"{grain.format_hours(planned.conditional)}: recomputed next, {condition}")
    if planned.skipped:
        hours = grain.format_hours(planned.skipped)
        notes.append(f"skipped, beyond the catch-up threshold, open to a backfill: {hours}")
    held = [each for each in inputs.committed.held if each.hour in planned.waiting]
    if held:
        notes.append(verdicts_in_words(held, grain))
    if planned.deferred:
        notes.append(wait_in_words(planned.deferred, inputs.late, grain))
    return notes


# After a session


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
    last_planned = planned.hour_numbers[-1] if planned.hours else None
    stays = last_planned in unchanged
    since_ms = max((source.to_timestamp_ms for source in planned.sources), default=0)
    waiting = {hour: before.waiting[hour] for hour in before.skipped.difference(built)}
    for hour, waits in planned.waiting.items():
        known, kind = before.waiting.get(hour), waits.kind
        if kind == "follows" and last_planned == hour - 1:
            kind = "changed"  # the state before it has changed: it must be rebuilt in any case
        if stays and hour in planned.conditional:
            continue
        if kind == "late":
            session_id = known.session_id if known is not None and known.kind == kind else planned.session_id
            waiting[hour] = replace(waits, session_id=session_id)
        elif known is not None and kind in HELD:
            waiting[hour] = replace(known, kind=kind)
        elif known is not None and known.kind == kind:
            waiting[hour] = known
        else:
            waiting[hour] = Waiting(kind, waits.why, since_ms, planned.session_id)
    for each in held:
        waiting[each.hour] = Waiting("held", each.why, since_ms, each.session_id, each.code_version)

    through = capped(planned.complete_through, [each.hour for each in held], before.complete_through)
    through = max((each for each in (before.complete_through, through) if each is not None), default=None)
    # An hour without rows of a stateful target counts as built, too, once it is complete.
    last = [before.last_built, *built, through if isinstance(mode, Stateful) else None]
    span = [*(before.span or ()), *built]
    return Committed(
        waiting=dict(sorted(waiting.items())),
        last_built=None if isinstance(mode, Stateless) else max((h for h in last if h is not None), default=None),
        complete_through=through,
        code_version=planned.code_version if planned.hours else before.code_version,
        older=_older_code(before, planned, built),
        span=(min(span), max(span)) if span else None,
        chunk_hours=len(planned.hours) if planned.follows and not stays else 0,
    )


def _older_code(before: Committed, planned: SessionPlan, built: Collection[int]) -> tuple[OlderCode, ...]:
    """Return which hours of a target other code has built than that of a session.

    An hour to which rows are appended keeps those that the other code has built.
    """
    if not planned.hours:
        return before.older
    older = before.older if before.code_version == planned.code_version else before.built_by
    rebuilt = [range(first, last + 1) for first, last in ranges(built if planned.load == "overwrite" else ())]
    left = [(*part, version) for first, last, version in older for part in cut((first, last), rebuilt)]
    merged: list[OlderCode] = []
    for first, last, version in sorted(left):
        if merged and merged[-1][1] + 1 == first and merged[-1][2] == version:
            first = merged.pop()[0]
        merged.append((first, last, version))
    return tuple(merged)


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
        hours = committed.pending.union(each.hour for each in decision.deferred)
        why = decision.reason if decision.kind != "idle" or committed.pending else ""
    else:
        hours = committed.pending.union(decision.hour_numbers, decision.pending)
        why = stuck or (f"session {decision.session_id} is due: {decision.reason}" if hours else "")
    return PendingHours(tuple(sorted(hours)), why) if why else PendingHours()


# Entities


def rebuilt(inputs: PlanningInput, planned: Decision) -> tuple[int, ...]:
    """Return the planned hours, ascending, that were built before and may be recomputed for some entities only.

    Empty if the target declares no entity, or was never built.
    """
    mode, last_built = inputs.mode, inputs.committed.last_built
    if isinstance(planned, NoSession) or not isinstance(mode, Sequential) or mode.entity is None or last_built is None:
        return ()
    return tuple(hour for hour in planned.hour_numbers if hour <= last_built)


def narrowed(inputs: PlanningInput, planned: SessionPlan, *, rows: int, intact: bool) -> SessionPlan:
    """Return the plan with the decision whether it recomputes all entities or those that changed, and why.

    If the rows of one entity depend on no row of another, an entity without a changed source row comes out as it was
    published. This holds if everything that was read has been built, by the present code, and nobody else has written
    to the target. Then the cheaper way is chosen.

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
    committed, entity, last = inputs.committed, inputs.mode.entity, hours[-1]
    # Which rows changed is known if they were appended, or if the rows before and after can be read.
    unknown = [each for each in inputs.changes if each.since is None or (each.since_expired and not each.appends_only)]
    obstacle = ""
    if unknown:
        obstacle = f"the rows of {unknown[0].source} that were read before are not available for comparison"
    elif committed.skipped or any(hour <= last for hour in committed.pending):
        obstacle = "an earlier session has read the changes of hours that are pending or were skipped"
    elif committed.code_version != inputs.code_version or any(end >= hours[0] for _, end, _ in committed.older):
        obstacle = "some of the hours were built by other code"
    elif not intact:
        obstacle = "somebody else has written to the target"
    if obstacle:
        return replace(planned, notes=(*planned.notes, f"recomputes every {entity}: {obstacle}"))

    changed = 0
    for source in inputs.changes:
        came = sum(file.rows for file in source.added if file.hours and file.hours[0] <= last)
        went = sum(each.rows_gone for each in source.effective if each.hours and each.hours[0][0] <= last)
        changed += max(came, went)
    costs = f"which is cheaper: about {changed:,} source rows changed, and {rows:,} rows are published"
    if not is_cheaper(changed, rows, hours=len(hours), few=inputs.mode.few_rows):
        return replace(planned, notes=(*planned.notes, f"recomputes every {entity}, {costs}"))
    note = f"in hours that were built before, recomputes each {entity} that changed, {costs}"
    return replace(planned, notes=(*planned.notes, note), changed_through=last)


def is_cheaper(changed: int, rows: int, *, hours: int, few: int) -> bool:
    """Whether it is cheaper to recompute only the changed entities.

    Args:
        changed: Number of changed source rows; at most as many entities have changed.
        rows: Rows published in the hours, one for each entity and hour.
        hours: Number of the hours.
        few: Up to this many published rows, it is cheaper to recompute all.
    """
    return rows > few and changed <= MAX_CHANGED_ROWS and changed * hours * MIN_ENTITIES_PER_CHANGED <= rows
