"""The engine: decide what a process does next, and do it: stage → audit → publish → commit, each step safe to repeat.

Knows nothing of Dagster. Takes a pyiceberg catalog, a Spark session, a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lake_assets.errors import AuditFailed, PublishConflict, StateMoved
from lake_assets.incremental import publish, tables
from lake_assets.incremental.audits import AuditScope
from lake_assets.incremental.changes import Head, SourceChanges, changes, hours_present
from lake_assets.incremental.declaration import Pipeline, RawTable, Source, Stateful, Stateless, Target
from lake_assets.incremental.failpoints import reach
from lake_assets.incremental.hours import hour_key, spell
from lake_assets.incremental.plan import Committed, Question, plan, plan_rebuild
from lake_assets.incremental.session import AuditResult, Decision, SessionPlan, SessionReport, Waiting
from lake_assets.incremental.sessions import ProcessState, SessionRecord, SessionStore, create_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.incremental.stage import Content, Stager, Staging

ATTEMPTS = 3
"""How often a session is staged when main keeps moving under it."""

LOOKBACK_HOURS = 6
"""The fixed lookback that sessions are compared with in their figures."""

Heads = Mapping[str, tuple[int | None, int | None]]
"""Source → (snapshot id, complete-through) to plan up to; of `SessionPlan.heads`."""


@dataclass(frozen=True)
class RawSnapshot:
    """One snapshot of a raw table. rows_by_hour: landing hour → rows added. event_*: bounds of its event times, or None."""

    snapshot_id: int
    operation: str
    committed_at_ms: int
    rows_by_hour: Mapping[int, int]
    event_lower: datetime | None
    event_upper: datetime | None


@dataclass
class _Work:
    """The running state of one session: what is known so far, for the report."""

    target: Target
    state: ProcessState
    record: SessionRecord
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def plan(self) -> SessionPlan:
        return self.record.plan

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - began


@dataclass(frozen=True)
class _Staged:
    """A staged snapshot (None: no rows) and what is known of it. parent: main when it was staged."""

    snapshot_id: int | None
    parent: int | None
    hours: tuple[int, ...]
    staging: Staging | None
    content: Content | None
    audits: tuple[AuditResult, ...] = ()


class Engine:
    """Runs the processes of a pipeline on a catalog.

    clock: the time of the session records, and nothing else. spark: called when a session has rows to build, not before.
    """

    def __init__(
        self,
        catalog: Catalog,
        pipeline: Pipeline,
        *,
        clock: Callable[[], datetime],
        spark: Callable[[], SparkSession] | None = None,
    ) -> None:
        self.catalog, self.pipeline, self.clock = catalog, pipeline, clock
        self.spark = spark
        self.store = SessionStore(catalog)

    def create_tables(self) -> list[str]:
        """Create every table that is not there yet; their names."""
        created = create_tables(self.catalog)
        created += [r.table for r in self.pipeline.raw if tables.create_raw(self.catalog, r)]
        return created + [t.table for t in self.pipeline.targets if tables.create_target(self.catalog, t)]

    def decide(self, target: Target) -> Decision:
        """What the next session of a target is: an open one, a new one, or none, and why. Metadata only."""
        state = self.store.state(target.table)
        if state.open_session:
            return state.open_session.plan
        return self._decide(target, state, None)

    def unsettled(self, target: Target) -> str | None:
        """Why a target should wait for those it is built from: an open session, or changes nobody has planned; or None."""
        for upstream in self.pipeline.upstream_of(target):
            decision = self.decide(upstream)
            if isinstance(decision, SessionPlan):
                return f"{upstream.table} is about to change ({decision.session_id})"
        return None

    def run(self, target: Target, *, up_to: Heads | None = None, run_id: str = "") -> SessionReport | Waiting:
        """Finish the open session of a target, or plan the next one, up to the given heads, and run it.

        Raises `AuditFailed` (nothing published), `StateMoved` (another run of the process won), `SourceError`,
        `TargetError`.
        """
        state = self.store.state(target.table)
        began = time.perf_counter()
        if state.open_session:
            return self._execute(_Work(target, state, state.open_session), began)
        decision = self._decide(target, state, up_to)
        if isinstance(decision, Waiting):
            return decision
        return self._execute(self._open(target, state, decision, run_id), began)

    def rebuild(
        self, target: Target, hours: Collection[int], *, run_id: str = "", reset: bool = False
    ) -> SessionReport | Waiting:
        """Rebuild hours from the sources as of the watermark, which stays. An open session is finished first.

        reset: read the sources as they are now instead, and start the watermark anew there; all other hours that the
        sources hold become pending. For a source that was replaced or whose history was cut.
        """
        if self.store.state(target.table).open_session:
            self.run(target, run_id=run_id)
        began = time.perf_counter()
        state = self.store.state(target.table)
        question = self._question(target, state, self._heads_for_rebuild(state, reset), reset=reset)
        present = {h for c in question.changes for s in c.snapshots for a, b in s.hours for h in range(a, b + 1)}
        token = f"{run_id}|{target.code_version}|{state.revision}"
        decision = plan_rebuild(question, hours, present=present, token=token)
        if isinstance(decision, Waiting):
            return decision
        return self._execute(self._open(target, state, decision, run_id), began)

    def raw_activity(self, raw: RawTable, *, since: int | None) -> list[RawSnapshot]:
        """The snapshots of a raw table after snapshot `since` (None, or one that is gone: all retained), oldest first."""
        table = tables.load(self.catalog, raw.table)
        return list(_raw_snapshots(table, Source(raw.table, raw.time_column), since, self.pipeline.start_hour))

    def _decide(self, target: Target, state: ProcessState, up_to: Heads | None) -> Decision:
        heads = {source: Head(*head) for source, head in up_to.items()} if up_to else {}
        decision = plan(self._question(target, state, heads))
        return _blocked(state, decision) or decision

    def _question(
        self, target: Target, state: ProcessState, heads: Mapping[str, Head], *, reset: bool = False
    ) -> Question:
        table = tables.load(self.catalog, target.table)
        tables.check_write_audit_publish(table, target.table)
        if not reset:
            publish.check_not_rolled_back(table, target.table, state.published_snapshot_id)
        marks = {} if reset else state.watermarks
        found = tuple(self._changes(s, marks, heads) for s in target.sources)
        return Question(target.table, target.mode, found, state.committed, target.code_version)

    def _changes(self, source: Source, marks: Mapping[str, object], heads: Mapping[str, Head]) -> SourceChanges:
        table = tables.load(self.catalog, source.table)
        tables.check_columns(table, source.table, self._declared(source))
        mark = marks.get(source.table)
        return changes(table, source, mark, start=self.pipeline.start_hour, up_to=heads.get(source.table))  # type: ignore[arg-type]

    def _declared(self, source: Source) -> dict[str, str | None]:
        for raw in self.pipeline.raw:
            if raw.table == source.table:
                return dict(raw.all_columns)
        for target in self.pipeline.targets:
            if target.table == source.table:
                return dict(target.columns)
        return {source.time_column: "timestamptz", **({source.key: None} if source.key else {})}

    def _heads_for_rebuild(self, state: ProcessState, reset: bool) -> dict[str, Head]:
        if reset:
            return {}
        return {name: Head(m.snapshot_id, m.complete_through) for name, m in state.watermarks.items()}

    def _open(self, target: Target, state: ProcessState, decision: SessionPlan, run_id: str) -> _Work:
        reach("before-planned")
        planned = SessionRecord(
            plan=decision,
            state="planned",
            revision=0,
            pattern_id=target.mode.pattern_id,
            run_id=run_id,
            started_at=self.clock(),
        )
        work = _Work(target, state, self.store.record(planned, after=state.session))
        reach("after-planned")
        return work

    def _execute(self, work: _Work, began: float) -> SessionReport:
        work.seconds["plan"] = time.perf_counter() - began
        for attempt in range(1, ATTEMPTS + 1):
            table = tables.load(self.catalog, work.target.table)
            if work.record.state == "published" or publish.is_published(table, work.plan.session_id):
                return self._already_published(work, table)
            try:
                return self._stage_and_publish(work, table)
            except PublishConflict:
                self._still_ours(work)
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _stage_and_publish(self, work: _Work, table: Table) -> SessionReport:
        staged = self._stage(work, table)
        try:
            with work.timed("audit"):
                staged = replace(staged, audits=self._audit(work, staged))
            reach("after-audits")
            self._stop_if_audits_failed(work, staged)
            with work.timed("publish"):
                self._quarantine(work, staged)
                reach("after-quarantine")
                self._publish(work, staged)
            with work.timed("commit"):
                self._commit(work, staged.hours, staged.snapshot_id)
            return self._report(work, staged)
        finally:
            if staged.staging:
                staged.staging.release()

    def _stage(self, work: _Work, table: Table) -> _Staged:
        parent = publish.main_id(table)
        if work.plan.load == "none":
            return _Staged(None, parent, (), None, None)
        with work.timed("stage"):
            stager = self._stager(work, parent)
            staging = stager.prepare(work.plan)
            if staging.load == "append" and not staging.fates.kept:
                return _Staged(None, parent, (), staging, None)
            number = publish.next_staging_number(table, work.plan.session_id)
            wap = publish.wap_id(work.plan.session_id, number)
            stager.write(staging, wap)
            reach("after-staged")
            snapshot = publish.staged_snapshot(tables.load(self.catalog, work.target.table), wap)
            if snapshot.parent_snapshot_id != parent:
                staging.release()
                raise PublishConflict(work.target.table, expected=parent, found=snapshot.parent_snapshot_id)
            self._move(work, state="staged", staging_number=number, staged_snapshot_id=snapshot.snapshot_id)
            reach("after-staged-recorded")
        return _Staged(snapshot.snapshot_id, parent, staging.hours, staging, None)

    def _stager(self, work: _Work, parent: int | None) -> Stager:
        from lake_assets.incremental.stage import Stager

        assert self.spark is not None, "an engine without Spark can only decide"
        return Stager(
            self.spark(),
            work.target,
            start=self.pipeline.start_hour,
            main=parent,
            complete_through=work.state.committed.complete_through,
        )

    def _audit(self, work: _Work, staged: _Staged) -> tuple[AuditResult, ...]:
        if staged.staging is None:
            return ()
        set_aside = _quarantine_audits(work.target, staged.staging.fates.quarantined)
        if staged.snapshot_id is None:
            return set_aside
        scope = self._scope(work, staged)
        return tuple(audit(scope) for audit in work.target.audits) + set_aside

    def _scope(self, work: _Work, staged: _Staged) -> AuditScope:
        from lake_assets.incremental.stage import read_at, within

        assert staged.staging is not None and self.spark is not None
        spark, target, fates = self.spark(), work.target, staged.staging.fates
        rows = within(read_at(spark, target.table, staged.snapshot_id), target.time_column, staged.hours)
        counts = {"read": fates.read, "duplicates": fates.duplicates, "quarantined": fates.quarantined}
        counts["written"] = self._rows_written(work, staged)
        return AuditScope(target, staged.hours, rows, staged.staging.kept, counts, self._reader(work, staged))

    def _reader(self, work: _Work, staged: _Staged) -> Callable[[str], DataFrame]:
        """Reads other tables for audits: sources as of the plan, the target before the session, the rest as they are."""
        from lake_assets.incremental.stage import read_at

        at = {s.source: s.to_snapshot_id for s in work.plan.sources} | {work.target.table: staged.parent}

        def read(name: str) -> DataFrame:
            assert self.spark is not None
            head = publish.main_id(tables.load(self.catalog, name))
            return read_at(self.spark(), name, at.get(name, head))

        return read

    def _rows_written(self, work: _Work, staged: _Staged) -> int:
        if staged.snapshot_id is None:
            return 0
        snapshot = tables.load(self.catalog, work.target.table).snapshot_by_id(staged.snapshot_id)
        assert snapshot is not None and snapshot.summary is not None
        return int(snapshot.summary.additional_properties.get("added-records", 0))

    def _stop_if_audits_failed(self, work: _Work, staged: _Staged) -> None:
        failed = [a for a in staged.audits if a.blocking and not a.passed]
        if not failed:
            return
        self._move(work, state="blocked", audits=staged.audits, ended_at=self.clock())
        error = AuditFailed(work.target.table, {a.name: _in_words(a) for a in failed})
        error.report = self._report(work, staged, status="blocked")
        raise error

    def _quarantine(self, work: _Work, staged: _Staged) -> None:
        if staged.staging is None or staged.staging.quarantined is None:
            return
        rows = [r.asDict() for r in staged.staging.quarantined.collect()]
        extra = {"source": work.target.sources[0].table, "session_id": work.plan.session_id}
        self.store.quarantine(work.target.table, [{**extra, **r} for r in rows])

    def _publish(self, work: _Work, staged: _Staged) -> None:
        self._still_ours(work)
        publish.publish(
            self.catalog,
            work.target.table,
            staged.snapshot_id,
            parent=staged.parent,
            session_id=work.plan.session_id,
            complete_through=work.plan.complete_through,
        )
        reach("after-published")
        fates = staged.staging.fates if staged.staging else None
        self._move(
            work,
            state="published",
            published_snapshot_id=staged.snapshot_id,
            audits=staged.audits,
            rows_read=fates.read if fates else 0,
            rows_written=self._rows_written(work, staged),
        )
        reach("after-published-recorded")

    def _already_published(self, work: _Work, table: Table) -> SessionReport:
        """An earlier attempt published and died: acknowledge it, write nothing."""
        snapshot_id = work.record.published_snapshot_id or publish.published_snapshot_id(table, work.plan.session_id)
        hours = self._hours_of(work, table, snapshot_id)
        with work.timed("commit"):
            self._commit(work, hours, snapshot_id)
        return SessionReport(
            plan=work.plan,
            status="already_committed",
            hours_built=hours,
            published_snapshot_id=snapshot_id,
            rows_read=work.record.rows_read,
            rows_written=work.record.rows_written,
            audits=work.record.audits,
            seconds=work.seconds,
            data_version=str(snapshot_id) if snapshot_id else None,
        )

    def _hours_of(self, work: _Work, table: Table, snapshot_id: int | None) -> tuple[int, ...]:
        """The hours that a published snapshot wrote; of an overwrite, all that were planned."""
        if snapshot_id is None:
            return ()
        snapshot = table.snapshot_by_id(snapshot_id)
        if work.plan.load == "overwrite" or snapshot is None or snapshot.summary is None:
            return work.plan.hour_numbers
        own = Source(work.target.table, work.target.time_column)
        parent = Head(snapshot.parent_snapshot_id, None)
        since = changes(table, own, None, start=0, up_to=parent).head
        found = changes(table, own, since, start=0, up_to=Head(snapshot_id, None))
        return tuple(sorted({h for s in found.snapshots for a, b in s.hours for h in range(a, b + 1)}))

    def _commit(self, work: _Work, hours: tuple[int, ...], published: int | None) -> None:
        # A dead attempt may have moved the watermarks already; then the session's own id stands with them.
        state = self.store.state(work.target.table)
        if self.store.watermark_session(work.target.table) != work.plan.session_id:
            if state.revision != work.state.revision:
                raise StateMoved(work.target.table, expected=work.state.revision, found=state.revision)
            committed = _after(work.target, work.state.committed, work.plan, hours)
            self.store.move_watermarks(work.state, work.plan, committed, published or work.state.published_snapshot_id)
        reach("after-watermark")
        self._move(work, state="committed", built=hours, ended_at=self.clock())
        reach("after-committed")

    def _move(self, work: _Work, **fields: object) -> None:
        work.record = self.store.record(replace(work.record, **fields), after=work.record)  # type: ignore[arg-type]

    def _still_ours(self, work: _Work) -> None:
        """Nobody else has moved this process since: a run that was paused stops here instead of doing things twice."""
        newest = self.store.state(work.target.table).session
        if newest is None or newest.revision != work.record.revision:
            raise StateMoved(
                work.target.table, expected=work.record.revision, found=newest.revision if newest else None
            )

    def _report(self, work: _Work, staged: _Staged, status: str = "committed") -> SessionReport:
        from lake_assets.incremental.stage import Fates

        fates = staged.staging.fates if staged.staging else Fates()
        hours, rows = self._lookback(work)
        return SessionReport(
            plan=work.plan,
            status=status,  # type: ignore[arg-type]
            hours_built=staged.hours if status == "committed" else (),
            staged_snapshot_id=staged.snapshot_id,
            published_snapshot_id=staged.snapshot_id if status == "committed" else None,
            rows_read=fates.read,
            rows_written=self._rows_written(work, staged),
            rows_duplicate=fates.duplicates,
            rows_quarantined=fates.quarantined,
            rows_late=fates.late,
            lateness_p50_minutes=fates.lateness_p50,
            lateness_p95_minutes=fates.lateness_p95,
            lookback_hours=hours,
            lookback_rows=rows,
            audits=staged.audits,
            seconds=work.seconds,
            data_version=str(staged.snapshot_id) if staged.snapshot_id else None,
        )

    def _lookback(self, work: _Work) -> tuple[int, int]:
        """Hours and rows of the target that a fixed lookback would have reprocessed."""
        through = work.plan.complete_through or work.state.committed.complete_through
        if through is None:
            return 0, 0
        table = tables.load(self.catalog, work.target.table)
        first = through - LOOKBACK_HOURS + 1
        return LOOKBACK_HOURS, rows_between(table, work.target.time_column, first, through)


def utc_now() -> datetime:
    """The clock of processes that need a real one."""
    return datetime.now(UTC)


def rows_between(table: Table, time_column: str, first: int, last: int) -> int:
    found = changes(table, Source("own.own", time_column), None, start=0, up_to=Head(publish.main_id(table), None))
    return sum(f.rows for f in found.added if f.hours and first <= f.hours[0] <= last)


def _after(target: Target, before: Committed, planned: SessionPlan, hours: tuple[int, ...]) -> Committed:
    """What is committed once a session is."""
    through = max((h for h in (before.complete_through, planned.complete_through) if h is not None), default=None)
    built = max((h for h in (before.last_built, *hours) if h is not None), default=None)
    if isinstance(target.mode, Stateful):
        built = max((h for h in (built, through) if h is not None), default=None)
    return Committed(
        pending=frozenset(planned.pending),
        skipped=(before.skipped | frozenset(planned.skipped)) - frozenset(hours),
        last_built=None if isinstance(target.mode, Stateless) else built,
        complete_through=through,
    )


def _blocked(state: ProcessState, decision: Decision) -> Waiting | None:
    """A session that an audit stopped is tried again when its plan or the code changed, not at every look."""
    last = state.session
    if last is None or last.state != "blocked" or not isinstance(decision, SessionPlan):
        return None
    same = last.plan.session_id == decision.session_id and last.plan.code_version == decision.code_version
    if not same:
        return None
    failed = "; ".join(f"{a.name}: {_in_words(a)}" for a in last.audits if a.blocking and not a.passed)
    return Waiting("blocked", f"{decision.session_id} was stopped by an audit ({failed}); it waits for a change of a source or of the code")


def _in_words(audit: AuditResult) -> str:
    counts = ", ".join(f"{n} {what}" for what, n in audit.counts.items())
    sample = f" (such as {', '.join(audit.sample)})" if audit.sample else ""
    return f"{counts}{sample}"


def _quarantine_audits(target: Target, rows: int) -> tuple[AuditResult, ...]:
    limit = target.quarantine_limit
    return (
        AuditResult("quarantine", rows == 0, False, {"quarantined": rows}, (), "no row had to be set aside"),
        AuditResult("quarantine_limit", rows <= limit, True, {"quarantined": rows, "limit": limit}, (), f"at most {limit} rows set aside"),
    )


def _raw_snapshots(table: Table, source: Source, since: int | None, start: int) -> Iterator[RawSnapshot]:
    from lake_assets.incremental.changes import raw_history

    for change in raw_history(table, source, since, start):
        rows: dict[int, int] = {}
        for file in change.added:
            day, hour = file.partition.get("landing_date"), file.partition.get("landing_hour")
            if day is not None and isinstance(hour, int):
                landed = int(datetime.fromisoformat(str(day)).replace(tzinfo=UTC).timestamp()) // 3600 + hour
                rows[landed] = rows.get(landed, 0) + file.rows
        times = [f.times for f in change.added if f.times]
        yield RawSnapshot(
            snapshot_id=change.snapshot_id,
            operation=change.operation,
            committed_at_ms=change.committed_at_ms,
            rows_by_hour=dict(sorted(rows.items())),
            event_lower=_moment(min(t[0] for t in times)) if times else None,
            event_upper=_moment(max(t[1] for t in times)) if times else None,
        )


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC)


__all__ = ["Engine", "Heads", "RawSnapshot", "hour_key", "hours_present", "spell", "utc_now"]
