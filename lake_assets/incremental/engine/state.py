"""The state of a target: how far its sources are read, which hours wait, and what the session log says of the session.

It stands in the summary of the snapshot that the last session published, as JSON: so one commit publishes rows and
moves the state, and an attempt that dies before it has left nothing that counts. `publish` makes that commit.
Lists of hours are long only after an outage or a change of code; if they are longer than `LONGEST`, they are a table
property, named by its hash, which the same commit sets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.base.hours import ranges
from lake_assets.errors import StoredByNewerVersion
from lake_assets.incremental.engine import publish
from lake_assets.incremental.engine.model import Committed, SessionPlan, Waiting
from lake_assets.incremental.engine.source_changes import Totals, Watermark

SESSION, NUMBER, BASE, STATE = "lake.session", "lake.n", "lake.base", "lake.state"
"""Keys of a snapshot's summary: the session, its number, main as it was when the session was planned, the state."""

HOURS = "lake.hours."
"""Beginning of the names of table properties with long lists of hours."""

OPENED = "lake.opened"
"""Table property: the session that another program writes, as JSON. It blocks nobody; any session's commit ends it."""

BLOCKED = "lake.blocked"
"""Table property: the session that an audit stopped as a whole, as JSON. Any session's commit ends it."""

FORMAT = 1
"""Of the state. A version reads all formats up to its own."""

LONGEST = 2_000
"""Characters of lists of hours up to which they stand in the summary, which each metadata file repeats."""


@dataclass(frozen=True)
class State:
    """What the sessions of a target have left.

    Attributes:
        process: The target's table, `namespace.name`.
        uuid: Its UUID; None before the first session.
        n: Number of the last session, from 1; 0 before the first.
        highest: The highest number that any session is known to have had. Numbers are not used again.
        session_id: The last session.
        watermarks: Source → the snapshot up to which it is read.
        committed: What is built, and what waits.
        log: What the log says of the session: see `logged`.
        snapshot_id: The snapshot whose summary has the state; None before the first session.
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

    def _property(self, name: str) -> dict[str, Any] | None:
        text = self.table.metadata.properties.get(name) if self.table is not None else None
        found: dict[str, Any] | None = json.loads(text) if text else None
        return found


def after_session(before: State, plan: SessionPlan, committed: Committed, log: Mapping[str, Any], n: int) -> State:
    """Return the state after a session.

    Args:
        before: The state that the session was planned on.
        plan: The plan of the session.
        committed: What is built, and what waits, after it.
        log: What the log will say of it: see `logged`.
        n: Its number.
    """
    watermarks = {}
    for source in plan.sources:
        watermarks[source.source] = Watermark(
            source=source.source,
            table_uuid=source.table_uuid,
            snapshot_id=source.to_snapshot_id,
            sequence_number=source.to_sequence_number,
            timestamp_ms=source.to_timestamp_ms,
            complete_through=source.complete_through,
            totals=source.totals,
            last_hour=source.last_hour,
        )
    return replace(
        before,
        uuid=str(before.table.metadata.table_uuid) if before.table is not None else before.uuid,
        n=n,
        highest=n,
        session_id=plan.session_id,
        watermarks=watermarks,
        committed=committed,
        log=log,
        snapshot_id=None,
        sequence_number=0,
    )


def logged(
    before: State,
    plan: SessionPlan,
    *,
    pattern_id: int,
    run_id: str,
    started_at: datetime,
    rows_read: int = 0,
    unchanged: Iterable[int] = (),
) -> dict[str, Any]:
    """Return what the log needs of a session that dies after its commit and before its row."""
    return {
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
    }


def summary_of(state: State, base: publish.Base) -> tuple[dict[str, str], dict[str, str]]:
    """Return a state as fields of a snapshot's summary, and the table properties that these need."""
    committed, log = state.committed, dict(state.log)
    hours: str | dict[str, Any] = {
        "waiting": _encoded_waiting(committed.waiting),
        "older": [list(each) for each in committed.older],
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
        "sources": {name: _encoded_mark(mark) for name, mark in state.watermarks.items()},
        "hours": hours,
        "last": committed.last_built,
        "through": committed.complete_through,
        "code": committed.code_version,
        "span": committed.span,
        "chunk": committed.chunk_hours,
        "log": log,
    }
    summary = {
        SESSION: state.session_id,
        NUMBER: str(state.n),
        BASE: str(base.main),
        STATE: _json(encoded),
    }
    return summary, properties


def carried_by(table: Table, process: str, snapshot: Snapshot) -> State:
    """Return the state in the summary of a snapshot.

    If somebody has removed or changed the property with its waiting hours, it has no watermarks: all is built again.

    Raises:
        StoredByNewerVersion: A later version has written it.
    """
    summary = publish.summary_of(snapshot)
    stored = json.loads(summary[STATE])
    if stored["v"] > FORMAT:
        raise StoredByNewerVersion(f"The state of {process}", found=stored["v"], readable=FORMAT)
    state = State(
        process=process,
        uuid=stored["uuid"],
        n=int(summary[NUMBER]),
        session_id=summary[SESSION],
        table=table,
    )
    hours = _hours_of(table, stored["hours"])
    if hours is None:
        return state
    return replace(
        state,
        watermarks={name: _decoded_mark(name, values) for name, values in stored["sources"].items()},
        committed=Committed(
            waiting=_decoded_waiting(hours["waiting"]),
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


def is_planned_on_parent(snapshot: Snapshot) -> bool:
    """Return whether a session's snapshot follows the main that the session was planned on.

    Another one was published by a person, although the session was refused or had died: it counts as a stranger's.
    """
    parent = snapshot.parent_snapshot_id  # None also if pyiceberg has expired it
    return parent is None or str(parent) == publish.summary_of(snapshot).get(BASE)


def unneeded_properties(table: Table, kept: Iterable[str]) -> dict[str, None]:
    """Return the properties with waiting hours that no retained snapshot names any more, to be removed."""
    named = set(kept)
    for snapshot in table.metadata.snapshots:
        if has_state(snapshot):
            hours = json.loads(publish.summary_of(snapshot)[STATE])["hours"]
            named.update([hours] if isinstance(hours, str) else [])
    return {name: None for name in table.metadata.properties if name.startswith(HOURS) and name not in named}


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _encoded_mark(mark: Watermark) -> list[Any]:
    totals = list(astuple(mark.totals)) if mark.totals else None
    return [
        mark.table_uuid,
        mark.snapshot_id,
        mark.sequence_number,
        mark.timestamp_ms,
        mark.complete_through,
        totals,
        mark.last_hour,
    ]


def _decoded_mark(name: str, values: Sequence[Any]) -> Watermark:
    uuid, snapshot_id, sequence_number, timestamp_ms, through, totals, last_hour = values
    known = Totals(*totals) if totals else None
    return Watermark(name, uuid, snapshot_id, sequence_number, timestamp_ms, through, known, last_hour)


def _encoded_waiting(waiting: Mapping[int, Waiting]) -> list[list[Any]]:
    """Return equal entries once, each with its hours: first and last of each range."""
    hours: dict[Waiting, list[int]] = {}
    for hour in sorted(waiting):
        hours.setdefault(waiting[hour], []).append(hour)
    return [[*astuple(waits), *[list(each) for each in ranges(of)]] for waits, of in hours.items()]


def _hours_of(table: Table, stored: str | dict[str, Any]) -> dict[str, Any] | None:
    """Return the lists of hours; None if they are in a property that is not as it was set."""
    if not isinstance(stored, str):
        return stored
    text = table.metadata.properties.get(stored, "")
    found: dict[str, Any] | None = json.loads(text) if _property_of(text) == stored else None
    return found


def _decoded_waiting(entries: Iterable[Sequence[Any]]) -> dict[int, Waiting]:
    fields = len(Waiting.__dataclass_fields__)
    found: dict[int, Waiting] = {}
    for entry in entries:
        waits = Waiting(*entry[:fields])
        for first, last in entry[fields:]:
            found.update(dict.fromkeys(range(first, last + 1), waits))
    return dict(sorted(found.items()))


def _property_of(hours: str) -> str:
    """Return the name of the property for long lists of hours."""
    return f"{HOURS}{hashlib.sha256(hours.encode()).hexdigest()[:16]}"
