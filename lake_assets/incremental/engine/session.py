"""One session: plan, stage, audit, commit.

1. The state is read, with the target; the log gets the session of that state if it lacks it.
2. The next session is planned, at the snapshots that the sources have now.
3. Its rows are staged as a snapshot that main does not refer to, with the state after the session in its summary.
4. The audits evaluate that snapshot. If they fail in some hours only, and hours do not build on each other, those hours
   are held back: the others are staged and audited again without them.
5. One commit makes the snapshot main. The session happened if and only if this commit did. Then the log is written.

Failure model: a process may die, or stop and continue later, between any two lines, and any number of processes may run
sessions of one target at once. Nothing is open between attempts: one that ends before the commit has left a snapshot
that nobody refers to, and the next attempt plans anew. The commit requires main and the tag as planned, so of two
attempts one wins, and the other plans anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.base.failpoints import reach
from lake_assets.base.hours import format_hours
from lake_assets.errors import AuditFailed, ConfigurationError, NotAsPlanned, PublishConflict, UsageError
from lake_assets.incremental.declaration import Source, Stateless, Target
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.audit_run import audit_scope, evaluate
from lake_assets.incremental.engine.iceberg import deletes_rows, hours_added, hours_left, hours_removed, rows_between
from lake_assets.incremental.engine.key_index import KeyIndex
from lake_assets.incremental.engine.model import (
    AuditResult,
    Committed,
    Decision,
    HeldHour,
    NoSession,
    RowCounts,
    SessionPlan,
    SessionReport,
    held_by,
    hours_to_hold,
    settled,
)
from lake_assets.incremental.engine.planning import committed_after
from lake_assets.incremental.engine.session_log import SessionLog, SessionRecord
from lake_assets.incremental.engine.state import (
    BLOCKED,
    OPENED,
    STATE,
    State,
    after_session,
    logged,
    summary_of,
    unneeded_properties,
)
from lake_assets.incremental.engine.user_code import naming_failed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.incremental.engine.prepare import PreparedRows


MAX_ATTEMPTS = 3
"""How often a session is planned anew because main has moved meanwhile."""

MAX_OVERTAKEN = 20
"""How often in a row a target's session may be overtaken by other processes before the target fails."""

OVERTAKEN_SECONDS = 0.2
"""Pause after a session was overtaken; it grows by as much each time in a row."""

OVERTAKEN = (PublishConflict, CommitFailedException)
"""Errors of a session that another process has overtaken."""

APPEND = "the new rows as one INSERT INTO"
OVERWRITE = "all planned hours, and no others, as one INSERT INTO ... REPLACE WHERE"


@dataclass(frozen=True)
class Context:
    """What every session of an engine uses.

    Attributes:
        start_hour: First hour of the pipeline.
        open_spark: Called when a session has rows to read, not before; None for an engine that only decides.
        leaves_out_unchanged: Whether hours whose rows equal the published ones are left out of the commit.
    """

    catalog: Catalog
    start_hour: int
    log: SessionLog
    clock: Callable[[], datetime]
    open_spark: Callable[[], SparkSession] | None
    leaves_out_unchanged: bool = True

    def spark(self) -> SparkSession:
        """Return the Spark session."""
        assert self.open_spark is not None, "an engine without Spark can only decide"
        return self.open_spark()


@dataclass
class Session:
    """One attempt at a session.

    Attributes:
        target: The target.
        state: The state that it was planned on, with the target's table.
        plan: What it does.
        run_id: The run that makes the attempt.
        seconds: Step → wall time in seconds.
        written: The snapshot that another program has written for it; None if it wrote none.
        is_external: Whether another program writes its rows.
    """

    target: Target
    state: State
    plan: SessionPlan
    run_id: str
    seconds: dict[str, float] = field(default_factory=dict)
    written: Snapshot | None = None
    is_external: bool = False

    @property
    def table(self) -> Table:
        """The target as it was when the session was planned."""
        assert self.state.table is not None, "the tables are created before the first session"
        return self.state.table

    @property
    def has_no_rows(self) -> bool:
        """Whether it reads no row: it builds no hour, and brings no row that may belong in quarantine."""
        return self.plan.load == "none" and not self.plan.landings()

    @property
    def committed_before(self) -> Committed:
        """What the target had committed before; nothing if the session starts anew."""
        return Committed() if self.plan.starts_anew else self.state.committed

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the wall time of the block to a step."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - began


@dataclass(frozen=True)
class Staged:
    """What a session has staged.

    Attributes:
        snapshot_id: The staged snapshot; None if there was no row to write.
        hours: Hours whose partitions the snapshot writes or empties.
        rows: Rows that the snapshot adds.
        unchanged: Planned hours whose rows equal the published ones; the snapshot leaves them out.
        prepared: The rows of the session; None for a session without rows.
        quarantined: Rows that are new to the quarantine, at most one more than the target's limit.
        audits: The results of the audits.
        held: Planned hours that audits hold back; the snapshot leaves them out.
        after: The state after the session.
    """

    after: State
    snapshot_id: int | None = None
    hours: tuple[int, ...] = ()
    rows: int = 0
    unchanged: tuple[int, ...] = ()
    prepared: PreparedRows | None = None
    quarantined: tuple[dict[str, str], ...] = ()
    audits: tuple[AuditResult, ...] = ()
    held: tuple[HeldHour, ...] = ()

    @property
    def audited_hours(self) -> tuple[int, ...]:
        """The hours that audits evaluate, ascending; also those that should have been written and were not."""
        of_rows = self.prepared.hours if self.prepared is not None else ()
        return tuple(sorted({*self.hours, *self.unchanged, *of_rows}))

    @property
    def row_counts(self) -> RowCounts:
        """What became of the source rows."""
        return RowCounts() if self.prepared is None else self.prepared.row_counts


def run(
    context: Context,
    target: Target,
    read: Callable[[], State],
    decide: Callable[[State], Decision],
    *,
    prepare: Callable[[State], bool],
    guard: Callable[[Decision], bool],
    run_id: str,
) -> SessionReport | NoSession:
    """Plan and run a session.

    Args:
        context: What every session uses.
        target: The target.
        read: Returns its present state.
        decide: Plans the session.
        prepare: Changes what has to be changed before a plan, and returns whether it did; then the state is read again.
        guard: Deletes rows that the plan must not read, and returns whether there were any; then it is planned anew.
        run_id: Recorded with the session.

    Raises:
        AuditFailed: A blocking audit failed; nothing is published.
        PublishConflict: Others move main all the time.
    """
    conflicts = 0
    while True:
        began = time.perf_counter()
        state = read()
        if prepare(state):
            continue
        context.log.complete(state)
        decision = decide(state)
        if guard(decision):
            continue
        if isinstance(decision, NoSession):
            return decision
        session = Session(target, state, decision, run_id)
        session.seconds["plan"] = time.perf_counter() - began
        reach("after-planned")
        try:
            return finish(context, session)
        except PublishConflict:
            conflicts += 1
            if conflicts == MAX_ATTEMPTS:
                raise


def finish(context: Context, session: Session) -> SessionReport:
    """Stage, audit and commit a planned session.

    Raises:
        AuditFailed: A blocking audit failed; nothing is published.
        PublishConflict: Main is not as it was when the session was planned.
    """
    iceberg.check_write_audit_publish(session.table, session.target.table)
    started_at = context.clock()
    try:
        staged = _audited(context, session, _stage(context, session, started_at))
        staged = _without_failed_hours(context, session, staged, started_at)
        _stop_if_audits_failed(context, session, staged, started_at)
        with session.timed("publish"):
            rows = [{**row, "session_id": session.plan.session_id} for row in staged.quarantined]
            if rows:
                _check_not_overtaken(context, session)
                context.log.quarantine(session.target.table, rows)
            reach("before-committed")
            after = _commit(context, session, staged)
        reach("after-committed")
    finally:
        if not session.has_no_rows:
            from lake_assets.connections.row_checkpoint import release_checkpoints

            release_checkpoints(context.spark())
    with session.timed("commit"):
        context.log.add(_record(session, staged, "committed", started_at, context.clock(), after), after)
    return _report(session, staged, "committed", after)


# Stage


def _stage(context: Context, session: Session, started_at: datetime, held: Collection[HeldHour] = ()) -> Staged:
    """Prepare the rows of a session without those of held hours, and put them into a staged snapshot if there are any.

    Raises:
        PublishConflict: Main has moved meanwhile.
        RowsFailed: An expression of the target's function failed on a row.
    """
    if session.has_no_rows:
        return Staged(_after(session, started_at, (), (), (), RowCounts()))
    plan = session.plan
    with session.timed("stage"), naming_failed_rows(session.target, plan.hour_numbers):
        prepared = _prepare(context, session, [each.hour for each in held])
        built = (*prepared.hours, *prepared.unchanged)
        after = _after(session, started_at, built, prepared.unchanged, held, prepared.row_counts)
        staged = Staged(
            after=after,
            prepared=prepared,
            quarantined=tuple(prepared.quarantined_rows(session.target.quarantine_limit + 1)),
            unchanged=prepared.unchanged,
            held=tuple(held),
        )
        written = session.written
        if written is None and (session.is_external or not prepared.has_rows):
            return staged
        summary, _ = summary_of(after, publish.base_of(session.table))
        if written is None:
            snapshot = _write(context, session, prepared, summary)
        else:
            snapshot_id = publish.stage_again(
                context.catalog,
                session.target.table,
                written,
                overwrites=plan.load == "overwrite",
                summary=summary,
            )
            found = iceberg.load(context.catalog, session.target.table).snapshot_by_id(snapshot_id)
            assert found is not None
            snapshot = found
        reach("after-staged")
        return _with_snapshot(context, session, staged, prepared, snapshot)


def _write(context: Context, session: Session, prepared: PreparedRows, summary: Mapping[str, str]) -> Snapshot:
    from lake_assets.incremental.engine.prepare import write

    name = session.target.table
    before = iceberg.load(context.catalog, name)
    wap_id = publish.wap_id(session.plan.session_id, publish.next_staging_number(before, session.plan.session_id))
    write(context.spark(), session.target, prepared, wap_id, summary)
    table = iceberg.load(context.catalog, name)
    found = [publish.staged_snapshot(table, wap_id), *publish.staged_snapshots(table, wap_id)]
    # Two attempts at once may have taken the same id. The state has the run, and when it began.
    own = [each for each in found if publish.summary_of(each).get(STATE) == summary[STATE]]
    return own[-1] if own else found[0]


def _prepare(context: Context, session: Session, held: Collection[int]) -> PreparedRows:
    from lake_assets.incremental.engine.stage import Stager

    committed = session.committed_before
    overdue = committed.pending | committed.skipped | committed.held_hours
    leaves_out = context.leaves_out_unchanged and not session.is_external
    stager = Stager(
        context.spark(),
        session.target,
        start=context.start_hour,
        main=publish.main_id(session.table),
        complete_through=committed.complete_through,
        last_built=_last_built(session, overdue) if leaves_out else None,
        overdue=overdue,
        max_rows=_estimated_rows(session),
        index=KeyIndex(context.catalog),
        catalog=context.catalog,
    )
    return stager.prepare(session.plan.without(held))


def _after(
    session: Session,
    started_at: datetime,
    built: Collection[int],
    unchanged: Collection[int],
    held: Collection[HeldHour],
    counts: RowCounts,
) -> State:
    """Return the state after the session. It is part of what is staged."""
    state, plan, mode = session.state, session.plan, session.target.mode
    committed = committed_after(mode, session.committed_before, plan, built, unchanged, held)
    log = logged(
        state,
        plan,
        pattern_id=mode.pattern_id,
        run_id=session.run_id,
        started_at=started_at,
        rows_read=counts.read,
        unchanged=unchanged,
    )
    return after_session(state, plan, committed, log, state.highest + 1)


def _with_snapshot(
    context: Context, session: Session, staged: Staged, prepared: PreparedRows, snapshot: Snapshot
) -> Staged:
    """Return the staged with what its snapshot contains. Raises `PublishConflict` for another parent."""
    target = session.target
    planned_on = publish.main_id(session.table)
    if snapshot.parent_snapshot_id != planned_on:
        raise PublishConflict(target.table, expected=planned_on, found=snapshot.parent_snapshot_id)
    table = iceberg.load(context.catalog, target.table)
    added = hours_added(table, snapshot, target.time_column)
    unexpected = added - set(prepared.hours)
    if unexpected:
        raise ConfigurationError(
            f"{target.table} puts rows into hours that their source rows do not have: {format_hours(unexpected)}.",
            remedy=f"A stateless transform keeps the source's {target.sources[0].time_column} as {target.time_column}.",
        )
    hours = prepared.hours if prepared.load == "overwrite" else tuple(sorted(target.grain.whole(added)))
    return replace(staged, snapshot_id=snapshot.snapshot_id, hours=hours, rows=publish.rows_added(snapshot))


def _last_built(session: Session, overdue: Collection[int]) -> float | None:
    """Return the last hour of the target that may have been built before this session; None if none was."""
    if not isinstance(session.target.mode, Stateless):
        return session.committed_before.last_built
    plan = session.plan
    # Overdue hours are built even if they are empty. So without published rows, a comparison would leave none out.
    if plan.envelope and set(plan.hour_numbers).issubset(overdue):
        return inf if rows_between(session.table, session.target.time_column, *plan.envelope) else None
    return inf


def _estimated_rows(session: Session) -> float:
    """Return about how many rows a session reads or writes, by metadata; infinite if a source does not tell."""
    plan, target, committed = session.plan, session.target, session.committed_before
    if plan.envelope is None:
        return plan.cost.rows
    first, last = plan.envelope
    published = rows_between(session.table, target.time_column, first, last)
    if isinstance(target.mode, Stateless):
        # The rows of hours that were pending came with earlier snapshots, which the cost of the plan does not contain.
        was_pending = not committed.pending.isdisjoint(plan.hour_numbers)
        reads_whole_source = plan.load == "overwrite" and (target.sources[0].has_versions or was_pending)
        waited = sum(each.rows for each in committed.deferred) if plan.late_rows else 0
        return (_source_rows(plan) if reads_whole_source else plan.cost.rows + waited) + published
    state_before = rows_between(session.table, target.time_column, target.grain.first(first - 1), first - 1)
    partitions = len(target.grain.firsts(plan.hour_numbers))
    return _source_rows(plan) + published + state_before * partitions


def _source_rows(plan: SessionPlan) -> float:
    rows = 0.0
    for source in plan.sources:
        if source.to_snapshot_id is not None:
            rows += source.totals.rows if source.totals else inf
    return rows


# Audit


def _audited(context: Context, session: Session, staged: Staged) -> Staged:
    """Return the staged with the results of its audits."""
    if staged.prepared is None:
        return staged
    with session.timed("audit"):
        target = session.target
        of_rows = _quarantine_results(target, staged) + ties_result(target, staged.row_counts.tied)
        if staged.prepared.load == "none":
            return replace(staged, audits=of_rows)
        # Without a staged row the audits evaluate what is published: a source that was not read has rows, too.
        scope = audit_scope(
            context.catalog,
            context.spark(),
            target,
            session.plan,
            staged.prepared,
            snapshot_id=staged.snapshot_id,
            parent=publish.main_id(session.table),
            hours=staged.audited_hours,
            rows=staged.rows,
            start=context.start_hour,
        )
        return replace(staged, audits=evaluate(target.audits, scope) + of_rows)


def _without_failed_hours(context: Context, session: Session, staged: Staged, started_at: datetime) -> Staged:
    """Stage and audit again without the hours in which blocking audits failed.

    Returns:
        The second staging, with the held hours; `staged` itself if no hour can be held back, because none failed or
        because hours build on each other.
    """
    before = session.committed_before.held_hours
    hours = hours_to_hold(session.target.mode, staged.audits, staged.audited_hours, before)
    if not hours or session.is_external:
        return staged
    held = held_by(session.plan, staged.audits)
    without = _audited(context, session, _stage(context, session, started_at, held))
    if failures(without.audits):
        return replace(without, held=())
    return replace(without, audits=settled(staged.audits, without.audits))


def _stop_if_audits_failed(context: Context, session: Session, staged: Staged, started_at: datetime) -> None:
    """Remember that a blocking audit stopped the session, if no hours are held back for it.

    Raises:
        AuditFailed: A blocking audit failed. Nothing is published.
    """
    failed = failures(staged.audits)
    if staged.held or not failed:
        return
    plan, name = session.plan, session.target.table
    _check_not_overtaken(context, session)
    blocked = {
        "session_id": plan.session_id,
        "code_version": plan.code_version,
        # Without keys: no erasure could remove them from the metadata files of before.
        "failed": failures(replace(audit, sample=()) for audit in staged.audits),
        "run_id": session.run_id,
        "n": staged.after.n,
    }
    _set_property(context.catalog, name, BLOCKED, json.dumps(blocked))
    context.log.add(_record(session, staged, "blocked", started_at, context.clock(), staged.after))
    error = AuditFailed(name, failed)
    error.report = _report(session, staged, "blocked", staged.after)
    raise error


def _check_not_overtaken(context: Context, session: Session) -> None:
    """Check that nobody has moved the target meanwhile, before rows or keys of them are written elsewhere.

    A process that was paused may know rows that an erasure has removed since.

    Raises:
        PublishConflict: Somebody has.
    """
    name = session.target.table
    publish.check_base(iceberg.load(context.catalog, name), name, publish.base_of(session.table))


def failures(audits: Iterable[AuditResult]) -> dict[str, str]:
    """Return the blocking audits that failed: name → counts and offending keys, for a message."""
    failed = {}
    for audit in audits:
        if audit.blocking and not audit.passed:
            counts = ", ".join(f"{number} {counted}" for counted, number in audit.counts.items())
            failed[audit.name] = f"{counts} (such as {', '.join(audit.sample)})" if audit.sample else counts
    return failed


def quarantine_results(target: Target, *, all_rows: int, new_rows: int) -> tuple[AuditResult, AuditResult]:
    """Return a warning on all quarantined rows, and the blocking limit on those that are new to the quarantine.

    Args:
        target: The target.
        all_rows: Rows of the driving source that belong in quarantine.
        new_rows: Rows of any source that are not in it yet.
    """
    limit = target.quarantine_limit
    quarantined = max(all_rows, new_rows)
    warning = AuditResult(
        name="quarantine",
        passed=quarantined == 0,
        blocking=False,
        counts={"quarantined": quarantined},
        description="no row is quarantined",
    )
    blocking = AuditResult(
        name="quarantine_limit",
        passed=new_rows <= limit,
        blocking=True,
        counts={"quarantined": new_rows, "limit": limit},
        description=f"at most {limit} rows are new to the quarantine",
    )
    return warning, blocking


def ties_description(source: Source) -> str:
    """Return what the warning on ties says of a source with a key."""
    if not source.has_versions:
        return f"no two rows of one {source.key} and {source.time_column} differ and landed together"
    order = ", ".join(source.order_columns)
    return f"no two versions of one {source.key} have equal {order} and landed together"


def ties_result(target: Target, tied: int) -> tuple[AuditResult, ...]:
    """Return a warning on rows that count by nothing but a hash; none for a target that reads no keys.

    Args:
        target: The target.
        tied: Number of such rows of the driving source.
    """
    source = target.sources[0]
    if source.key is None:
        return ()
    ties = AuditResult(
        name="ties",
        passed=tied == 0,
        blocking=False,
        counts={"tied": tied},
        description=ties_description(source),
    )
    return (ties,)


def _quarantine_results(target: Target, staged: Staged) -> tuple[AuditResult, AuditResult]:
    new_rows = len(staged.quarantined)
    if new_rows > target.quarantine_limit and staged.prepared is not None:
        new_rows = staged.prepared.count_quarantined()  # no more than the limit + 1 were collected
    return quarantine_results(target, all_rows=staged.row_counts.quarantined, new_rows=new_rows)


# Commit


def _commit(context: Context, session: Session, staged: Staged) -> State:
    """Make what was staged main, with its state. Return the state as it is stored."""
    return commit_state(context.catalog, session.table, staged.after, staged.snapshot_id)


def commit_state(catalog: Catalog, planned_on: Table, after: State, snapshot_id: int | None) -> State:
    """End a session: its snapshot becomes main, in one commit.

    Args:
        catalog: The catalog of the target.
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
    changed: dict[str, str | None] = {
        OPENED: None,
        BLOCKED: None,
        iceberg.SESSION_PROPERTY: after.session_id,
        **properties,
    }
    changed |= unneeded_properties(planned_on, properties)
    changed |= iceberg.complete_through_property(after.committed.complete_through)
    table = publish.end_session(catalog, after.process, base, snapshot_id, summary=summary, properties=changed)
    stored = publish.tag_id(table) if snapshot_id is None else snapshot_id
    snapshot = table.snapshot_by_id(stored) if stored is not None else None
    number = snapshot.sequence_number or 0 if snapshot else 0
    return replace(after, snapshot_id=stored, sequence_number=number, table=table)


def _set_property(catalog: Catalog, name: str, key: str, value: str) -> None:
    for attempt in iceberg.retrying():
        with attempt, iceberg.load(catalog, name).transaction() as transaction:
            transaction.set_properties({key: value})


def _record(
    session: Session, staged: Staged, state: Any, started_at: datetime, ended_at: datetime, after: State
) -> SessionRecord:
    return SessionRecord(
        plan=session.plan,
        state=state,
        revision=after.n,
        pattern_id=session.target.mode.pattern_id,
        run_id=session.run_id,
        started_at=started_at,
        ended_at=ended_at,
        staged_snapshot_id=staged.snapshot_id,
        published_snapshot_id=staged.snapshot_id if state == "committed" else None,
        built=staged.hours,
        unchanged=staged.unchanged,
        rows_read=staged.row_counts.read,
        rows_written=staged.rows,
        audits=staged.audits,
    )


def _report(session: Session, staged: Staged, status: Any, after: State) -> SessionReport:
    counts = staged.row_counts
    report = SessionReport(
        plan=session.plan,
        status=status,
        held=staged.held,
        staged_snapshot_id=staged.snapshot_id,
        rows_read=counts.read,
        rows_written=staged.rows,
        rows_duplicate=counts.duplicates,
        rows_quarantined=counts.quarantined,
        rows_late=counts.late,
        lateness_p50_minutes=counts.lateness_p50,
        lateness_p95_minutes=counts.lateness_p95,
        lateness_max_minutes=counts.lateness_max,
        audits=staged.audits,
        seconds=session.seconds,
        data_version=str(staged.snapshot_id) if staged.snapshot_id else None,
    )
    if status == "blocked":
        return report
    held_before = session.committed_before.held_hours
    return replace(
        report,
        hours_built=staged.hours,
        hours_unchanged=staged.unchanged,
        released=tuple(hour for hour in staged.audited_hours if hour in held_before),
        published_snapshot_id=staged.snapshot_id,
    )


# What another program has written


def next_wap_id(table: Table, plan: SessionPlan) -> str:
    """Return the WAP id that another program has to write the open session of a target under."""
    own_id = _id_of_writes(table, plan)
    return publish.wap_id(own_id, publish.next_staging_number(table, own_id))


def _id_of_writes(table: Table, plan: SessionPlan) -> str:
    """Return what the WAP ids of an open session begin with: an id of its plan, whatever id a caller gave it."""
    text = table.metadata.properties.get(OPENED)
    opened = json.loads(text) if text else {"plan": {"session_id": None}}
    is_open = opened["plan"]["session_id"] == plan.session_id
    return str(opened.get("wap", plan.session_id)) if is_open else plan.session_id


def find_written(table: Table, plan: SessionPlan, time_column: str) -> Snapshot | None:
    """Return the newest snapshot that another program has staged for a session; None if no row had to be written.

    Raises:
        UsageError: Nothing was written.
        NotAsPlanned: What was written is not what the plan says.
    """
    own_id = _id_of_writes(table, plan)
    number = publish.next_staging_number(table, own_id) - 1
    if number == 0:
        if plan.load == "none":
            return None
        raise UsageError(
            f"Nothing was written for {plan.session_id}: no snapshot of its target has its WAP id.",
            remedy=f"Write with spark.wap.id set to {publish.wap_id(own_id, 1)}, in one commit.",
        )
    wap = publish.wap_id(own_id, number)
    found = publish.staged_snapshots(table, wap)
    deviations = _deviations(table, found, plan, time_column)
    if deviations:
        instruction = OVERWRITE if plan.load == "overwrite" else APPEND
        raise NotAsPlanned(plan.process, wap, " and ".join(deviations), write=instruction)
    return found[0]


def _deviations(table: Table, snapshots: list[Snapshot], plan: SessionPlan, time_column: str) -> list[str]:
    """Return how snapshots differ from a plan. Audits see the rows that were added, but not which were removed."""
    if len(snapshots) > 1:
        return [f"makes {len(snapshots)} snapshots, of which one alone could be published"]
    replaced = set(plan.hour_numbers) if plan.load == "overwrite" else set()
    found = []
    for snapshot in snapshots:
        if deletes_rows(table, snapshot):
            found.append("deletes single rows")
        unplanned = hours_removed(table, snapshot, time_column) - replaced
        if unplanned:
            found.append(f"removes rows of {_in_words(unplanned)}, which was not planned")
        left = hours_left(table, snapshot, time_column, replaced)
        if left:
            found.append(f"leaves the former rows of {_in_words(left)}, which are to be replaced")
    return found


def _in_words(hours: Collection[int | None]) -> str:
    """Return hours for a message; None stands for rows without a time."""
    timed = [hour for hour in hours if hour is not None]
    formatted = [format_hours(timed)] if timed else []
    return " and ".join(formatted + (["no hour"] if None in hours else []))
