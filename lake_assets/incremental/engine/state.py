"""The state of a target: how far its sources are read, and which hours wait. It stands in the target itself.

The snapshot that a session publishes has the state in its summary, as JSON, and one commit makes it main and moves the
tag `lake-published` to it. So rows and state cannot differ, and an attempt that dies before the commit has left nothing
that counts. The state of a target is that of the nearest ancestor of main which has a valid one. What others have done
since is found by comparing that snapshot with main: the target is a source of itself.

The session log is asked for the number of the last session, and about a target without a state: whether its sessions
have built another table, or whether the version before, whose state was the log, has built this one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.base.hours import ranges
from lake_assets.errors import (
    StoredByNewerVersion,
    TargetRolledBack,
    target_dropped,
    target_replaced,
)
from lake_assets.incremental.declaration import Source, Target
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.iceberg import hours_present
from lake_assets.incremental.engine.model import Committed, SessionPlan, Waiting, source_range
from lake_assets.incremental.engine.source_changes import Totals, Watermark, changes

SESSION, NUMBER, BASE, STATE = "lake.session", "lake.n", "lake.base", "lake.state"
"""Keys of a snapshot's summary: the session, its number, main as it was when the session was planned, the state."""

HOURS = "lake.hours."
"""Beginning of the names of table properties with long lists of hours."""

OPENED = "lake.opened"
"""Table property: the session that another program writes, as JSON. It blocks nobody; any session's commit ends it."""

BLOCKED = "lake.blocked"
"""Table property: the session that an audit stopped as a whole, as JSON. Any session's commit ends it."""

FAILED = "lake.failed"
"""Table property: the session that ended with an error last, as JSON. Any session's commit ends it."""

FORMAT = 1
"""Of the state. A version reads all formats up to its own."""

LONGEST = 2_000
"""Characters of lists of hours up to which they stand in the summary, which each metadata file repeats. Longer ones,
after an outage or a change of code, are a table property, named by its hash, which the same commit sets."""


@dataclass(frozen=True)
class State:
    """What the sessions of a target have left.

    Attributes:
        process: The target's table, `namespace.name`.
        uuid: Its UUID; None before the first session.
        n: Number of the last session, from 1; 0 before the first, and for a state of the version before.
        highest: The highest number that any session is known to have had. Numbers are not used again.
        session_id: The last session.
        watermarks: Source → the snapshot up to which it is read.
        committed: What is built, and what waits.
        log: What the session log says of the session, for one that dies after its commit and before its row.
        snapshot_id: The snapshot up to which all rows are the sessions'; None before the first session.
        sequence_number: Of that snapshot.
        table: The target as it was loaded with the state; None if it does not exist.
    """

    process: str
    uuid: str | None = None
    n: int = 0
    highest: int = 0
    session_id: str = ""
    watermarks: Mapping[str, Watermark] = field(default_factory=dict)
    committed: Committed = field(default_factory=Committed)
    log: Mapping[str, Any] = field(default_factory=dict)
    snapshot_id: int | None = None
    sequence_number: int = 0
    table: Table | None = field(default=None, compare=False, repr=False)

    @property
    def opened(self) -> Mapping[str, Any] | None:
        """The session that another program writes; None if there is none, or main has moved since."""
        found = self.opened_on_any_main
        if found is None or self.table is None:
            return None
        base = publish.base_of(self.table)
        return found if (found["main"], found["tag"]) == (base.main, base.tag) else None

    @property
    def opened_on_any_main(self) -> Mapping[str, Any] | None:
        """The session that another program writes, also if main has moved since, so that it cannot be published."""
        found = self._property(OPENED)
        return found if found is not None and found["n"] > self.n else None

    @property
    def blocked(self) -> Mapping[str, Any] | None:
        """The session that an audit stopped as a whole: session_id, code_version, failed (audit → counts), run_id."""
        return self._property(BLOCKED)

    @property
    def failed(self) -> Mapping[str, Any] | None:
        """The session that ended with an error: session_id, code_version, what (kind of error), times, run_id."""
        return self._property(FAILED)

    def _property(self, name: str) -> Mapping[str, Any] | None:
        text = self.table.metadata.properties.get(name) if self.table is not None else None
        found: dict[str, Any] | None = json.loads(text) if text else None
        return found


def after_session(
    before: State,
    plan: SessionPlan,
    committed: Committed,
    *,
    pattern_id: int,
    run_id: str,
    started_at: datetime,
    rows_read: int = 0,
    unchanged: Iterable[int] = (),
) -> State:
    """Return the state after a session.

    Args:
        before: The state that the session was planned on.
        plan: Its plan.
        committed: What is built, and what waits, after it.
        pattern_id: The `etl_pattern_id` of the target's mode. This and what follows is for the log.
        run_id: The run that makes it.
        started_at: When it began.
        rows_read: Rows of the driving source.
        unchanged: Planned hours whose rows equal the published ones.
    """
    return State(
        process=before.process,
        uuid=str(before.table.metadata.table_uuid) if before.table is not None else before.uuid,
        n=before.highest + 1,
        highest=before.highest + 1,
        session_id=plan.session_id,
        watermarks={each.source: each.mark for each in plan.sources},
        committed=committed,
        log={
            "kind": plan.kind,
            "load": plan.load,
            "pattern": pattern_id,
            "run": run_id,
            "at": started_at.isoformat(),
            "hours": [list(each) for each in ranges(plan.hour_numbers)],
            "why": plan.reason[:200],
            "from": {name: [m.snapshot_id, m.sequence_number, m.timestamp_ms] for name, m in before.watermarks.items()},
            "read": rows_read,
            "unchanged": [list(each) for each in ranges(unchanged)],
        },
        table=before.table,
    )


def carrying_plan(state: State, why: str) -> SessionPlan:
    """Return the plan of a session that builds nothing and leaves the watermarks where they are."""
    return SessionPlan(
        process=state.process,
        session_id=f"{why}-{state.process.split('.')[-1]}-{state.highest + 1}",
        kind="rebuild",
        load="none",
        sources=tuple(source_range(mark, mark.snapshot_id) for mark in state.watermarks.values()),
        hours=(),
        notes=(f"{why}: the state was carried on, and no row was built",),
    )


# In the summary of a snapshot


def summary_of(state: State, base: publish.Base) -> tuple[dict[str, str], dict[str, str]]:
    """Return a state as fields of a snapshot's summary, and the table properties that these need."""
    committed, log = state.committed, dict(state.log)
    of_reason: dict[Waiting, list[int]] = {}
    for hour in sorted(committed.waiting):
        of_reason.setdefault(committed.waiting[hour], []).append(hour)
    hours: str | dict[str, Any] = {
        # Equal entries once, each with its hours: first and last of each range.
        "waiting": [[*astuple(waits), *ranges(found)] for waits, found in of_reason.items()],
        "older": committed.older,
        "planned": log.pop("hours", []),
        "unchanged": log.pop("unchanged", []),
    }
    properties = {}
    text = _json(hours)
    if len(text) > LONGEST:
        hours = _property_of(text)
        properties[hours] = text
    encoded = {
        "v": FORMAT,
        "uuid": state.uuid,
        "sources": {name: astuple(mark)[1:] for name, mark in state.watermarks.items()},
        "hours": hours,
        "last": committed.last_built,
        "through": committed.complete_through,
        "code": committed.code_version,
        "span": committed.span,
        "chunk": committed.chunk_hours,
        "log": log,
    }
    summary = {SESSION: state.session_id, NUMBER: str(state.n), BASE: str(base.main), STATE: _json(encoded)}
    return summary, properties


def _stored_in(snapshot: Snapshot, table: Table, process: str) -> State:
    """Return the state in the summary of a snapshot.

    If somebody has removed or changed the property with its hours, it has no watermarks: all is built again.
    """
    summary = publish.summary_of(snapshot)
    stored = json.loads(summary[STATE])
    if stored["v"] > FORMAT:
        raise StoredByNewerVersion(f"The state of {process}", found=stored["v"], readable=FORMAT)
    state = State(process, stored["uuid"], n=int(summary[NUMBER]), session_id=summary[SESSION], table=table)
    hours = stored["hours"]
    if isinstance(hours, str):
        text = table.metadata.properties.get(hours, "")
        if _property_of(text) != hours:
            return state
        hours = json.loads(text)
    watermarks = {}
    for name, (*mark, totals, last_hour) in stored["sources"].items():
        values = [*mark, Totals(*totals) if totals else None, last_hour]
        watermarks[name] = Watermark(name, *values)
    fields = len(Waiting.__dataclass_fields__)
    waiting: dict[int, Waiting] = {}
    for entry in hours["waiting"]:
        for first, last in entry[fields:]:
            waiting.update(dict.fromkeys(range(first, last + 1), Waiting(*entry[:fields])))
    return replace(
        state,
        watermarks=watermarks,
        committed=Committed(
            waiting=dict(sorted(waiting.items())),
            last_built=stored["last"],
            complete_through=stored["through"],
            code_version=stored["code"],
            older=tuple((first, last, version) for first, last, version in hours["older"]),
            span=tuple(stored["span"]) if stored["span"] else None,
            chunk_hours=stored["chunk"],
        ),
        log=stored["log"] | {"hours": hours["planned"], "unchanged": hours["unchanged"]} if stored["log"] else {},
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number or 0,
    )


def read_before(state: State, sessions: Collection[str]) -> Mapping[str, Watermark]:
    """Return source → how far it was read before the oldest of some sessions of a target, as far as that is retained.

    A source that had not been read before is left out: it was read from its beginning.
    """
    found: Mapping[str, Sequence[Any]] = {}
    left = set(sessions)
    snapshots = publish.ancestors(state.table) if state.table is not None and left else ()
    for snapshot in snapshots:
        if has_state(snapshot):
            summary = publish.summary_of(snapshot)
            found = json.loads(summary[STATE])["log"].get("from", {})
            left.discard(summary[SESSION])
        if not left:
            break
    since = {}
    for name, (snapshot_id, sequence_number, timestamp_ms) in found.items():
        uuid = state.watermarks[name].table_uuid if name in state.watermarks else ""
        since[name] = Watermark(name, uuid, snapshot_id, sequence_number, timestamp_ms)
    return since


def has_state(snapshot: Snapshot) -> bool:
    """Return whether a session has left its state in a snapshot."""
    return STATE in publish.summary_of(snapshot)


def number_of(snapshot: Snapshot) -> int:
    """Return the number of the session that staged a snapshot; 0 if none did."""
    return int(publish.summary_of(snapshot).get(NUMBER, 0))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _property_of(hours: str) -> str:
    """Return the name of the property for long lists of hours."""
    return f"{HOURS}{hashlib.sha256(hours.encode()).hexdigest()[:16]}"


# Reading and committing


class Log(Protocol):
    """What reading a state may ask of the session log: see `SessionLog`."""

    def numbers(self, process: str) -> tuple[int, int]: ...

    def before(self, process: str) -> State | None: ...


def read_state(catalog: Catalog, log: Log, process: str, *, accept_rollback: bool = False) -> State:
    """Return the state of a target, with the target as it is now.

    Args:
        accept_rollback: Whether to go on from an older state if the target was rolled back.

    Raises:
        TargetGone: The table that sessions have built was dropped or replaced.
        TargetRolledBack: Main goes back behind the last session without meeting it.
        StoredByNewerVersion: A later version has written the state.
    """
    # The log is read first: read after another's first session, the target would look as if it had been replaced.
    number, committed = log.numbers(process)
    table = iceberg.find(catalog, process)
    if table is None and committed:
        raise target_dropped(process)
    if table is None:
        return State(process)

    line = list(publish.ancestors(table))
    retained = {each.snapshot_id for each in line}
    tag = publish.tag_id(table)
    tagged = table.snapshot_by_id(tag) if tag is not None else None
    if tagged is not None and not has_state(tagged):
        tagged = None
    # Of the states on main's line, those count whose session was planned on the snapshot's parent (None also if that
    # has expired). Any other one was published by a person: it counts as a stranger's write.
    carriers = []
    for each in line:
        planned_on_parent = str(each.parent_snapshot_id) in ("None", publish.summary_of(each).get(BASE))
        if has_state(each) and (each.snapshot_id == tag or planned_on_parent):
            carriers.append(each)
    if tagged is not None and tag not in retained:
        if line and min(each.sequence_number or 0 for each in line) < (tagged.sequence_number or 0):
            if not accept_rollback:
                raise TargetRolledBack(process, recorded=tagged.snapshot_id)
        else:  # what lies between main and the last session has expired
            carriers = [tagged]
    highest = max([committed, *(number_of(each) for each in (*line, tagged) if each is not None)])
    uuid = str(table.metadata.table_uuid)
    if carriers:
        state = _stored_in(carriers[0], table, process)
        if state.uuid != uuid:
            raise target_replaced(process, expected=state.uuid, found=uuid)
        return replace(state, highest=highest)

    before = log.before(process)
    if before is not None:
        last = before.snapshot_id
        if before.uuid != uuid:
            raise target_replaced(process, expected=before.uuid, found=uuid)
        if last is not None and last not in retained and table.snapshot_by_id(last) and not accept_rollback:
            raise TargetRolledBack(process, recorded=last)
        state = replace(before, highest=max(highest, number), table=table)
        blocked = state.blocked  # it is in the log, too, and its number is not used yet
        return state if blocked is None else replace(state, highest=min(state.highest, blocked["n"] - 1))
    if committed and not accept_rollback:
        now = iceberg.load(catalog, process)
        if now.metadata_location != table.metadata_location:  # another process has just ended the first session
            return read_state(catalog, log, process)
        raise target_replaced(process, expected=None, found=uuid)
    return State(process, highest=highest, table=table)


def published_state(catalog: Catalog, process: str) -> State | None:
    """Return the state of the session that was published last, also if main was rolled back behind it since."""
    table = iceberg.find(catalog, process)
    tag = None if table is None else publish.tag_id(table)
    snapshot = None if table is None or tag is None else table.snapshot_by_id(tag)
    if table is None or snapshot is None or not has_state(snapshot):
        return None
    state = _stored_in(snapshot, table, process)
    return state if state.uuid == str(table.metadata.table_uuid) else None


def commit_state(catalog: Catalog, planned_on: Table, after: State, snapshot_id: int | None) -> State:
    """End a session: its snapshot becomes main, in one commit.

    Args:
        planned_on: The target as it was when the session was planned.
        after: The state after the session.
        snapshot_id: The staged snapshot, which has the state; None for a session without rows: an empty snapshot.

    Returns:
        The state as it is stored.

    Raises:
        PublishConflict: Main or the tag is not as planned.
    """
    base = publish.base_of(planned_on)
    summary, properties = summary_of(after, base)
    named = set(properties)  # lists of hours that this or a retained snapshot names stay
    for snapshot in planned_on.metadata.snapshots:
        if has_state(snapshot):
            hours = json.loads(publish.summary_of(snapshot)[STATE])["hours"]
            named.update([hours] if isinstance(hours, str) else [])
    unneeded = [key for key in planned_on.metadata.properties if key.startswith(HOURS) and key not in named]
    changed: dict[str, str | None] = {
        OPENED: None,
        BLOCKED: None,
        FAILED: None,
        iceberg.SESSION_PROPERTY: after.session_id,
        **properties,
        **dict.fromkeys(unneeded),
        **iceberg.complete_through_property(after.committed.complete_through),
    }
    table, stored = publish.end_session(catalog, after.process, base, snapshot_id, summary=summary, properties=changed)
    main = table.snapshot_by_id(stored) if stored is not None else None
    number = main.sequence_number or 0 if main else 0
    return replace(after, snapshot_id=stored, sequence_number=number, table=table)


# What others do to a target


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
        start: First hour of the pipeline.
    """
    table, since = state.table, state.snapshot_id
    if table is None or publish.main_id(table) == since or publish.only_compacted_since(table, since):
        return OutsideChanges()
    if not state.watermarks:
        return OutsideChanges(_hours_with(target, table, f"{target.table} had rows before its first session"))
    is_known = since is None or table.snapshot_by_id(since) is not None
    if not is_known or publish.main_id(table) is None:
        why = f"{target.table} has no history back to snapshot {since}, which its last session published"
        first, last = state.committed.span or (0, -1)
        built = target.grain.whole(range(max(first, start), last + 1))
        every = dict.fromkeys(built, why) | _hours_with(target, table, why)
        return OutsideChanges(dict(sorted(every.items())), may_have_strays=True)
    mark = Watermark(target.table, str(table.metadata.table_uuid), since, state.sequence_number)
    found = changes(table, Source(target.table, time_column=target.time_column), mark, start=start)
    hours: dict[int, str] = {}
    for snapshot in found.effective:
        why = f"{snapshot.operation} {snapshot.snapshot_id} of {target.table}, which no session made"
        for first, last in snapshot.hours:
            for hour in range(first, last + 1):
                hours.setdefault(hour, why)
    whole = sorted(target.grain.whole(hours))
    reasons = {hour: hours.get(hour) or next(iter(hours.values())) for hour in whole}
    return OutsideChanges(reasons, may_have_strays=bool(found.effective))


def _hours_with(target: Target, table: Table, why: str) -> dict[int, str]:
    """Return the hours for which a target has data files, in whole partitions, each with a reason."""
    return dict.fromkeys(sorted(target.grain.whole(hours_present(table, target.time_column))), why)
