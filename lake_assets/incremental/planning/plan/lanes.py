"""Which changed hours of a stateless target wait, by its policy for late rows (`Defer`), and what is read once they
are due. Pure: the clock is an input.

An hour may wait if the target was complete through it, it is old enough, and all that changed it are appended rows.
Deletions, corrections and everything that a history does not show in full are never deferred. All hours that wait are
due together: when one of them has waited for the declared time, or when too many rows or hours wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

from lake_assets.base.timestamps import milliseconds, moment
from lake_assets.incremental.declaration import Defer
from lake_assets.incremental.planning.changes import SnapshotChange
from lake_assets.incremental.planning.changes.data_files import FileChange
from lake_assets.incremental.planning.deferred import DeferredHour, LateRows, due_at, in_words
from lake_assets.incremental.planning.plan.complete_hours import sources_complete_through
from lake_assets.incremental.planning.plan.planning_input import PlanningInput
from lake_assets.incremental.planning.session import NoSession

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
        in_words(waiting, inputs.late, inputs.grain),
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
