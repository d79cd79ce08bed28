"""Reading the state of a target, and what others have done to the target since its last session.

The log is read before the target: read after another's first session, the target would look as if it had been replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import BooleanExpression, GreaterThanOrEqual, IsNull, LessThan
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.base.hours import hour_start
from lake_assets.errors import TargetDropped, TargetError, TargetReplaced, TargetRolledBack
from lake_assets.incremental.declaration import Source, Target
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.session_log import Before, SessionLog
from lake_assets.incremental.engine.source_changes import Watermark, changes, hours_present
from lake_assets.incremental.engine.state import State, carried_by, has_state, is_planned_on_parent, number_of


def read_state(catalog: Catalog, log: SessionLog, process: str, *, accept_rollback: bool = False) -> State:
    """Return the state of a target, with the target as it is now.

    It is that of the nearest ancestor of main that has one and is valid: the tag names it, or its session was planned
    on its parent. Any other session's snapshot was published by hand, and counts as a stranger's write.

    Args:
        accept_rollback: Whether to go on from an older state if the target was rolled back.

    Raises:
        TargetDropped: The target does not exist, but sessions have built it.
        TargetReplaced: The target is another table than the one that sessions have built.
        TargetRolledBack: Main goes back behind the last session without meeting it.
        StoredByNewerVersion: A later version has written the state.
    """
    number, committed = log.numbers(process)
    table = iceberg.find(catalog, process)
    if table is None:
        if committed:
            raise TargetDropped(process)
        return State(process, highest=committed)
    line = list(publish.ancestors(table))
    tag = publish.tag_id(table)
    tagged = table.snapshot_by_id(tag) if tag is not None else None
    carriers = [each for each in line if has_state(each) and (each.snapshot_id == tag or is_planned_on_parent(each))]
    if tagged is not None and has_state(tagged) and all(each.snapshot_id != tag for each in line):
        if _goes_back_behind(line, tagged):
            if not accept_rollback:
                raise TargetRolledBack(process, recorded=tagged.snapshot_id)
        else:  # what lies between main and the last session has expired
            carriers = [tagged]
    highest = max([committed, *map(number_of, line), *([number_of(tagged)] if tagged else [])])
    uuid = str(table.metadata.table_uuid)
    if carriers:
        state = carried_by(table, process, carriers[0])
        if state.uuid != uuid:
            raise TargetReplaced(process, expected=state.uuid, found=uuid)
        return replace(state, highest=highest)
    before = log.before(process)
    if before is not None:
        state = _of_version_before(process, table, before, max(highest, number), accept_rollback=accept_rollback)
        blocked = state.blocked  # it is in the log, too, and its number is not used yet
        return state if blocked is None else replace(state, highest=min(state.highest, blocked["n"] - 1))
    if committed and not accept_rollback:
        again = iceberg.find(catalog, process)
        if again is not None and again.metadata_location != table.metadata_location:  # another's first session
            return read_state(catalog, log, process)
        raise TargetReplaced(process, expected=None, found=uuid)
    return State(process, highest=highest, table=table)


def _goes_back_behind(line: Sequence[Snapshot], snapshot: Snapshot) -> bool:
    """Return whether main's line, as far as it is retained, goes back behind a snapshot that is not on it."""
    numbers = [each.sequence_number or 0 for each in line]
    return bool(numbers) and min(numbers) < (snapshot.sequence_number or 0)


def _of_version_before(process: str, table: Table, before: Before, highest: int, *, accept_rollback: bool) -> State:
    uuid = str(table.metadata.table_uuid)
    main = publish.main_id(table)
    is_other = uuid != before.uuid if before.uuid is not None else main is None and before.snapshot_id is not None
    if is_other:
        raise TargetReplaced(process, expected=before.uuid, found=uuid)
    snapshot = table.snapshot_by_id(before.snapshot_id) if before.snapshot_id is not None else None
    line = list(publish.ancestors(table))
    if snapshot is not None and not accept_rollback and all(each.snapshot_id != before.snapshot_id for each in line):
        raise TargetRolledBack(process, recorded=snapshot.snapshot_id)
    return State(
        process=process,
        uuid=uuid,
        highest=highest,
        watermarks=before.watermarks,
        committed=before.committed,
        snapshot_id=before.snapshot_id,
        sequence_number=before.sequence_number,
        table=table,
    )


def find_problem(catalog: Catalog, log: SessionLog, target: Target) -> TargetError | None:
    """Return why no session of a target can be planned, as the error that says so; None if one can."""
    try:
        read_state(catalog, log, target.table)
    except (TargetDropped, TargetReplaced, TargetRolledBack) as error:
        return error
    return None


@dataclass(frozen=True)
class OutsideChanges:
    """What others have done to a target since its last session.

    Attributes:
        hours: Hour → which snapshot touched it.
        may_have_strays: Whether there may be rows in hours that no session builds, or without a time.
    """

    hours: Mapping[int, str] = field(default_factory=dict)
    may_have_strays: bool = False


def outside_changes(state: State, target: Target, start: int) -> OutsideChanges:
    """Return what others have done to a target: the target is a source of itself.

    Of a table that no session has built, all hours are somebody else's: they are overwritten, never appended to. So are
    all hours if the snapshot of the last session is gone, and nothing says what has changed since.

    Args:
        state: The state of the target.
        target: The target.
        start: First hour of the pipeline.
    """
    table = state.table
    if table is None or publish.main_id(table) == state.snapshot_id:
        return OutsideChanges()
    if publish.only_compacted_since(table, state.snapshot_id):
        return OutsideChanges()
    if not state.watermarks:
        return OutsideChanges(
            dict.fromkeys(_present(target, table), f"{target.table} had rows before its first session")
        )
    own = Source(target.table, time_column=target.time_column)
    uuid = str(table.metadata.table_uuid)
    since = Watermark(target.table, uuid, state.snapshot_id, state.sequence_number)
    is_known = state.snapshot_id is None or table.snapshot_by_id(state.snapshot_id) is not None
    if not is_known or publish.main_id(table) is None:
        every = f"{target.table} has no history back to snapshot {state.snapshot_id}, which its last session published"
        first, last = state.committed.span or (0, -1)
        hours_known = target.grain.whole(range(max(first, start), last + 1)).union(_present(target, table))
        return OutsideChanges(dict.fromkeys(sorted(hours_known), every), may_have_strays=True)
    found = changes(table, own, since, start=start)
    hours: dict[int, str] = {}
    for snapshot in found.effective:
        why = f"{snapshot.operation} {snapshot.snapshot_id} of {target.table}, which no session made"
        for first, last in snapshot.hours:
            for hour in range(first, last + 1):
                hours.setdefault(hour, why)
    touched = target.grain.whole(hours)
    reasons = {hour: hours.get(hour) or next(iter(hours.values())) for hour in sorted(touched)}
    return OutsideChanges(reasons, may_have_strays=bool(found.effective))


def _present(target: Target, table: Table) -> list[int]:
    return sorted(target.grain.whole(hours_present(table, target.time_column)))


def delete_stray_rows(catalog: Catalog, target: Target, first: int, last: int | None) -> int:
    """Delete the rows of a target outside of a range of hours, and those without a time: no session overwrites them.

    Args:
        catalog: The catalog of the target.
        target: The target.
        first: The first hour of the range.
        last: Its last hour, inclusive; None if it has no end.

    Returns:
        How many rows were deleted.
    """
    column = target.time_column
    # Rows without a time go first: pyiceberg cannot compare the partition that has none with a time.
    # The expressions are typed as their JSON form, not as their constructors.
    outside: list[BooleanExpression] = [
        IsNull(column),  # type: ignore[call-arg, arg-type]
        LessThan(column, hour_start(first).isoformat()),  # type: ignore[call-arg, arg-type]
    ]
    if last is not None:
        after = hour_start(last + 1).isoformat()
        outside.append(GreaterThanOrEqual(column, after))  # type: ignore[call-arg, arg-type]
    return sum(_delete(catalog, target.table, condition) for condition in outside)


def _delete(catalog: Catalog, name: str, condition: BooleanExpression) -> int:
    for attempt in iceberg.retrying(ValidationException):
        with attempt:
            table = iceberg.load(catalog, name)
            rows = table.scan(condition).count()
            if rows:
                table.delete(condition)
            return rows
    raise AssertionError("unreachable: the last attempt returns or raises")
