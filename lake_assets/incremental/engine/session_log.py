"""The session log, tables for people and SQL: `etl.session`, `etl.high_watermark` and `etl.quarantine`.

Nothing is decided by it but one thing: a target without a state whose process has sessions was dropped or replaced. The
truth is the state in the target's own snapshots (`state`). After its commit, a session has a row in
`etl.session` and one for each source in `etl.high_watermark`, which comes last and so says that both are there. A row
that is missing, because a process died, is written from the state by whoever runs the process next. The sessions of a
whole catch-up are written in one commit.

Of a home of the version before, which had a row for each move of a session, the last state is read from here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThan, GreaterThanOrEqual, In
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, PrimitiveType, StringType

from lake_assets.base.hours import HOUR_FORMAT, hour_key, parse_hour
from lake_assets.base.recent import Recent
from lake_assets.errors import StoredByNewerVersion
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.iceberg import (
    QUARANTINE,
    OneCopyTransaction,
    entries,
    high_watermark_table,
    naming_damaged_file,
    session_table,
)
from lake_assets.incremental.engine.model import (
    AuditResult,
    Committed,
    HeldHour,
    PlannedHour,
    SessionPlan,
    SessionReport,
    SourceRange,
    Waiting,
    held_by,
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
"""Number of small files of a process at which they are merged, so that a lookup stays cheap."""

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

Row = Mapping[str, Any]
_PLAN: TypeAdapter[SessionPlan] = TypeAdapter(SessionPlan)
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
    staging_number: int = 0
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

    def report(self) -> SessionReport:
        """Return the report of a committed session; counts that are not stored are 0."""
        version = str(self.published_snapshot_id) if self.published_snapshot_id else None
        return SessionReport(
            plan=self.plan,
            status="committed",
            hours_built=self.built,
            hours_unchanged=self.unchanged,
            held=self.held,
            staged_snapshot_id=self.staged_snapshot_id,
            published_snapshot_id=self.published_snapshot_id,
            rows_read=self.rows_read,
            rows_written=self.rows_written,
            audits=self.audits,
            data_version=version,
        )


@dataclass(frozen=True)
class Before:
    """The state of a process that the version before left in the log.

    Attributes:
        committed: What is built, and what waits.
        watermarks: Source → the snapshot up to which it is read.
        uuid: The UUID of the target; None in a log of a still older version.
        snapshot_id: The snapshot of the target up to which every row is the sessions'; None for an empty target.
        sequence_number: Of that snapshot.
        opened: The session that another program writes, or has published; None if there is none.
        is_published: Whether it is published. Then its watermarks are not moved yet.
    """

    committed: Committed
    watermarks: Mapping[str, Watermark]
    uuid: str | None
    snapshot_id: int | None
    sequence_number: int
    opened: SessionRecord | None = None
    is_published: bool = False


class SessionLog:
    """Writes and reads the log. One log serves all processes of a catalog."""

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
        """Write the sessions of the block in one commit at its end, or before the next session of the same process."""
        self._is_batch = True
        try:
            yield
        finally:
            self._is_batch = False
            self.flush()

    def flush(self, process: str | None = None) -> None:
        """Write what is not written yet; if a process is named, only if there is a session of it."""
        if process is not None and all(state.process != process for _, state in self._unwritten):
            return
        written, self._unwritten = self._unwritten, []
        self._append(self.sessions, [session_row(record) for record, _ in written])
        self._append(self.watermarks, [row for _, state in written for row in _watermark_rows(state)])

    def numbers(self, process: str) -> tuple[int, int]:
        """Return the numbers of the newest session of a process, and of the newest one that was committed; 0 for none.

        Raises:
            StoredByNewerVersion: A later version has changed the tables.
            TableDamaged: A file of the log cannot be read.
        """
        unwritten = [state.n for _, state in self._unwritten if state.process == process]
        found = []
        for name in (self.sessions, self.watermarks):
            table = self._table(name)
            with naming_damaged_file(self.catalog, name, repair=FORGETS):
                found.append(max([0, *unwritten, *([_ProcessRows(table, process).revision] if table else [])]))
        return max(found), found[1]

    def complete(self, state: State) -> None:
        """Write the session of a state, if the process that committed it died before it had."""
        self.flush(state.process)
        if state.n == 0 or not state.log:
            return
        table = self._table(self.watermarks)
        if table is not None and _ProcessRows(table, state.process).revision >= state.n:
            return
        self.add(record_of(state), state)

    def before(self, process: str) -> Before | None:
        """Return the state that the version before left; None if the process has none, or has a newer one."""
        marks = self._newest_rows(self.watermarks, process)
        if not marks:
            return None
        metadata = json.loads(marks[0]["metadata"])
        if "n" in metadata:
            return None
        sessions = self._newest_rows(self.sessions, process)
        newest = _session_record(sessions[0]) if sessions else None
        if newest is not None and (newest.run_id != EXTERNAL_RUN or newest.state not in ("planned", "published")):
            newest = None
        return Before(
            committed=_committed_before(metadata),
            watermarks={row["source"]: _watermark(row) for row in marks},
            uuid=marks[0].get("target_uuid"),
            snapshot_id=marks[0].get("target_snapshot_id") or metadata.get("published_snapshot_id"),
            sequence_number=marks[0].get("target_sequence_number") or 0,
            opened=newest,
            is_published=newest is not None and newest.state == "published",
        )

    def history(self, process: str, *, newest: int | None = None) -> list[SessionRecord]:
        """Return sessions of a process, oldest first.

        Args:
            newest: How many sessions to return: the last ones. None for all. Only the end of the log is read.

        Raises:
            TableDamaged: A file of the log cannot be read.
        """
        self.flush(process)
        table = self._table(self.sessions)
        if table is None:
            return []
        with naming_damaged_file(self.catalog, self.sessions, repair=FORGETS):
            last = _ProcessRows(table, process).revision
            span = last if newest is None else newest * MOVES
            while True:
                first = max(0, last - span)
                found = _newest_states(_scan(table, process, GreaterThan("revision", first)))  # type: ignore[call-arg, arg-type]
                if first == 0 or (newest is not None and len(found) >= newest):
                    break
                span *= 4
        return [_session_record(row) for row in found[-(newest or len(found)) :]] if found else []

    def builds(self, process: str, hour: int) -> list[SessionRecord]:
        """Return the sessions whose published rows are, or were, those of an hour, oldest first.

        Raises:
            TableDamaged: A file of the log cannot be read.
        """
        self.flush(process)
        key = hour_key(hour)
        table = self._table(self.sessions)
        if table is None:
            return []
        columns = ("session_id", "revision", "state", "started_at", "built_hours")
        with naming_damaged_file(self.catalog, self.sessions, repair=FORGETS):
            all_states = _newest_states(_scan(table, process, GreaterThan("revision", 0), columns))  # type: ignore[call-arg, arg-type]
            built = {
                row["revision"]
                for row in all_states
                if row["state"] in ("published", "committed") and key in json.loads(row["built_hours"])
            }
            found = _newest_states(_scan(table, process, In("revision", built)))  # type: ignore[call-arg, arg-type]
        return [_session_record(row) for row in found if row["state"] in ("published", "committed")]

    def quarantine(self, target: str, rows: Sequence[Row]) -> int:
        """Add rows to the quarantine of a target, unless it has them already.

        Args:
            target: The target.
            rows: Each with source, row_hash, session_id, reason and row; all strings.

        Returns:
            How many rows were added.
        """
        if not rows:
            return 0
        for attempt in iceberg.retrying(seconds=COMMIT_SECONDS):
            with attempt:
                table = iceberg.load(self.catalog, QUARANTINE)
                added = _not_quarantined(table, target, rows)
                if added:
                    table.append(_arrow_rows(table, added))
                return len(added)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _table(self, name: str) -> Table | None:
        with naming_damaged_file(self.catalog, name, repair=FORGETS):
            table = iceberg.find(self.catalog, name)
        if table is not None:
            check_format(table)
        return table

    def _newest_rows(self, name: str, process: str) -> list[dict[str, Any]]:
        table = self._table(name)
        if table is None:
            return []
        with naming_damaged_file(self.catalog, name, repair=FORGETS):
            return _ProcessRows(table, process).newest()

    def _append(self, name: str, rows: Sequence[Row]) -> None:
        """Append rows of any processes in one commit, those that the table lacks."""
        if not rows:
            return
        with naming_damaged_file(self.catalog, name, repair=FORGETS):
            for attempt in iceberg.retrying(seconds=COMMIT_SECONDS):
                with attempt:
                    table = _prepared(self.catalog, name)
                    known = {row["process_name"]: _ProcessRows(table, row["process_name"]) for row in rows}
                    lacking = [row for row in rows if known[row["process_name"]].lacks(row)]
                    if not lacking:
                        return
                    with OneCopyTransaction(table) as transaction:
                        transaction.append(_arrow_rows(table, lacking))
                        _expire_old_snapshots(transaction, table)
            # If another commit comes first now, a later one merges the files.
            with suppress(CommitFailedException):
                for process in known:
                    _ProcessRows(iceberg.load(self.catalog, name), process).merge_small_files()


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


def record_of(state: State) -> SessionRecord:
    """Return what a state and its snapshot tell of the session that left it; audits and its end are not known."""
    log, table = state.log, state.table
    snapshot = table.snapshot_by_id(state.snapshot_id) if table is not None and state.snapshot_id else None
    rows = publish.rows_added(snapshot) if snapshot is not None else 0
    unchanged = _in_ranges(log["unchanged"])
    hours = _in_ranges(log["hours"])
    ranges_read = []
    for name, mark in state.watermarks.items():
        began = log["from"].get(name, (None, 0, 0))
        ranges_read.append(
            SourceRange(
                source=name,
                table_uuid=mark.table_uuid,
                from_snapshot_id=began[0],
                to_snapshot_id=mark.snapshot_id,
                to_sequence_number=mark.sequence_number,
                to_timestamp_ms=mark.timestamp_ms,
                complete_through=mark.complete_through,
                totals=mark.totals,
                last_hour=mark.last_hour,
            )
        )
    plan = SessionPlan(
        process=state.process,
        session_id=state.session_id,
        kind=log["kind"],
        load=log["load"],
        sources=tuple(ranges_read),
        hours=tuple(PlannedHour(hour, log["why"]) for hour in hours),
        pending=tuple(sorted(state.committed.pending)),
        skipped=tuple(sorted(state.committed.skipped)),
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
        rows_written=rows,
    )


def _in_ranges(spans: Iterable[Sequence[int]] | None) -> tuple[int, ...]:
    return tuple(hour for first, last in spans or () for hour in range(first, last + 1))


def _prepared(catalog: Catalog, name: str) -> Table:
    """Load a log table; add the columns that one of an older version lacks, and mark its format."""
    table = iceberg.load(catalog, name)
    check_format(table)
    wanted = SESSION_COLUMNS if name == session_table(catalog) else WATERMARK_COLUMNS
    missing = wanted.keys() - set(table.schema().column_names)
    if not missing and table.properties.get(FORMAT_PROPERTY) == str(FORMAT):
        return table
    types = {"int": IntegerType(), "long": LongType(), "string": StringType()}
    with table.transaction() as transaction:
        if missing:
            with transaction.update_schema() as update:
                for column, iceberg_type in wanted.items():
                    if column in missing:
                        update.add_column(column, types[iceberg_type])
        transaction.set_properties({FORMAT_PROPERTY: str(FORMAT)})
    return iceberg.load(catalog, name)


# Rows


def session_row(record: SessionRecord) -> dict[str, Any]:
    """Return a session as a row of `etl.session`."""
    plan = record.plan
    first, last = plan.envelope or (None, None)
    hours = [{"hour": hour_key(planned.hour), "reason": planned.reason} for planned in plan.hours]
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
        **_date_and_hour("from_event", first),
        **_date_and_hour("to_event", last),
        **_landing_columns(plan),
        **_processing_columns(plan),
        "hours": json.dumps(hours),
        "built_hours": _hours_as_json(record.built),
        "pending_hours": _hours_as_json(plan.pending),
        "skipped_hours": _hours_as_json(plan.skipped),
        "unchanged_hours": _hours_as_json(record.unchanged),
        "held_hours": json.dumps(_held_as_json(record.held)),
        "complete_through": _optional_key(plan.complete_through),
        "rows_read": record.rows_read,
        "rows_written": record.rows_written,
        "audits": _AUDITS.dump_json(record.audits).decode(),
        "staging_number": record.staging_number,
        "staged_snapshot_id": record.staged_snapshot_id,
        "published_snapshot_id": record.published_snapshot_id,
        "run_id": record.run_id,
        "code_version": plan.code_version,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "plan": _PLAN.dump_json(plan).decode(),
    }


def _session_record(row: Row) -> SessionRecord:
    return SessionRecord(
        plan=_PLAN.validate_json(row["plan"]),
        state=row["state"],
        revision=row["revision"],
        pattern_id=row["etl_pattern_id"],
        run_id=row["run_id"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        staging_number=row["staging_number"],
        staged_snapshot_id=row["staged_snapshot_id"],
        published_snapshot_id=row["published_snapshot_id"],
        built=tuple(map(parse_hour, json.loads(row["built_hours"]))),
        unchanged=tuple(map(parse_hour, json.loads(row["unchanged_hours"]))),
        rows_read=row["rows_read"],
        rows_written=row["rows_written"],
        audits=_AUDITS.validate_json(row["audits"]),
    )


def _landing_columns(plan: SessionPlan) -> dict[str, Any]:
    """Return the first and the last landing hour of the partitions that a session reads."""
    landings = plan.landings()
    first = min(landings, default=(None, None))
    last = max(landings, default=(None, None))
    return {
        "from_landing_date": first[0],
        "from_landing_hour": first[1],
        "to_landing_date": last[0],
        "to_landing_hour": last[1],
    }


def _processing_columns(plan: SessionPlan) -> dict[str, Any]:
    """Return the hours in which the first and the last new snapshot of the sources was committed."""
    new = [each for each in plan.sources if each.from_snapshot_id != each.to_snapshot_id]
    began = [each.from_timestamp_ms for each in new]
    # What is read from the beginning of a table may be of any time before its head.
    first = min((ms for ms in began if ms is not None), default=None) if None not in began else None
    last = max((each.to_timestamp_ms for each in new), default=None)
    hours = [None if ms is None else ms // HOUR_MILLISECONDS for ms in (first, last)]
    return _date_and_hour("from_processing", hours[0]) | _date_and_hour("to_processing", hours[1])


def _date_and_hour(prefix: str, hour: int | None) -> dict[str, Any]:
    if hour is None:
        return {f"{prefix}_date": None, f"{prefix}_hour": None}
    moment = datetime.strptime(hour_key(hour), HOUR_FORMAT)
    return {f"{prefix}_date": moment.date().isoformat(), f"{prefix}_hour": moment.hour}


def _watermark_rows(state: State) -> list[dict[str, Any]]:
    """Return the rows of `etl.high_watermark` after a session, one for each source."""
    committed = state.committed
    shared = {
        "n": state.n,
        "pending": _hour_keys(committed.pending),
        "skipped": _hour_keys(committed.skipped),
        "last_built": _optional_key(committed.last_built),
        "complete_through": _optional_key(committed.complete_through),
        "code_version": committed.code_version,
        "published_snapshot_id": state.snapshot_id,
        "held": _held_as_json(committed.held),
        "following": _hour_keys(committed.following),
        "chunk_hours": committed.chunk_hours,
        "deferred": [{**asdict(each), "hour": hour_key(each.hour)} for each in committed.deferred],
    }
    rows = []
    for name, mark in state.watermarks.items():
        before = state.log["from"].get(name, (None, None, None))
        own = {"totals": asdict(mark.totals) if mark.totals else None, "last_hour": _optional_key(mark.last_hour)}
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
            "complete_through": _optional_key(mark.complete_through),
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
    totals = metadata.get("totals")
    return Watermark(
        source=row["source"],
        table_uuid=row["table_uuid"],
        snapshot_id=row["latest_snapshot_id"],
        sequence_number=row["sequence_number"],
        timestamp_ms=row["snapshot_timestamp_ms"],
        complete_through=_parse_optional(row["complete_through"]),
        totals=Totals(**totals) if totals else None,
        last_hour=_parse_optional(metadata.get("last_hour")),
    )


def _committed_before(metadata: Mapping[str, Any]) -> Committed:
    """Return what a process of the version before has committed; a row of a still older one lacks some names."""
    waiting: dict[int, Waiting] = {}
    following = set(map(parse_hour, metadata.get("following", ())))
    for hour in map(parse_hour, metadata["pending"]):
        waiting[hour] = Waiting("follows" if hour in following else "changed")
    for key in metadata["skipped"]:
        waiting[parse_hour(key)] = Waiting("skipped")
    for late in metadata.get("deferred", ()):
        hour = parse_hour(late["hour"])
        waiting[hour] = Waiting("late", since_ms=late["since_ms"], rows=late["rows"], after=late.get("after"))
    for held in metadata.get("held", ()):
        hour = parse_hour(held["hour"])
        kind: Literal["retry", "held"] = "retry" if hour in waiting else "held"
        waiting[hour] = Waiting(kind, held["why"], 0, held["session_id"], held.get("code_version", ""))
    last_built = _parse_optional(metadata["last_built"])
    uniform_from = _parse_optional(metadata.get("uniform_from"))
    older: tuple[tuple[int, int, str], ...] = ()
    if last_built is not None and uniform_from is None:
        older = ((0, last_built, ""),)
    elif uniform_from is not None:
        older = ((0, uniform_from - 1, ""),)
    return Committed(
        waiting=dict(sorted(waiting.items())),
        last_built=last_built,
        complete_through=_parse_optional(metadata["complete_through"]),
        code_version=metadata.get("code_version", ""),
        older=older,
        span=None if last_built is None else (0, last_built),
        chunk_hours=metadata.get("chunk_hours", 0),
    )


def _held_as_json(held: Iterable[HeldHour]) -> list[dict[str, Any]]:
    return [{**asdict(each), "hour": hour_key(each.hour)} for each in held]


def _hour_keys(hours: Iterable[int]) -> list[str]:
    return [hour_key(hour) for hour in sorted(hours)]


def _hours_as_json(hours: Iterable[int]) -> str:
    return json.dumps([hour_key(hour) for hour in hours])


def _optional_key(hour: int | None) -> str | None:
    return None if hour is None else hour_key(hour)


def _parse_optional(key: str | None) -> int | None:
    return None if key is None else parse_hour(key, where="A stored hour")


# Files


@dataclass(frozen=True)
class _LogFile:
    """One data file of a log table; first and last are the bounds of its revisions, None if it does not tell."""

    path: str
    rows: int
    first: int | None
    last: int | None


@dataclass
class _KnownFiles:
    """The files of one log table, of its newest state that was read. Manifests never change: each is read once."""

    location: str = ""
    by_process: Mapping[str, Sequence[_LogFile]] | None = None
    by_manifest: Mapping[str, Sequence[tuple[str, _LogFile]]] = field(default_factory=dict)


_known_files: Recent[str, _KnownFiles] = Recent(8)
_known_rows: Recent[tuple[str, int, str, int], tuple[dict[str, Any], ...]] = Recent(4096)


def _files_by_process(table: Table) -> Mapping[str, Sequence[_LogFile]] | None:
    """Return process → its data files; None if another program has rewritten the table in a form of its own."""
    uuid = str(table.metadata.table_uuid)
    known = _known_files.find(uuid) or _KnownFiles()
    if known.location == table.metadata_location:
        return known.by_process
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    found = _KnownFiles(table.metadata_location)
    if all(each.content is ManifestContent.DATA and each.partition_spec_id == 0 for each in manifests):
        by_process: dict[str, list[_LogFile]] = {}
        by_manifest: dict[str, Sequence[tuple[str, _LogFile]]] = {}
        for manifest in manifests:
            path = manifest.manifest_path
            by_manifest[path] = known.by_manifest.get(path) or _files(table, manifest)
            for process, file in by_manifest[path]:
                by_process.setdefault(process, []).append(file)
        found = _KnownFiles(table.metadata_location, by_process, by_manifest)
    _known_files.keep(uuid, found)
    return found.by_process


def _files(table: Table, manifest: ManifestFile) -> list[tuple[str, _LogFile]]:
    found = []
    for entry in entries(manifest, table.io, discard_deleted=True):
        file = entry.data_file
        first, last = _revision(table, file, "lower_bounds"), _revision(table, file, "upper_bounds")
        found.append((file.partition[0], _LogFile(file.file_path, file.record_count, first, last)))
    return found


def _revision(table: Table, file: DataFile, bounds: str) -> int | None:
    column = table.schema().find_field("revision")
    encoded = (getattr(file, bounds) or {}).get(column.field_id)
    return None if encoded is None else cast("int", from_bytes(cast("PrimitiveType", column.field_type), encoded))


class _ProcessRows:
    """The rows of one process in one state of a log table. File bounds locate them: a lookup opens at most one file."""

    def __init__(self, table: Table, process: str) -> None:
        self.table = table
        self.process = process
        files = _files_by_process(table)
        self._files = files.get(process, ()) if files else ()
        self._has_bounds = files is not None and all(file.last is not None for file in self._files)

    @property
    def revision(self) -> int:
        """The newest revision; 0 without rows."""
        if self._has_bounds:
            return max((file.last or 0 for file in self._files), default=0)
        rows = _scan(self.table, self.process, GreaterThan("revision", 0), ("revision",))  # type: ignore[call-arg, arg-type]
        return max((row["revision"] for row in rows.to_pylist()), default=0)

    def newest(self) -> list[dict[str, Any]]:
        """Return the rows of the newest revision."""
        revision = self.revision
        if revision == 0:
            return []
        if not self._has_bounds:
            found = _scan(self.table, self.process, EqualTo("revision", revision))  # type: ignore[call-arg, arg-type]
            return cast("list[dict[str, Any]]", found.to_pylist())
        paths = [file.path for file in self._files if (file.first or 0) <= revision <= (file.last or 0)]
        return [dict(row) for path in paths for row in self._rows_in(path, revision)]

    def _rows_in(self, path: str, revision: int) -> tuple[dict[str, Any], ...]:
        stored = self.table.io.new_input(path)
        # Its size shows whether a file that was read before is gone, or damaged since.
        key = (path, len(stored), self.process, revision)
        rows = _known_rows.find(key)
        if rows is None:
            of_process = (pc.field("process_name") == self.process) & (pc.field("revision") == revision)
            with stored.open() as opened:
                rows = tuple(pq.read_table(opened, filters=of_process).to_pylist())
            _known_rows.keep(key, rows, weight=1 + len(rows))
        return rows

    def lacks(self, row: Row) -> bool:
        """Return whether the log has not got a row of a session yet. Earlier sessions were written before it."""
        if row["revision"] != self.revision:
            return bool(row["revision"] > self.revision)
        names = ("session_id", "state") if "state" in row else ("source",)
        wanted = tuple(row[name] for name in names)
        return all(tuple(stored[name] for name in names) != wanted for stored in self.newest())

    def merge_small_files(self) -> None:
        """Rewrite the newest files as one if they are many. No row changes; a large file is not rewritten again."""
        small = [file for file in self._files if file.rows < MERGE_ROWS]
        if len(small) < MERGE_FILES:
            return
        first_revision = min(file.first or 0 for file in small)
        newer = GreaterThanOrEqual("revision", first_revision)  # type: ignore[call-arg, arg-type]
        rows = And(_equal("process_name", self.process), newer)
        merged = self.table.scan(rows).to_arrow()
        self.table.overwrite(merged, overwrite_filter=rows)


def _scan(table: Table, process: str, rows: BooleanExpression, columns: Collection[str] = ("*",)) -> pa.Table:
    of_process = And(_equal("process_name", process), rows)
    return table.scan(of_process, selected_fields=tuple(columns)).to_arrow()


def _newest_states(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the last row of each session, oldest session first. A blocked one may be run again under its number."""
    newest: dict[str, dict[str, Any]] = {}
    in_order = sorted(
        rows.to_pylist(), key=lambda row: (row["revision"], row["state"] == "committed", row["started_at"])
    )
    for row in in_order:
        newest.pop(row["session_id"], None)
        newest[row["session_id"]] = row
    return list(newest.values())


def _equal(column: str, value: str) -> BooleanExpression:
    # The expression is typed as its JSON form, not as its constructor.
    return EqualTo(column, value)  # type: ignore[call-arg, arg-type]


def _arrow_rows(table: Table, rows: Iterable[Row]) -> pa.Table:
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.Table.from_pylist(list(rows), schema=schema)


def _expire_old_snapshots(transaction: Transaction, table: Table) -> None:
    """Expire all but the newest snapshots, except those that a branch or a tag refers to."""
    snapshots = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    if len(snapshots) <= 2 * KEEP_SNAPSHOTS:
        return
    referred = {ref.snapshot_id for ref in table.metadata.refs.values()}
    expired = [each.snapshot_id for each in snapshots[:-KEEP_SNAPSHOTS] if each.snapshot_id not in referred]
    ExpireSnapshots(transaction).by_ids(expired).commit()


def _not_quarantined(table: Table, target: str, rows: Sequence[Row]) -> list[Row]:
    hashes = {row["row_hash"] for row in rows}
    candidates = And(_equal("target", target), In("row_hash", hashes))  # type: ignore[call-arg, arg-type]
    stored = table.scan(candidates, selected_fields=("source", "row_hash")).to_arrow()
    known = {(row["source"], row["row_hash"]) for row in stored.to_pylist()}
    added: dict[tuple[str, str], Row] = {}
    for row in rows:
        identity = (row["source"], row["row_hash"])
        if identity not in known:
            added[identity] = {"target": target, **row}
    return list(added.values())
