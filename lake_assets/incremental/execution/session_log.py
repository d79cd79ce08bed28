"""The durable memory of the engine: `etl.session`, `etl.high_watermark`, `etl.quarantine`. Iceberg tables, written with
pyiceberg, readable by anything.

`etl.session` and `etl.high_watermark` are logs: each move of a process's state appends rows with the next revision, and
the newest revision counts. A move names the revision it starts from. The append is a compare-and-set: it is made on the
table's state in which that revision was read, and refused if the table moved (commit retries are off), then read again.
Each move is a file, so now and then the files of a process are merged; that changes no row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, In
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import PrimitiveType

from lake_assets.base.hours import HOUR_FORMAT, hour_key, parse_hour
from lake_assets.errors import StateMoved
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK, QUARANTINE, SESSION
from lake_assets.incremental.planning.changes import Totals, Watermark
from lake_assets.incremental.planning.plan import Committed
from lake_assets.incremental.planning.session import AuditResult, HeldHour, SessionPlan, SessionReport, SourceRange
from lake_assets.incremental.planning.verdicts import held_by

State = Literal["planned", "staged", "published", "committed", "blocked", "abandoned"]
OPEN: frozenset[State] = frozenset({"planned", "staged", "published"})

KEEP_SNAPSHOTS = 5
"""History kept of a log table, for readers at work: its rows are the history that counts. Each costs every move."""

MERGE_FILES, MERGE_ROWS = 25, 1000
"""So many files of a process with fewer rows than this are merged into one: so a lookup or a move costs the same."""

_SESSION_COLUMNS = {
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
}
_WATERMARK_COLUMNS = {
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
}
_QUARANTINE_COLUMNS = {
    "target": "string",
    "source": "string",
    "row_hash": "string",
    "session_id": "string",
    "reason": "string",
    "row": "string",
}
_LOG = {
    # One attempt only: a retried append would land on a state that nobody has compared.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
}
_PLAN: TypeAdapter[SessionPlan] = TypeAdapter(SessionPlan)
_AUDITS: TypeAdapter[tuple[AuditResult, ...]] = TypeAdapter(tuple[AuditResult, ...])


@dataclass(frozen=True)
class SessionRecord:
    """One session as its newest row tells it.

    built: the hours that its published snapshot wrote, or emptied. unchanged: planned ones that it left as they were.
    held: planned ones that audits held back while it published the others.
    """

    plan: SessionPlan
    state: State
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
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def held(self) -> tuple[HeldHour, ...]:
        """By its verdicts; a session that was blocked has published nothing, and so holds no hour back."""
        return () if self.state == "blocked" else held_by(self.plan, self.audits)

    def report(self) -> SessionReport:
        """What a committed session did, as far as its record remembers it."""
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
            data_version=str(self.published_snapshot_id) if self.published_snapshot_id else None,
        )


@dataclass(frozen=True)
class ProcessState:
    """What is known of one process: its newest session, open or not; what it committed; how far it read its sources."""

    process: str
    session: SessionRecord | None = None
    watermarks: Mapping[str, Watermark] = field(default_factory=dict)
    committed: Committed = field(default_factory=Committed)
    revision: int = 0
    published_snapshot_id: int | None = None

    @property
    def open_session(self) -> SessionRecord | None:
        return self.session if self.session and self.session.is_open else None


def create_tables(catalog: Catalog) -> list[str]:
    """Create the three tables unless they are there; the names of those created."""
    process = {"process_name": IdentityTransform[Any]()}
    wanted = [
        (SESSION, _SESSION_COLUMNS, process, _LOG),
        (HIGH_WATERMARK, _WATERMARK_COLUMNS, process, _LOG),
        (QUARANTINE, _QUARANTINE_COLUMNS, {"target": IdentityTransform[Any]()}, _LOG),
    ]
    return [name for name, columns, by, properties in wanted if tables.create(catalog, name, columns, by, properties)]


class SessionStore:
    """Reads and moves the state of processes. One instance may serve many processes; it keeps nothing between calls."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def state(self, process: str) -> ProcessState:
        """The state of a process as of now; empty for one that never ran, also where no process ever did."""
        session = _record(self._newest(SESSION, process))
        marks = self._newest(HIGH_WATERMARK, process)
        if not marks:
            return ProcessState(process, session)
        metadata = json.loads(marks[0]["metadata"])
        return ProcessState(
            process=process,
            session=session,
            watermarks={r["source"]: _watermark(r) for r in marks},
            committed=_committed(metadata),
            revision=marks[0]["revision"],
            published_snapshot_id=metadata.get("published_snapshot_id"),
        )

    def watermark_session(self, process: str) -> str | None:
        """The session that moved the watermarks of a process last."""
        marks = self._newest(HIGH_WATERMARK, process)
        return marks[0]["session_id"] if marks else None

    def record(self, record: SessionRecord, *, after: SessionRecord | None) -> SessionRecord:
        """Append the next state of a session; `after` is the newest record it starts from.

        Raises `StateMoved` when another has moved the process meanwhile.
        """
        moved = replace(record, revision=(after.revision if after else 0) + 1)
        expected = after.revision if after else 0
        self._append(SESSION, record.plan.process, expected, [_session_row(moved)])
        return moved

    def move_watermarks(
        self, state: ProcessState, plan: SessionPlan, committed: Committed, published: int | None
    ) -> None:
        """Move all watermarks of a process from what `state` says to where `plan` ends: a rebuild where it started.

        Raises `StateMoved` when they are not where `state` says.
        """
        metadata = _metadata(committed, published)
        rows = [
            _watermark_row(plan, mark, state.watermarks.get(mark.source), metadata, state.revision + 1)
            for mark in map(_end_of, plan.sources)
        ]
        self._append(HIGH_WATERMARK, plan.process, state.revision, rows)

    def quarantine(self, target: str, rows: Sequence[Mapping[str, Any]]) -> int:
        """Add rows (source, row_hash, session_id, reason, row) that are not there yet; how many were added."""
        if not rows:
            return 0
        for attempt in tables.retrying(seconds=30):
            with attempt:
                table = tables.load(self.catalog, QUARANTINE)
                known = table.scan(
                    And(_equal("target", target), In("row_hash", {r["row_hash"] for r in rows})),  # type: ignore[call-arg, arg-type]
                    selected_fields=("source", "row_hash"),
                ).to_arrow()
                seen = {(r["source"], r["row_hash"]) for r in known.to_pylist()}
                new = {(r["source"], r["row_hash"]): {"target": target, **r} for r in rows}
                added = [row for key, row in new.items() if key not in seen]
                if added:
                    table.append(_arrow(table, added))
                return len(added)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def history(self, process: str) -> list[SessionRecord]:
        """Every session of a process, oldest first, each as its newest row tells it."""
        rows = tables.load(self.catalog, SESSION).scan(_equal("process_name", process)).to_arrow().to_pylist()
        newest: dict[str, dict[str, Any]] = {}
        for row in sorted(rows, key=lambda r: r["revision"]):
            newest.pop(row["session_id"], None)
            newest[row["session_id"]] = row
        return [_record_of(row) for row in newest.values()]

    def _newest(self, name: str, process: str) -> list[dict[str, Any]]:
        table = tables.find(self.catalog, name)
        return _Log(table, process).newest() if table else []

    def _append(self, name: str, process: str, expected: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for attempt in tables.retrying(seconds=30):
            with attempt:
                table = tables.load(self.catalog, name)
                log = _Log(table, process)
                if log.revision != expected:
                    raise StateMoved(
                        process, expected=f"revision {expected} of {name}", found=f"revision {log.revision}"
                    )
                with table.transaction() as transaction:
                    transaction.append(_arrow(table, rows))
                    _forget_old_snapshots(transaction, table)
        # The move is made: if somebody is in the way now, merging can wait.
        with suppress(CommitFailedException):
            log.merge_small_files()


def _equal(column: str, value: str) -> BooleanExpression:
    # Its type is that of its JSON form, not of its constructor.
    return EqualTo(column, value)  # type: ignore[call-arg, arg-type]


def _forget_old_snapshots(transaction: Transaction, table: Table) -> None:
    """All but the newest few; what a branch or a tag holds on to stays."""
    snapshots = sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
    if len(snapshots) > 2 * KEEP_SNAPSHOTS:
        held = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [s.snapshot_id for s in snapshots[:-KEEP_SNAPSHOTS] if s.snapshot_id not in held]
        ExpireSnapshots(transaction).by_ids(old).commit()


class _Log:
    """The rows of one process in one state of a log table, by its files' bounds: a lookup opens one file, or none."""

    def __init__(self, table: Table, process: str) -> None:
        self.table, self.process = table, process
        self.mine = _equal("process_name", process)
        self.column = table.schema().find_field("revision")
        manifests = [m for s in [table.current_snapshot()] if s for m in s.manifests(table.io)]
        # As it was created and as it is written here; else somebody has changed it, and it is read as anybody would.
        plain = all(m.content is ManifestContent.DATA and m.partition_spec_id == 0 for m in manifests)
        # Not by a scan: it judges file by file what the partition says at once.
        entries = [e for m in manifests for e in m.fetch_manifest_entry(table.io)] if plain else []
        self.files = [e.data_file for e in entries if e.data_file.partition[0] == process]
        bounds = [self._bound(f.upper_bounds) for f in self.files]
        self.bounds = [b for b in bounds if b is not None]
        self.is_plain = plain and len(self.bounds) == len(self.files)

    @property
    def revision(self) -> int:
        """The newest; 0 without one."""
        if self.is_plain:
            return max(self.bounds, default=0)
        return max((row["revision"] for row in self._rows(self.mine)), default=0)

    def newest(self) -> list[dict[str, Any]]:
        """The rows of the newest revision."""
        revision = self.revision
        if not revision:
            return []
        if not self.is_plain:
            return [row for row in self._rows(self.mine) if row["revision"] == revision]
        wanted = (pc.field("process_name") == self.process) & (pc.field("revision") == revision)
        with self.table.io.new_input(self.files[self.bounds.index(revision)].file_path).open() as opened:
            return cast("list[dict[str, Any]]", pq.read_table(opened, filters=wanted).to_pylist())

    def merge_small_files(self) -> None:
        """Rewrite the newest files as one when they are many. No row changes; once a file is big, it is left alone."""
        small = [f for f in self.files if f.record_count < MERGE_ROWS]
        if len(small) >= MERGE_FILES:
            since = min(self._bound(f.lower_bounds) or 0 for f in small)
            rows = And(self.mine, GreaterThanOrEqual("revision", since))  # type: ignore[call-arg, arg-type]
            self.table.overwrite(self.table.scan(rows).to_arrow(), overwrite_filter=rows)

    def _rows(self, which: BooleanExpression) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", self.table.scan(which).to_arrow().to_pylist())

    def _bound(self, bounds: Mapping[int, bytes] | None) -> int | None:
        bound = (bounds or {}).get(self.column.field_id)
        return None if bound is None else cast("int", from_bytes(cast("PrimitiveType", self.column.field_type), bound))


def _arrow(table: Table, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.Table.from_pylist(list(rows), schema=schema_to_pyarrow(table.schema(), include_field_ids=False))


def _session_row(record: SessionRecord) -> dict[str, Any]:
    plan = record.plan
    first, last = plan.envelope or (None, None)
    landings = sorted((str(u["landing_date"]), u["landing_hour"]) for u in plan.processing_uris if "landing_hour" in u)
    return {
        "process_name": plan.process,
        "session_id": plan.session_id,
        "revision": record.revision,
        "etl_pattern_id": record.pattern_id,
        "state": record.state,
        "kind": plan.kind,
        "load": plan.load,
        "sources": json.dumps([asdict(s) for s in plan.sources]),
        "processing_uris": json.dumps(list(plan.processing_uris)),
        **_date_and_hour("from_event", first),
        **_date_and_hour("to_event", last),
        "from_landing_date": landings[0][0] if landings else None,
        "from_landing_hour": landings[0][1] if landings else None,
        "to_landing_date": landings[-1][0] if landings else None,
        "to_landing_hour": landings[-1][1] if landings else None,
        "hours": json.dumps([{"hour": hour_key(p.hour), "reason": p.reason} for p in plan.hours]),
        "built_hours": json.dumps([hour_key(h) for h in record.built]),
        "pending_hours": json.dumps([hour_key(h) for h in plan.pending]),
        "skipped_hours": json.dumps([hour_key(h) for h in plan.skipped]),
        "unchanged_hours": json.dumps([hour_key(h) for h in record.unchanged]),
        "held_hours": json.dumps(_held_rows(record.held)),
        "complete_through": None if plan.complete_through is None else hour_key(plan.complete_through),
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


def _date_and_hour(prefix: str, hour: int | None) -> dict[str, Any]:
    if hour is None:
        return {f"{prefix}_date": None, f"{prefix}_hour": None}
    moment = datetime.strptime(hour_key(hour), HOUR_FORMAT)
    return {f"{prefix}_date": moment.date().isoformat(), f"{prefix}_hour": moment.hour}


def _record(rows: Sequence[Mapping[str, Any]]) -> SessionRecord | None:
    return _record_of(rows[0]) if rows else None


def _record_of(row: Mapping[str, Any]) -> SessionRecord:
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
        built=tuple(parse_hour(h) for h in json.loads(row["built_hours"])),
        unchanged=tuple(parse_hour(h) for h in json.loads(row["unchanged_hours"])),
        rows_read=row["rows_read"],
        rows_written=row["rows_written"],
        audits=_AUDITS.validate_json(row["audits"]),
    )


def _end_of(source: SourceRange) -> Watermark:
    return Watermark(
        source=source.source,
        table_uuid=source.table_uuid,
        snapshot_id=source.to_snapshot_id,
        sequence_number=source.to_sequence_number,
        timestamp_ms=source.to_timestamp_ms,
        complete_through=source.complete_through,
        totals=source.totals,
        last_hour=source.last_hour,
    )


def _watermark_row(
    plan: SessionPlan, mark: Watermark, previous: Watermark | None, metadata: Mapping[str, Any], revision: int
) -> dict[str, Any]:
    return {
        "process_name": plan.process,
        "source": mark.source,
        "revision": revision,
        "table_uuid": mark.table_uuid,
        "latest_snapshot_id": mark.snapshot_id,
        "previous_snapshot_id": previous.snapshot_id if previous else None,
        "sequence_number": mark.sequence_number,
        "snapshot_timestamp_ms": mark.timestamp_ms,
        "complete_through": None if mark.complete_through is None else hour_key(mark.complete_through),
        "session_id": plan.session_id,
        "metadata": json.dumps(
            {
                **metadata,
                "totals": asdict(mark.totals) if mark.totals else None,
                "last_hour": None if mark.last_hour is None else hour_key(mark.last_hour),
            }
        ),
    }


def _watermark(row: Mapping[str, Any]) -> Watermark:
    metadata = json.loads(row["metadata"])
    return Watermark(
        source=row["source"],
        table_uuid=row["table_uuid"],
        snapshot_id=row["latest_snapshot_id"],
        sequence_number=row["sequence_number"],
        timestamp_ms=row["snapshot_timestamp_ms"],
        complete_through=_hour(row["complete_through"]),
        totals=Totals(**metadata["totals"]) if metadata.get("totals") else None,
        last_hour=_hour(metadata.get("last_hour")),
    )


def _metadata(committed: Committed, published: int | None) -> dict[str, Any]:
    return {
        "pending": [hour_key(h) for h in sorted(committed.pending)],
        "skipped": [hour_key(h) for h in sorted(committed.skipped)],
        "last_built": None if committed.last_built is None else hour_key(committed.last_built),
        "complete_through": None if committed.complete_through is None else hour_key(committed.complete_through),
        "code_version": committed.code_version,
        "uniform_from": None if committed.uniform_from is None else hour_key(committed.uniform_from),
        "published_snapshot_id": published,
        "held": _held_rows(committed.held),
    }


def _held_rows(held: Iterable[HeldHour]) -> list[dict[str, Any]]:
    return [{**asdict(h), "hour": hour_key(h.hour)} for h in held]


def _committed(metadata: Mapping[str, Any]) -> Committed:
    return Committed(
        pending=frozenset(parse_hour(h) for h in metadata["pending"]),
        skipped=frozenset(parse_hour(h) for h in metadata["skipped"]),
        last_built=_hour(metadata["last_built"]),
        complete_through=_hour(metadata["complete_through"]),
        held=tuple(HeldHour(**{**h, "hour": parse_hour(h["hour"])}) for h in metadata.get("held", ())),
        code_version=metadata.get("code_version", ""),
        uniform_from=_hour(metadata.get("uniform_from")),
    )


def _hour(key: str | None) -> int | None:
    return None if key is None else parse_hour(key, where="A stored hour")
