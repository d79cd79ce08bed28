"""What sessions cost, and what a fixed lookback would have cost and missed instead. Pure: from session records.

Everything that tables record about lateness, sessions and the cost of catching up; read without Spark.

Of raw tables, two columns are read, a group of data files at a time; of targets, metadata; of `etl.session` and
`etl.quarantine`, the needed columns and rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import DataScan, FileScanTask, Table

from lake_assets.base.grain import HOUR, Grain
from lake_assets.base.progress import Progress, unseen
from lake_assets.errors import TableMissing
from lake_assets.errors.described import describe
from lake_assets.errors.texts import ErrorText
from lake_assets.incremental.declaration import LANDED, Pipeline, RawTable, Target
from lake_assets.incremental.declaration.column_lineage import column_sources
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.arrivals import LOOKBACK_HOURS, Arrivals, arrival_counter, count_by_commit
from lake_assets.incremental.engine.columns import check_time_columns, load_raw
from lake_assets.incremental.engine.complete import source_complete_through
from lake_assets.incremental.engine.iceberg import QUARANTINE, rows_by_hour
from lake_assets.incremental.engine.model import AuditResult, HeldHour, capped
from lake_assets.incremental.engine.session_log import SessionLog, SessionRecord
from lake_assets.incremental.engine.state import State, read_state


@dataclass(frozen=True)
class SessionCost:
    """One session: what it did, and what a fixed lookback would have done instead.

    Event hours are in hours since 1970-01-01 UTC, ascending.

    Attributes:
        session_id: Its id.
        state: Its newest state.
        kind: `session` or `rebuild`.
        load: `append`, `overwrite` or `none`.
        reason: Why its first hour was planned; without hours, what the session is for.
        started_at: When it was planned.
        ended_at: When it ended; None while it is open.
        seconds: Wall time from planning to its end; None while it is open.
        planned: Planned event hours.
        built: Event hours that it published.
        rows_read: Rows read.
        rows_written: Rows written.
        lookback: Event hours that a lookback would have reprocessed: the last hours up to the hour that the target
            reaches with the session, and all new ones. Empty for a session that built nothing, and for a rebuild, which
            a person requested.
        lookback_rows: Rows that the target has in these hours at present.
        missed: Hours in `built` that a lookback would have left wrong.
        failed_audits: Audits that failed.
    """

    session_id: str
    state: str
    kind: str
    load: str
    reason: str
    started_at: datetime
    ended_at: datetime | None
    seconds: float | None
    planned: tuple[int, ...]
    built: tuple[int, ...]
    rows_read: int
    rows_written: int
    lookback: range = range(0)
    lookback_rows: int = 0
    missed: tuple[int, ...] = ()
    failed_audits: tuple[AuditResult, ...] = ()


@dataclass(frozen=True)
class LookbackComparison:
    """The sessions of one target that have a lookback, compared with it. An hour counts once for each session.

    Attributes:
        sessions: Number of compared sessions.
        hours_rebuilt: Hours that the sessions rebuilt.
        rows_written: Rows that they wrote.
        seconds: Wall time that they took.
        lookback_hours: Hours that the lookback would have reprocessed.
        lookback_rows: Rows that it would have written.
        hours_saved: `lookback_hours` minus `hours_rebuilt`; negative if the lookback would have reprocessed less.
        rows_saved: `lookback_rows` minus `rows_written`.
        missed_hours: Late hours that the lookback would have left wrong.
    """

    sessions: int = 0
    hours_rebuilt: int = 0
    rows_written: int = 0
    seconds: float = 0.0
    lookback_hours: int = 0
    lookback_rows: int = 0
    hours_saved: int = 0
    rows_saved: int = 0
    missed_hours: int = 0


def lookback(
    built: Collection[int],
    *,
    through: int | None,
    before: int | None,
    start: int,
    hours: int,
    grain: Grain = HOUR,
) -> range:
    """Return the event hours that a fixed lookback would have reprocessed; none if the session built none.

    Args:
        built: Hours that the session built.
        through: The target's complete-through after the session; None if the session did not move it.
        before: The target's complete-through before the session. Later hours are new, so the lookback includes them.
        start: The pipeline's first hour.
        hours: Length of the lookback, rounded up to whole partitions.
        grain: The target's partitions.
    """
    if not built:
        return range(0)
    last = max(hour for hour in (through, before, *built) if hour is not None)
    first_new = min(built) if before is None else before + 1
    first = max(start, min(last - hours + 1, first_new))
    return range(grain.first(first), grain.last(last) + 1)


def costs(
    history: Iterable[SessionRecord],
    *,
    rows_by_hour: Mapping[int, int],
    start: int,
    hours: int,
    grain: Grain = HOUR,
) -> tuple[SessionCost, ...]:
    """Return the costs of the sessions of one target, in the order of `history`.

    Args:
        history: The sessions, oldest first.
        rows_by_hour: Event hour → rows of the target at present.
        start: The pipeline's first hour.
        hours: Length of the lookback.
        grain: The target's partitions.
    """
    found = []
    before: int | None = None
    for record in history:
        is_committed = record.state == "committed"
        built = record.built if is_committed else ()
        through = record.plan.complete_through
        compared = built if record.plan.kind == "session" else ()
        span = lookback(
            compared,
            through=through,
            before=before,
            start=start,
            hours=hours,
            grain=grain,
        )
        found.append(_session_cost(record, built, span, rows_by_hour))
        if is_committed:
            reached = capped(through, [held.hour for held in record.held], before)
            if reached is not None:
                before = reached if before is None else max(before, reached)
    return tuple(found)


def compare_with_lookback(sessions: Iterable[SessionCost]) -> LookbackComparison:
    """Return the sums over the sessions that have a lookback."""
    compared = [session for session in sessions if session.lookback]
    hours_rebuilt = 0
    lookback_hours = 0
    missed_hours = 0
    for session in compared:
        hours_rebuilt += len(session.built)
        lookback_hours += len(session.lookback)
        missed_hours += len(session.missed)
    rows_written = sum(session.rows_written for session in compared)
    lookback_rows = sum(session.lookback_rows for session in compared)
    return LookbackComparison(
        sessions=len(compared),
        hours_rebuilt=hours_rebuilt,
        rows_written=rows_written,
        seconds=sum(session.seconds or 0.0 for session in compared),
        lookback_hours=lookback_hours,
        lookback_rows=lookback_rows,
        hours_saved=lookback_hours - hours_rebuilt,
        rows_saved=lookback_rows - rows_written,
        missed_hours=missed_hours,
    )


def _session_cost(
    record: SessionRecord,
    built: tuple[int, ...],
    span: range,
    rows_by_hour: Mapping[int, int],
) -> SessionCost:
    plan = record.plan
    seconds = None if record.ended_at is None else (record.ended_at - record.started_at).total_seconds()
    return SessionCost(
        session_id=plan.session_id,
        state=record.state,
        kind=plan.kind,
        load=plan.load,
        reason=plan.reason,
        started_at=record.started_at,
        ended_at=record.ended_at,
        seconds=seconds,
        planned=plan.hour_numbers,
        built=built,
        rows_read=record.rows_read,
        rows_written=record.rows_written,
        lookback=span,
        lookback_rows=sum(rows for hour, rows in rows_by_hour.items() if hour in span),
        missed=tuple(hour for hour in built if hour < span.start) if span else (),
        failed_audits=tuple(audit for audit in record.audits if not audit.passed),
    )


SESSIONS = 1000
"""How many of a target's newest sessions are compared with a lookback: those of some weeks."""

ROWS_PER_SCAN = 2_000_000
"""Rows of the data files that one scan reads, approximately: pyiceberg holds all files of a scan in memory."""


@dataclass(frozen=True)
class TableProgress:
    """How far one table is complete.

    Attributes:
        table: Its name.
        kind: `raw`, or the mode of a target in lower case.
        complete_through: Last complete hour, inclusive; None if nothing has declared one.
        problem: Why its rows or its progress cannot be read; None if they can.
        remedy: What to do about the problem.
    """

    table: str
    kind: str
    complete_through: int | None
    problem: str | None = None
    remedy: str = ""


@dataclass(frozen=True)
class QuarantinedRows:
    """Number of rows of one source in quarantine, by reason."""

    source: str
    reason: str
    rows: int


@dataclass(frozen=True)
class ColumnOverview:
    """One column of a target, as declared.

    Attributes:
        name: Its name.
        iceberg_type: Its type.
        description: What is in it; empty if the declaration does not say.
        sources: The source columns that it comes from, each `namespace.name.column`.
    """

    name: str
    iceberg_type: str
    description: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class TargetOverview:
    """One target.

    Attributes:
        table: Its name.
        sessions: Its sessions with their costs, oldest first.
        saving: What the sessions cost, compared with a fixed lookback.
        pending: Hours that changed and are not rebuilt yet.
        skipped: Hours beyond the catch-up threshold that are not built.
        quarantine: Rows in quarantine, most first.
        held: Hours that audits hold back.
        problem: In which way it is not as its sessions left it, or why it cannot be read; None if all is well.
        columns: Its columns, in order.
        remedy: What to do about the problem.
    """

    table: str
    sessions: tuple[SessionCost, ...]
    saving: LookbackComparison
    pending: tuple[int, ...]
    skipped: tuple[int, ...]
    quarantine: tuple[QuarantinedRows, ...]
    held: tuple[HeldHour, ...] = ()
    problem: str | None = None
    columns: tuple[ColumnOverview, ...] = ()
    remedy: str = ""

    @property
    def has_marked_hours(self) -> bool:
        """Whether any hour is pending, skipped or held back."""
        return bool(self.pending or self.skipped or self.held)


@dataclass(frozen=True)
class Overview:
    """A pipeline, according to its tables.

    Attributes:
        made_at: When the overview was made.
        lookback_hours: Length of the fixed lookback that sessions are compared with.
        standings: How far each table is complete.
        arrivals: When the rows of each raw table arrived; without the raw tables that have a problem or no `landed_at`.
        targets: The targets, upstream ones first.
    """

    made_at: datetime
    lookback_hours: int
    standings: tuple[TableProgress, ...]
    arrivals: tuple[Arrivals, ...]
    targets: tuple[TargetOverview, ...]


@dataclass(frozen=True)
class _Raw:
    progress: TableProgress
    arrivals: Arrivals | None


def overview(catalog: Catalog, pipeline: Pipeline, *, now: datetime, progress: Progress = unseen) -> Overview:
    """Return the present overview of a pipeline.

    A table that is missing, damaged or not as declared has a problem in the overview; the others are read all the same.

    Raises:
        TableMissing: The engine's own tables are not in the catalog: nobody has run `lake init`.
    """
    quarantine = _quarantine(catalog)
    log = SessionLog(catalog)
    raw = [_read_raw(catalog, pipeline, table) for table in progress(pipeline.raw)]
    targets = []
    for target in progress(pipeline.in_order()):
        quarantined = quarantine.get(target.table, ())
        found = _target_overview(log, target, pipeline.start_hour, quarantined)
        targets.append(replace(found, columns=tuple(_columns(pipeline, target))))
    return Overview(
        made_at=now,
        lookback_hours=LOOKBACK_HOURS,
        standings=(*(found.progress for found in raw), *_target_progress(catalog, pipeline)),
        arrivals=tuple(found.arrivals for found in raw if found.arrivals),
        targets=tuple(targets),
    )


def arrivals(catalog: Catalog, raw: RawTable, *, start: int) -> Arrivals:
    """Return when the rows of a raw table arrived; `start` is the pipeline's first event hour."""
    return arrivals_of(load_raw(catalog, raw), raw, start=start)


def arrivals_of(table: Table, raw: RawTable, *, start: int) -> Arrivals:
    """Return when the rows of a raw table that is loaded arrived; `start` is the pipeline's first event hour."""
    counter = arrival_counter(raw, start)
    if raw.landed_column is None:
        count_by_commit(table, raw, counter)
        return counter.result()
    if not raw.exists_already:
        iceberg.check_columns(table, raw.table, {raw.time_column: "timestamptz", LANDED: "timestamptz"})
    for batch in _batches(table.scan(selected_fields=(raw.time_column, raw.landed_column))):
        counter.add(batch)
    return counter.result()


def _batches(scan: DataScan) -> Iterator[pa.RecordBatch]:
    from lake_assets.incremental.engine.iceberg import ArrowScan

    for tasks in _groups(scan.plan_files()):
        reader = ArrowScan(scan.table_metadata, scan.io, scan.projection(), scan.row_filter, scan.case_sensitive)
        yield from reader.to_record_batches(tasks)


def _groups(tasks: Iterable[FileScanTask]) -> Iterator[list[FileScanTask]]:
    """Yield the files of a scan in groups that are read one after the other."""
    group: list[FileScanTask] = []
    rows = 0
    for task in tasks:
        group.append(task)
        rows += task.file.record_count
        if rows >= ROWS_PER_SCAN:
            yield group
            group = []
            rows = 0
    if group:
        yield group


def _read_raw(catalog: Catalog, pipeline: Pipeline, raw: RawTable) -> _Raw:
    try:
        table = iceberg.load(catalog, raw.table)
        progress = TableProgress(raw.table, "raw", source_complete_through(table, raw.table, pipeline))
        if not raw.exists_already and LANDED not in table.schema().column_names:  # nobody knows when its rows arrived
            return _Raw(progress, None)
        if raw.exists_already:
            check_time_columns(table, raw)
        return _Raw(progress, arrivals_of(table, raw, start=pipeline.start_hour))
    except Exception as error:  # whatever another program's table makes its reader raise concerns only this table
        text = describe(error)
        return _Raw(TableProgress(raw.table, "raw", None, text.problem, text.remedy), None)


def _target_progress(catalog: Catalog, pipeline: Pipeline) -> Iterator[TableProgress]:
    for target in pipeline.in_order():
        kind = type(target.mode).__name__.lower()
        try:
            table = iceberg.find(catalog, target.table)
            through = iceberg.complete_through(table, target.table) if table else None
            yield TableProgress(target.table, kind, through)
        except Exception as error:  # concerns only this target
            text = describe(error)
            yield TableProgress(target.table, kind, None, text.problem, text.remedy)


def _target_overview(
    log: SessionLog, target: Target, start: int, quarantine: Iterable[QuarantinedRows]
) -> TargetOverview:
    state, problem = _state(log, target)
    sessions = costs(
        log.history(target.table, newest=SESSIONS),
        rows_by_hour=rows_by_hour(state.table, target.time_column) if state.table else {},
        start=start,
        hours=LOOKBACK_HOURS,
        grain=target.grain,
    )
    return TargetOverview(
        table=target.table,
        sessions=sessions,
        saving=compare_with_lookback(sessions),
        pending=tuple(sorted(state.committed.pending)),
        skipped=tuple(sorted(state.committed.skipped)),
        quarantine=tuple(quarantine),
        held=state.committed.held,
        problem=problem.problem if problem else None,
        remedy=problem.remedy if problem else "",
    )


def _state(log: SessionLog, target: Target) -> tuple[State, ErrorText | None]:
    """Return the state of a target, empty if it cannot be read, and why it cannot."""
    try:
        state = read_state(log.catalog, log, target.table)
    except Exception as error:  # concerns only this target
        return State(target.table), describe(error)
    if state.table is None:
        return state, describe(TableMissing(target.table))
    return state, None


def _columns(pipeline: Pipeline, target: Target) -> Iterator[ColumnOverview]:
    sources = column_sources(pipeline, target)
    for name, iceberg_type in target.columns.items():
        yield ColumnOverview(name, iceberg_type, target.descriptions.get(name, ""), sources.get(name, ()))


def _quarantine(catalog: Catalog) -> Mapping[str, Sequence[QuarantinedRows]]:
    """Return each target's rows in quarantine by source and reason, most first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    scan = iceberg.load(catalog, QUARANTINE).scan(selected_fields=("target", "source", "reason"))
    for batch in _batches(scan):
        grouped = pa.Table.from_batches([batch]).group_by(batch.schema.names)
        for row in grouped.aggregate([([], "count_all")]).to_pylist():
            counts[row["target"], row["source"], row["reason"]] += row["count_all"]
    found: defaultdict[str, list[QuarantinedRows]] = defaultdict(list)
    for (target, source, reason), rows in sorted(counts.items()):
        found[target].append(QuarantinedRows(source, reason, rows))
    for quarantined in found.values():
        quarantined.sort(key=lambda each: each.rows, reverse=True)
    return found
