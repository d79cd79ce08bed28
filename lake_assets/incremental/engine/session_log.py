"""The session log, tables for people and SQL: `etl.session`, `etl.high_watermark` and `etl.quarantine`.

A session has a row in `etl.session`, then one for each source in `etl.high_watermark`, which so says that both are
there. They are written after the commit of the target, in one commit for all sessions of a catch-up. If a process dies
before it has written a row, the next command or run that uses the target writes it from the state.

The truth is the state in the target's own snapshots (`state`). Two things are read from here by others than people: the
number of a target's last session, and the last state of a home of the version before, which had a row for each move of
a session.

Rows are found by partition and by the bounds of `revision`, the number of a session among those of its target. Small
files of a target are merged now and then, so that a year of sessions is a few dozen files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThan, In, IsNull
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, StringType

from lake_assets.base.hours import hour_key, hour_start, parse_hour
from lake_assets.base.recent import Recent
from lake_assets.errors import StoredByNewerVersion
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.iceberg import (
    QUARANTINE,
    OneCopyTransaction,
    arrow_rows,
    entries,
    high_watermark_table,
    naming_damaged_file,
    session_table,
)
from lake_assets.incremental.engine.model import (
    AuditResult,
    Committed,
    DeferredHour,
    HeldHour,
    Kind,
    PlannedHour,
    RowCounts,
    SessionPlan,
    SessionReport,
    Waiting,
    held_by,
    source_range,
)
from lake_assets.incremental.engine.source_changes import HOUR_MILLISECONDS, Totals, Watermark
from lake_assets.incremental.engine.state import State

SESSION_COLUMNS = {
    "process_name": "string",
    "session_id": "string",
    "revision": "long",
    "etl_pattern_id": "int",
    "state": "string",
    "kind": "string",
    "load": "string",
    "sources": "string",
    "processing_uris": "string",
    "from_event_date": "string",
    "from_event_hour": "int",
    "to_event_date": "string",
    "to_event_hour": "int",
    "from_landing_date": "string",
    "from_landing_hour": "int",
    "to_landing_date": "string",
    "to_landing_hour": "int",
    "hours": "string",
    "built_hours": "string",
    "pending_hours": "string",
    "skipped_hours": "string",
    "unchanged_hours": "string",
    "held_hours": "string",
    "complete_through": "string",
    "rows_read": "long",
    "rows_written": "long",
    "audits": "string",
    "staging_number": "int",
    "staged_snapshot_id": "long",
    "published_snapshot_id": "long",
    "run_id": "string",
    "code_version": "string",
    "started_at": "timestamptz",
    "ended_at": "timestamptz",
    "plan": "string",
    # Columns of later versions: a table of an older one gets them, and its rows have no value in them.
    "from_processing_date": "string",
    "from_processing_hour": "int",
    "to_processing_date": "string",
    "to_processing_hour": "int",
}
WATERMARK_COLUMNS = {
    "process_name": "string",
    "source": "string",
    "revision": "long",
    "table_uuid": "string",
    "latest_snapshot_id": "long",
    "previous_snapshot_id": "long",
    "sequence_number": "long",
    "snapshot_timestamp_ms": "long",
    "complete_through": "string",
    "session_id": "string",
    "metadata": "string",
    # Columns of later versions: a table of an older one gets them, and its rows have no value in them.
    "previous_sequence_number": "long",
    "previous_snapshot_timestamp_ms": "long",
    "target_uuid": "string",
    "target_snapshot_id": "long",
    "target_sequence_number": "long",
    "target_rows": "long",
}
QUARANTINE_COLUMNS = {
    "target": "string",
    "source": "string",
    "row_hash": "string",
    "session_id": "string",
    "reason": "string",
    "row": "string",
}
FORMAT = 2
"""Of these tables. A version reads all formats up to its own. In the first, the log was the state."""

FORMAT_PROPERTY = "lake.log-format"
LOG_PROPERTIES = {
    # One attempt only: a retried append would follow a state that nobody has compared.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
}

KEEP_SNAPSHOTS = 5
"""Snapshots of a log table that are kept for readers at work. Its rows are the history; each one slows a commit."""

MERGE_FILES = 25
"""Number of sessions of a target after which its small files are merged."""

MERGE_ROWS = 1000
"""Rows from which on a file is not small any more."""

COMMIT_SECONDS = 30
"""How long a commit is tried again while others commit first."""

MOVES = 6
"""Revisions that a session of the version before had at most, as a rule; if there are more, more of the log is read."""

FORGETS = "starts the damaged part of the log again; the targets keep their state, which is in their own tables"
"""What `lake doctor --repair` does about a damaged file of the log."""

EXTERNAL_RUN = "lake session"
"""Stands for the run in a session that another program writes."""

FINISHED = ("published", "committed")

STORED_KINDS: Mapping[str, Kind] = {"skipped": "skipped", "pending": "changed", "follows": "follows", "held": "held"}
"""List of hours in a stored plan → why they wait."""

Row = Mapping[str, Any]
PLAN: TypeAdapter[SessionPlan] = TypeAdapter(SessionPlan)  # but what waits: see `plan_from_json`
_AUDITS: TypeAdapter[tuple[AuditResult, ...]] = TypeAdapter(tuple[AuditResult, ...])


@dataclass(frozen=True)
class SessionRecord:
    """One session, as the log has it.

    Attributes:
        revision: Number of the session among those of its process.
        pattern_id: The `etl_pattern_id` of the target's mode.
        state: `committed`, or `blocked` if an audit stopped it. The version before had more.
        built: Hours that the published snapshot wrote or emptied.
        unchanged: Planned hours whose rows equal the published ones.
    """

    plan: SessionPlan
    state: Literal["planned", "staged", "published", "committed", "blocked", "abandoned"]
    revision: int
    pattern_id: int
    run_id: str
    started_at: datetime
    ended_at: datetime | None = None
    staged_snapshot_id: int | None = None
    published_snapshot_id: int | None = None
    built: tuple[int, ...] = ()
    unchanged: tuple[int, ...] = ()
    rows_read: int = 0
    rows_written: int = 0
    audits: tuple[AuditResult, ...] = ()

    @property
    def held(self) -> tuple[HeldHour, ...]:
        """Planned hours that audits held back while the others were published; none for a blocked session."""
        if self.state == "blocked":
            return ()
        return held_by(self.plan, self.audits)

    @property
    def published(self) -> tuple[int, ...]:
        """The hours that it wrote or emptied, if it has ended."""
        return self.built if self.state == "committed" else ()

    @property
    def failed_audits(self) -> tuple[AuditResult, ...]:
        """The results of the audits that failed."""
        return tuple(audit for audit in self.audits if not audit.passed)

    @property
    def seconds(self) -> float | None:
        """Wall time from planning to the end; None while it is open."""
        return (self.ended_at - self.started_at).total_seconds() if self.ended_at else None

    def report(
        self,
        *,
        counts: RowCounts | None = None,
        seconds: Mapping[str, float] | None = None,
        released: tuple[int, ...] = (),
    ) -> SessionReport:
        """Return the report of a session, with what is not stored, if it is known."""
        is_blocked = self.state == "blocked"
        counts = counts or RowCounts()
        return SessionReport(
            plan=self.plan,
            status="blocked" if is_blocked else "committed",
            hours_built=() if is_blocked else self.built,
            hours_unchanged=() if is_blocked else self.unchanged,
            held=self.held,
            staged_snapshot_id=self.staged_snapshot_id,
            published_snapshot_id=self.published_snapshot_id,
            rows_read=self.rows_read,
            rows_written=self.rows_written,
            rows_duplicate=counts.duplicates,
            rows_quarantined=counts.quarantined,
            rows_late=counts.late,
            lateness_p50_minutes=counts.lateness_p50,
            lateness_p95_minutes=counts.lateness_p95,
            lateness_max_minutes=counts.lateness_max,
            released=released,
            seconds=seconds or {},
            audits=self.audits,
            data_version=str(self.published_snapshot_id) if self.published_snapshot_id else None,
        )


class SessionLog:
    """Writes and reads the log. One log serves all targets of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.sessions = session_table(catalog)
        self.watermarks = high_watermark_table(catalog)
        self._unwritten: list[tuple[SessionRecord, State]] = []
        self._is_batch = False

    def add(self, record: SessionRecord, state: State | None = None) -> None:
        """Write a session, at once or with the others of a batch. One that was stopped has no state."""
        if state is None:
            self._append(self.sessions, [session_row(record)])
            return
        self._unwritten.append((record, state))
        if not self._is_batch:
            self.flush()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Write the sessions of the block in one commit at its end, or before the next session of the same target."""
        self._is_batch = True
        try:
            yield
        finally:
            self._is_batch = False
            self.flush()

    def complete(self, state: State) -> None:
        """Write the session of a state, if the process that committed it died before it had."""
        self.flush(state.process)
        if state.n and state.log and self._newest(self.watermarks, state.process) < state.n:
            self.add(record_of(state), state)

    def flush(self, process: str | None = None) -> None:
        """Write what is not written yet; if a target is named, only if there is a session of it."""
        if process is None or any(state.process == process for _, state in self._unwritten):
            written, self._unwritten = self._unwritten, []
            self._append(self.sessions, [session_row(record) for record, _ in written])
            self._append(self.watermarks, [row for _, state in written for row in _watermark_rows(state)])

    def _append(self, name: str, rows: Sequence[Row]) -> None:
        """Append those of some rows that the table lacks, in one commit.

        A row of a session that has ended replaces the one that another process made of its state meanwhile.
        """
        if not rows:
            return
        numbers: dict[str, int] = {}
        for row in rows:
            numbers[row["process_name"]] = row["revision"]
        with naming_damaged_file(self.catalog, name, repair=FORGETS):
            for attempt in iceberg.retrying(seconds=COMMIT_SECONDS):
                with attempt:
                    table = _upgraded(self.catalog, name)
                    lacking, lesser = _lacking(table, rows)
                    if not lacking:
                        return
                    with OneCopyTransaction(table) as transaction:
                        for row in lesser:
                            own = And(
                                _equal("process_name", row["process_name"]), _equal("session_id", row["session_id"])
                            )
                            transaction.delete(And(own, IsNull("ended_at")))  # type: ignore[call-arg, arg-type]
                        transaction.append(arrow_rows(table, lacking))
                        # Those that a branch or a tag refers to stay.
                        snapshots = sorted(table.metadata.snapshots, key=lambda each: each.sequence_number or 0)
                        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
                        if len(snapshots) > 2 * KEEP_SNAPSHOTS:
                            old = [each.snapshot_id for each in snapshots[:-KEEP_SNAPSHOTS]]
                            ExpireSnapshots(transaction).by_ids([each for each in old if each not in kept]).commit()
            for process, number in numbers.items():
                if number % MERGE_FILES == 0:
                    with suppress(CommitFailedException):  # if another commit comes first now, a later one merges
                        _merge_small_files(iceberg.load(self.catalog, name), process)

    # What others than people read

    def numbers(self, process: str) -> tuple[int, int]:
        """Return the numbers of the newest session of a target, and of the newest one that was committed; 0 for none.

        Raises:
            StoredByNewerVersion: A later version has changed the tables.
            TableDamaged: A file of the log cannot be read.
        """
        unwritten = [state.n for _, state in self._unwritten if state.process == process]
        committed = max([self._newest(self.watermarks, process), *unwritten])
        return max(self._newest(self.sessions, process), committed), committed

    def before(self, process: str) -> State | None:
        """Return the state that the version before left; None if there is none, or this version has gone on from it."""
        rows = self._newest_rows(self.watermarks, process)
        metadata = json.loads(rows[0]["metadata"]) if rows else {"n": 0}
        if "n" in metadata:
            return None
        return State(
            process=process,
            uuid=rows[0]["target_uuid"],
            watermarks={row["source"]: _watermark(row) for row in rows},
            committed=_committed_before(metadata),
            snapshot_id=rows[0]["target_snapshot_id"],
            sequence_number=rows[0]["target_sequence_number"] or 0,
        )

    def opened_before(self, process: str) -> SessionRecord | None:
        """Return the session that another program writes, or has published, of a home of the version before."""
        rows = self._newest_rows(self.sessions, process) if self.before(process) is not None else []
        newest = _session_record(rows[0]) if rows else None
        is_open = newest is not None and newest.run_id == EXTERNAL_RUN and newest.state in ("planned", "published")
        return newest if is_open else None

    def _newest_rows(self, name: str, process: str) -> list[dict[str, Any]]:
        number = self._newest(name, process)
        return self._rows(name, process, EqualTo("revision", number)) if number else []  # type: ignore[call-arg, arg-type]

    def _newest(self, name: str, process: str) -> int:
        """Return the newest number of a target in a table of the log; 0 without rows. Opens no data file."""
        with naming_damaged_file(self.catalog, name, repair=FORGETS):
            table = iceberg.find(self.catalog, name)
            return 0 if table is None else _newest_number(table, process)

    # What people read

    def history(self, process: str, *, newest: int | None = None) -> list[SessionRecord]:
        """Return sessions of a target, oldest first.

        Args:
            newest: How many sessions to return: the last ones. None for all. Only the end of the log is read.

        Raises:
            TableDamaged: A file of the log cannot be read.
        """
        self.flush(process)
        last = self._newest(self.sessions, process)
        span = last if newest is None else newest * MOVES
        while True:
            first = max(0, last - span)
            found = self._sessions(process, GreaterThan("revision", first))  # type: ignore[call-arg, arg-type]
            if first == 0 or (newest is not None and len(found) >= newest):
                return [_session_record(row) for row in found[-newest if newest else None :]]
            span *= 4

    def builds(self, process: str, hour: int) -> list[SessionRecord]:
        """Return the sessions whose published rows are, or were, those of an hour, oldest first.

        Raises:
            TableDamaged: A file of the log cannot be read.
        """
        self.flush(process)
        columns = ("session_id", "revision", "state", "started_at", "built_hours")
        sessions = self._sessions(process, GreaterThan("revision", 0), columns)  # type: ignore[call-arg, arg-type]
        built = {row["revision"] for row in sessions if hour_key(hour) in json.loads(row["built_hours"])}
        found = self._sessions(process, In("revision", built))  # type: ignore[call-arg, arg-type]
        return [_session_record(row) for row in found if row["state"] in FINISHED]

    def _sessions(
        self, process: str, which: BooleanExpression, columns: Collection[str] = ("*",)
    ) -> list[dict[str, Any]]:
        """Return the last row of each session, oldest session first. A stopped one may run again under its number."""
        rows = self._rows(self.sessions, process, which, columns)
        rows.sort(key=lambda row: (row["revision"], row["state"] == "committed", row["started_at"]))
        last: dict[str, dict[str, Any]] = {}
        for row in rows:
            last.pop(row["session_id"], None)
            last[row["session_id"]] = row
        return list(last.values())

    def _rows(
        self, name: str, process: str, which: BooleanExpression, columns: Collection[str] = ("*",)
    ) -> list[dict[str, Any]]:
        with naming_damaged_file(self.catalog, name, repair=FORGETS):
            table = iceberg.find(self.catalog, name)
            if table is None:
                return []
            check_format(table)
            scan = table.scan(And(_equal("process_name", process), which), selected_fields=tuple(columns))
            found: list[dict[str, Any]] = scan.to_arrow().to_pylist()
            return found

    # Quarantine

    def quarantine(self, target: str, rows: Sequence[Row]) -> int:
        """Add rows to the quarantine of a target, unless it has them already.

        Args:
            rows: Each with source, row_hash, session_id, reason and row; all strings.

        Returns:
            How many rows were added.
        """
        if not rows:
            return 0
        new: dict[tuple[str, str], Row] = {}
        for attempt in iceberg.retrying(seconds=COMMIT_SECONDS):
            with attempt:
                table = iceberg.load(self.catalog, QUARANTINE)
                new = {(row["source"], row["row_hash"]): {"target": target, **row} for row in rows}
                hashes = {row["row_hash"] for row in rows}
                candidates = And(_equal("target", target), In("row_hash", hashes))  # type: ignore[call-arg, arg-type]
                for row in table.scan(candidates, selected_fields=("source", "row_hash")).to_arrow().to_pylist():
                    new.pop((row["source"], row["row_hash"]), None)
                if new:
                    table.append(arrow_rows(table, new.values()))
        return len(new)


def create_tables(catalog: Catalog) -> list[str]:
    """Create the three tables unless they exist. Return the names of those that were created."""
    by_process = {"process_name": IdentityTransform[Any]()}
    properties = {FORMAT_PROPERTY: str(FORMAT), **LOG_PROPERTIES}
    wanted = [
        (session_table(catalog), SESSION_COLUMNS, by_process),
        (high_watermark_table(catalog), WATERMARK_COLUMNS, by_process),
        (QUARANTINE, QUARANTINE_COLUMNS, {"target": IdentityTransform[Any]()}),
    ]
    created = []
    for name, columns, partitions in wanted:
        if iceberg.create(catalog, name, columns, partitions, properties):
            created.append(name)
    return created


def check_format(table: Table) -> None:
    """Refuse a table of the log that a later version has changed.

    Raises:
        StoredByNewerVersion: Its format is later than this version's.
    """
    found = int(table.properties.get(FORMAT_PROPERTY, 1))
    if found > FORMAT:
        name = ".".join(table.name())
        raise StoredByNewerVersion(f"The table {name} of the session log", found=found, readable=FORMAT)


# Rows


def record_of(state: State) -> SessionRecord:
    """Return what a state and its snapshot say of the session that left it; audits and its end are not known."""
    log, table = state.log, state.table
    snapshot = table.snapshot_by_id(state.snapshot_id) if table is not None and state.snapshot_id else None
    hours, unchanged = (
        tuple(hour for first, last in log[name] or () for hour in range(first, last + 1))
        for name in ("hours", "unchanged")
    )
    sources = []
    for name, mark in state.watermarks.items():
        since, *_ = log["from"].get(name, [None])
        sources.append(source_range(mark, since))
    plan = SessionPlan(
        process=state.process,
        session_id=state.session_id,
        kind=log["kind"],
        load=log["load"],
        sources=tuple(sources),
        hours=tuple(PlannedHour(hour, log["why"]) for hour in hours),
        waiting=state.committed.waiting,
        complete_through=state.committed.complete_through,
        code_version=state.committed.code_version,
    )
    built = tuple(hour for hour in hours if hour not in unchanged and hour not in state.committed.held_hours)
    return SessionRecord(
        plan=plan,
        state="committed",
        revision=state.n,
        pattern_id=log["pattern"],
        run_id=log["run"],
        started_at=datetime.fromisoformat(log["at"]),
        staged_snapshot_id=state.snapshot_id,
        published_snapshot_id=state.snapshot_id if built else None,
        built=built,
        unchanged=unchanged,
        rows_read=log["read"],
        rows_written=publish.rows_added(snapshot) if snapshot is not None else 0,
    )


def session_row(record: SessionRecord) -> dict[str, Any]:
    """Return a session as a row of `etl.session`."""
    plan = record.plan
    landings: list[tuple[Any, Any]] = [*plan.landings()] or [(None, None)]
    spans = {
        "event": map(_date_and_hour, plan.envelope or (None, None)),
        "landing": (min(landings), max(landings)),
        "processing": map(_date_and_hour, _processing_hours(plan)),
    }
    ends = {}
    for name, span in spans.items():
        for end, place in zip(("from", "to"), span, strict=True):
            ends[f"{end}_{name}_date"], ends[f"{end}_{name}_hour"] = place
    return {
        "process_name": plan.process,
        "session_id": plan.session_id,
        "revision": record.revision,
        "etl_pattern_id": record.pattern_id,
        "state": record.state,
        "kind": plan.kind,
        "load": plan.load,
        "sources": json.dumps([asdict(source) for source in plan.sources]),
        "processing_uris": json.dumps(list(plan.processing_uris)),
        **ends,
        "hours": json.dumps([{"hour": hour_key(planned.hour), "reason": planned.reason} for planned in plan.hours]),
        "built_hours": json.dumps(_keys(record.built)),
        "pending_hours": json.dumps(_keys(plan.pending)),
        "skipped_hours": json.dumps(_keys(plan.skipped)),
        "unchanged_hours": json.dumps(_keys(record.unchanged)),
        "held_hours": json.dumps([_with_key(held) for held in record.held]),
        "complete_through": _key(plan.complete_through),
        "rows_read": record.rows_read,
        "rows_written": record.rows_written,
        "audits": _AUDITS.dump_json(record.audits).decode(),
        "staging_number": 0,
        "staged_snapshot_id": record.staged_snapshot_id,
        "published_snapshot_id": record.published_snapshot_id,
        "run_id": record.run_id,
        "code_version": plan.code_version,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "plan": json.dumps(plan_to_json(plan)),
    }


def plan_to_json(plan: SessionPlan) -> dict[str, Any]:
    """Return a plan as it is stored."""
    stored: dict[str, Any] = to_jsonable_python(plan.document())
    return stored


def plan_from_json(stored: Mapping[str, Any]) -> SessionPlan:
    """Return a stored plan. Those of older versions lack some fields."""
    kinds: dict[int, Kind] = {}
    for name, kind in STORED_KINDS.items():
        kinds |= dict.fromkeys(stored.get(name, ()), kind)
    kinds |= dict.fromkeys({*stored.get("held", ())}.intersection(stored.get("pending", ())), "retry")
    reasons = stored.get("reasons", {})
    waiting = {hour: Waiting(kinds[hour], reasons.get(str(hour), "")) for hour in sorted(kinds)}
    for late in stored.get("deferred", ()):
        hour, since_ms, rows, after = (late[name] for name in ("hour", "since_ms", "rows", "after"))
        waiting[hour] = Waiting("late", waiting[hour].why, since_ms, rows=rows, after=after)
    return replace(PLAN.validate_python(stored), waiting=waiting)


def _date_and_hour(hour: int | None) -> tuple[str | None, int | None]:
    start = None if hour is None else hour_start(hour)
    return (start.date().isoformat(), start.hour) if start else (None, None)


def _processing_hours(plan: SessionPlan) -> tuple[int | None, int | None]:
    """Return the hours in which the first and the last new snapshot of the sources was committed."""
    new = [each for each in plan.sources if each.from_snapshot_id != each.to_snapshot_id]
    began = [each.from_timestamp_ms for each in new if each.from_timestamp_ms is not None]
    # What is read from the beginning of a table may be of any time before its head.
    first = min(began) // HOUR_MILLISECONDS if began and len(began) == len(new) else None
    last = max(each.to_timestamp_ms for each in new) // HOUR_MILLISECONDS if new else None
    return first, last


def _session_record(row: Row) -> SessionRecord:
    same = ("state", "revision", "run_id", "started_at", "ended_at", "rows_read", "rows_written")
    return SessionRecord(
        plan=plan_from_json(json.loads(row["plan"])),
        pattern_id=row["etl_pattern_id"],
        staged_snapshot_id=row["staged_snapshot_id"],
        published_snapshot_id=row["published_snapshot_id"],
        built=tuple(map(parse_hour, json.loads(row["built_hours"]))),
        unchanged=tuple(map(parse_hour, json.loads(row["unchanged_hours"]))),
        audits=_AUDITS.validate_json(row["audits"]),
        **{name: row[name] for name in same},
    )


def _watermark_rows(state: State) -> list[dict[str, Any]]:
    """Return the rows of `etl.high_watermark` after a session, one for each source."""
    committed = state.committed
    shared = {
        "n": state.n,
        "pending": _keys(committed.pending),
        "skipped": _keys(committed.skipped),
        "last_built": _key(committed.last_built),
        "complete_through": _key(committed.complete_through),
        "code_version": committed.code_version,
        "published_snapshot_id": state.snapshot_id,
        "held": [_with_key(held) for held in committed.held],
        "following": _keys(committed.following),
        "chunk_hours": committed.chunk_hours,
        "deferred": [_with_key(late) for late in committed.deferred],
    }
    rows = []
    for name, mark in state.watermarks.items():
        before = state.log["from"].get(name, (None, None, None))
        own = {"totals": asdict(mark.totals) if mark.totals else None, "last_hour": _key(mark.last_hour)}
        row = {
            "process_name": state.process,
            "source": name,
            "revision": state.n,
            "table_uuid": mark.table_uuid,
            "latest_snapshot_id": mark.snapshot_id,
            "previous_snapshot_id": before[0],
            "previous_sequence_number": before[1] if before[0] else None,
            "previous_snapshot_timestamp_ms": before[2] if before[0] else None,
            "sequence_number": mark.sequence_number,
            "snapshot_timestamp_ms": mark.timestamp_ms,
            "complete_through": _key(mark.complete_through),
            "session_id": state.session_id,
            "metadata": json.dumps({**shared, **own}),
            "target_uuid": state.uuid,
            "target_snapshot_id": state.snapshot_id,
            "target_sequence_number": state.sequence_number,
        }
        rows.append(row)
    return rows


def _watermark(row: Row) -> Watermark:
    metadata = json.loads(row["metadata"])
    totals = metadata["totals"]
    return Watermark(
        source=row["source"],
        table_uuid=row["table_uuid"],
        snapshot_id=row["latest_snapshot_id"],
        sequence_number=row["sequence_number"],
        timestamp_ms=row["snapshot_timestamp_ms"],
        complete_through=_hour(row["complete_through"]),
        totals=Totals(**totals) if totals else None,
        last_hour=_hour(metadata["last_hour"]),
    )


def _committed_before(metadata: Mapping[str, Any]) -> Committed:
    """Return what a process of the version before has committed; the first rows of that version have no `deferred`."""
    waiting: dict[int, Waiting] = {}
    following = set(map(parse_hour, metadata["following"]))
    for hour in map(parse_hour, metadata["pending"]):
        waiting[hour] = Waiting("follows" if hour in following else "changed")
    for key in metadata["skipped"]:
        waiting[parse_hour(key)] = Waiting("skipped")
    for late in metadata.get("deferred", ()):
        waiting[parse_hour(late["hour"])] = Waiting(
            "late", since_ms=late["since_ms"], rows=late["rows"], after=late["after"]
        )
    for held in metadata["held"]:
        hour = parse_hour(held["hour"])
        kind: Literal["retry", "held"] = "retry" if hour in waiting else "held"
        waiting[hour] = Waiting(kind, held["why"], 0, held["session_id"], held["code_version"])
    last_built, uniform_from = _hour(metadata["last_built"]), _hour(metadata["uniform_from"])
    before = last_built if uniform_from is None else uniform_from - 1
    return Committed(
        waiting=dict(sorted(waiting.items())),
        last_built=last_built,
        complete_through=_hour(metadata["complete_through"]),
        code_version=metadata["code_version"],
        older=() if before is None else ((0, before, ""),),
        span=None if last_built is None else (0, last_built),
        chunk_hours=metadata["chunk_hours"],
    )


def _keys(hours: Iterable[int]) -> list[str]:
    return [hour_key(hour) for hour in sorted(hours)]


def _key(hour: int | None) -> str | None:
    return None if hour is None else hour_key(hour)


def _hour(key: str | None) -> int | None:
    return None if key is None else parse_hour(key, where="A stored hour")


def _with_key(hour: HeldHour | DeferredHour) -> dict[str, Any]:
    return {**asdict(hour), "hour": hour_key(hour.hour)}


# Tables


def _upgraded(catalog: Catalog, name: str) -> Table:
    """Load a log table; add the columns that one of an older version lacks, and mark its format."""
    table = iceberg.load(catalog, name)
    check_format(table)
    wanted = SESSION_COLUMNS if name == session_table(catalog) else WATERMARK_COLUMNS
    missing = [column for column in wanted if column not in table.schema().column_names]
    if not missing and table.properties.get(FORMAT_PROPERTY) == str(FORMAT):
        return table
    types = {"int": IntegerType(), "long": LongType(), "string": StringType()}
    with table.transaction() as transaction:
        if missing:
            with transaction.update_schema() as update:
                for column in missing:
                    update.add_column(column, types[wanted[column]])
        transaction.set_properties({FORMAT_PROPERTY: str(FORMAT)})
    return iceberg.load(catalog, name)


_numbers_of: Recent[str, Mapping[str, int]] = Recent(1024)
"""Manifest, or list of manifests → target → the highest number in its files. Neither ever changes."""


def _newest_number(table: Table, process: str) -> int:
    """Return the newest number of a target, by the bounds of the files; 0 without rows.

    If another program has rewritten the table in a form of its own, the rows are read.
    """
    check_format(table)
    snapshot = table.current_snapshot()
    if snapshot is None:
        return 0
    newest = _numbers_of.find(snapshot.manifest_list)
    if newest is None:
        found: dict[str, int] = {}
        for manifest in snapshot.manifests(table.io):
            if manifest.content is not ManifestContent.DATA:
                continue
            of_manifest = _numbers_of.find(manifest.manifest_path)
            if of_manifest is None:
                numbers: dict[str, int] = {}
                for entry in entries(manifest, table.io):
                    number = _highest_in(table, entry.data_file)
                    if number is None or manifest.partition_spec_id != 0:
                        rows = table.scan(_equal("process_name", process), selected_fields=("revision",)).to_arrow()
                        return max(rows["revision"].to_pylist(), default=0)
                    name = entry.data_file.partition[0]
                    numbers[name] = max(number, numbers.get(name, 0))
                of_manifest = numbers
                _numbers_of.keep(manifest.manifest_path, numbers)
            for name, number in of_manifest.items():
                found[name] = max(number, found.get(name, 0))
        newest = found
        _numbers_of.keep(snapshot.manifest_list, found)
    return newest.get(process, 0)


def _highest_in(table: Table, file: DataFile) -> int | None:
    encoded = (file.upper_bounds or {}).get(table.schema().find_field("revision").field_id)
    return None if encoded is None else int(from_bytes(LongType(), encoded))


def _lacking(table: Table, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return those of some rows that a table of the log lacks, and those of them that it has without an end."""
    own = ("state", "ended_at") if "state" in table.schema().column_names else ("source",)
    older = [row for row in rows if row["revision"] <= _newest_number(table, row["process_name"])]
    if not older:
        return list(rows), []
    same = And(
        In("process_name", {row["process_name"] for row in older}),  # type: ignore[call-arg, arg-type]
        In("revision", {row["revision"] for row in older}),  # type: ignore[call-arg, arg-type]
    )
    key = ("process_name", "revision", "session_id", own[0])
    stored = table.scan(same, selected_fields=(*key, *own)).to_arrow().to_pylist()
    ended = {tuple(row[column] for column in key): row.get("ended_at", True) is not None for row in stored}

    def lesser(row: Row) -> bool:
        return ended.get(tuple(row[column] for column in key)) is False and row["ended_at"] is not None

    lacking = [row for row in rows if tuple(row[column] for column in key) not in ended or lesser(row)]
    return lacking, [row for row in lacking if lesser(row)]


def _merge_small_files(table: Table, process: str) -> None:
    """Rewrite the newest files of a target as one if they are many. A large file is not rewritten again."""
    files = [task.file for task in table.scan(_equal("process_name", process)).plan_files()]
    small = [file for file in files if file.record_count < MERGE_ROWS]
    if len(small) >= MERGE_FILES:
        large = [_highest_in(table, file) or 0 for file in files if file.record_count >= MERGE_ROWS]
        newer = GreaterThan("revision", max(large, default=0))  # type: ignore[call-arg, arg-type]
        rows = And(_equal("process_name", process), newer)
        table.overwrite(table.scan(rows).to_arrow(), overwrite_filter=rows)


def _equal(column: str, value: str) -> BooleanExpression:
    # The expression is typed as its JSON form, not as its constructor.
    return EqualTo(column, value)  # type: ignore[call-arg, arg-type]
