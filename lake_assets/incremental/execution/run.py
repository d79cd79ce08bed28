"""Running one session: stage → audit → publish → commit, from wherever an earlier attempt left it.

Where audits fail in some hours only, and hours do not build on each other, those hours are held back: the others are
staged again without them, under the next number, and judged again; so what is published has passed them all.

Failure model: a process may die, or stop and go on later, between any two lines, and two may run one session at once.
Each step is safe to repeat: a staged snapshot that nobody published is nothing; main moves once, for it must still be
the staged snapshot's parent; a record names the revision that it follows, and the watermarks the one they start from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lake_assets.base.failpoints import reach
from lake_assets.base.hours import format_hours
from lake_assets.errors import AuditFailed, ConfigurationError, PublishConflict, StateMoved, UsageError
from lake_assets.incremental.declaration import Pipeline, Stateless, Target
from lake_assets.incremental.execution.external_writes import check_written
from lake_assets.incremental.execution.session_log import ProcessState, SessionRecord, SessionStore
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.partitions import hours_added, rows_between
from lake_assets.incremental.planning.plan import committed_after
from lake_assets.incremental.planning.session import AuditResult, HeldHour, RowCounts, SessionPlan, SessionReport
from lake_assets.incremental.planning.verdicts import capped, held_by, hours_to_hold, settled
from lake_assets.incremental.staging.audit_scope import audit_scope
from lake_assets.incremental.staging.audits import evaluate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.incremental.staging.stage import Staging

ATTEMPTS = 3
"""How often a session is staged when main keeps moving under it."""


@dataclass
class Work:
    """One session as far as it has come. state: of its process, when the session was planned or found."""

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
class Staged:
    """What one attempt has staged: a snapshot (None: no rows), and what is known of it.

    parent: main when it was staged.
    hours: those whose partitions the snapshot writes, or empties. rows: that it adds. number: of the staging.
    unchanged: planned hours that came out as they are published, and are left alone.
    quarantined: rows to be set aside that quarantine has not yet; one more than the limit at most.
    held: planned hours that audits hold back, and that the snapshot leaves alone.
    """

    snapshot_id: int | None
    parent: int | None
    hours: tuple[int, ...] = ()
    rows: int = 0
    number: int = 0
    unchanged: tuple[int, ...] = ()
    staging: Staging | None = None
    quarantined: tuple[dict[str, str], ...] = ()
    audits: tuple[AuditResult, ...] = ()
    held: tuple[HeldHour, ...] = ()

    @property
    def judged(self) -> tuple[int, ...]:
        """The hours that audits look at: those that should have been written, too."""
        return tuple(sorted({*self.hours, *self.unchanged, *(self.staging.hours if self.staging else ())}))

    @property
    def fates(self) -> RowCounts:
        return self.staging.fates if self.staging else RowCounts()


Put = Callable[[Work, "Staging", Table], int]
"""Sees to it that prepared rows are in a staged snapshot; returns the number of the staging, 0 if there is none."""


class Runner:
    """Runs sessions on a catalog. spark: called when a session has rows to read, not before."""

    leaves_out_equal = True
    """Whether hours that come out as they are published are left alone."""

    def __init__(
        self,
        catalog: Catalog,
        pipeline: Pipeline,
        store: SessionStore,
        *,
        clock: Callable[[], datetime],
        spark: Callable[[], SparkSession] | None,
    ) -> None:
        self.catalog, self.pipeline, self.store, self.clock = catalog, pipeline, store, clock
        self._spark = spark

    def run(self, work: Work) -> SessionReport:
        """Bring a session to its end. Raises `AuditFailed`, `StateMoved`, `TargetError`."""
        for attempt in range(1, ATTEMPTS + 1):
            table = tables.load(self.catalog, work.target.table)
            if work.record.state == "published" or publish.is_published(table, work.plan.session_id):
                return self._acknowledge(work, table)
            tables.check_write_audit_publish(table, work.target.table)
            try:
                return self._stage_and_publish(work, table)
            except PublishConflict:
                self._still_ours(work)
                if attempt == ATTEMPTS:
                    raise
            finally:
                self._release(work)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _stage_and_publish(self, work: Work, table: Table) -> SessionReport:
        staged = self._judged(work, self._staged(work, table, self._write, leave_out_equal=self.leaves_out_equal))
        staged = self._without_failed_hours(work, staged)
        self._publish_judged(work, staged)
        with work.timed("commit"):
            self._commit(work, staged)
        return self._report(work, staged, "committed")

    def _judged(self, work: Work, staged: Staged) -> Staged:
        """The staged with its verdicts."""
        with work.timed("audit"):
            staged = replace(staged, audits=self._audited(work, staged))
        reach("after-audits")
        return staged

    def _without_failed_hours(self, work: Work, staged: Staged) -> Staged:
        """Staged and judged again without the hours that audits failed in; as it is if that would not help.

        Raises `PublishConflict` when main moved meanwhile.
        """
        before = work.state.committed.held_hours
        if not (held := hours_to_hold(work.target.mode, staged.audits, staged.judged, before)):
            return staged
        table = tables.load(self.catalog, work.target.table)  # with the first staging, whose number is taken
        again = self._staged(work, table, self._write, leave_out_equal=self.leaves_out_equal, held=held)
        again = self._judged(work, again)
        if failures(again.audits):
            return again
        return replace(again, audits=settled(staged.audits, again.audits), held=held_by(work.plan, staged.audits))

    def _publish_judged(self, work: Work, staged: Staged) -> None:
        """Publish what passed its audits; `AuditFailed` if it did not."""
        self._stop_if_audits_failed(work, staged)
        self._record_staged(work, staged)
        with work.timed("publish"):
            aside = [{**row, "session_id": work.plan.session_id} for row in staged.quarantined]
            self.store.quarantine(work.target.table, aside)
            reach("after-quarantine")
            self._publish(work, staged)

    def publish_written(self, work: Work) -> SessionReport:
        """Audit and publish what another program has written for a session; the watermark is committed by `run`.

        Raises `UsageError` if nothing was written, `NotAsPlanned` if it is not what the plan says, `PublishConflict`
        if it was written onto another main.
        """
        table = tables.load(self.catalog, work.target.table)
        if work.record.state == "published" or publish.is_published(table, work.plan.session_id):
            return self._report(work, _as_staged(work.record, work.record.staged_snapshot_id), "published")
        try:
            staged = self._judged(work, self._staged(work, table, self._find, leave_out_equal=False))
            self._publish_judged(work, staged)
            return self._report(work, staged, "published")
        finally:
            self._release(work)

    def _staged(
        self, work: Work, table: Table, put: Put, *, leave_out_equal: bool, held: Collection[int] = ()
    ) -> Staged:
        """The session's rows, but those of held hours, prepared, and put into a staged snapshot if there are any.

        Raises `PublishConflict` when main moved meanwhile.
        """
        staged = Staged(None, publish.main_id(table))
        with work.timed("stage"):
            staging = self._prepared(work, table, staged.parent, leave_out_equal=leave_out_equal, held=held)
            if staging is None:
                return staged
            aside = tuple(staging.set_aside(work.target.quarantine_limit + 1))
            staged = replace(staged, staging=staging, quarantined=aside, unchanged=staging.unchanged)
            number = put(work, staging, table)
            return self._described(work, staged, number) if number else staged

    def _prepared(
        self, work: Work, table: Table, parent: int | None, *, leave_out_equal: bool, held: Collection[int]
    ) -> Staging | None:
        """The session's rows; None for one without hours, unless it brings rows that quarantine may want."""
        if work.plan.load == "none" and not work.plan.processing_uris:
            return None
        from lake_assets.incremental.staging.stage import Stager

        stager = Stager(
            self.spark(),
            work.target,
            start=self.pipeline.start_hour,
            main=parent,
            complete_through=work.state.committed.complete_through,
            known=_known(work) if leave_out_equal else None,
            owed=work.state.committed.pending | work.state.committed.skipped | work.state.committed.held_hours,
            rows=_rows_about(work, table),
        )
        return stager.prepare(_still_narrowed(work, table).without(held))

    def _write(self, work: Work, staging: Staging, table: Table) -> int:
        """Write the rows as a staged snapshot; the number of the staging, 0 without rows."""
        if not staging.has_rows:
            return 0
        from lake_assets.incremental.staging.stage import write  # a session without rows imports no Spark

        number = publish.next_staging_number(table, work.plan.session_id)
        write(self.spark(), work.target, staging, publish.wap_id(work.plan.session_id, number))
        reach("after-staged")
        return number

    def _find(self, work: Work, staging: Staging, table: Table) -> int:
        """The number of the newest staging that another program wrote; 0 if there is none, and no row to write.

        Raises `NotAsPlanned` if it does otherwise than the plan says.
        """
        number = publish.next_staging_number(table, work.plan.session_id) - 1
        if number == 0 and staging.has_rows:
            raise UsageError(
                f"Nothing was written for {work.plan.session_id}: no snapshot of its target carries its WAP id.",
                remedy=f"Write with spark.wap.id set to {publish.wap_id(work.plan.session_id, 1)}, in one commit.",
            )
        written = publish.wap_id(work.plan.session_id, number)
        check_written(table, work.target.table, work.plan, written, work.target.time_column)
        return number

    def _described(self, work: Work, staged: Staged, number: int) -> Staged:
        """What the snapshot of a staging holds. Raises `PublishConflict` if it was not written onto `staged.parent`."""
        assert staged.staging is not None
        table = tables.load(self.catalog, work.target.table)
        snapshot = publish.staged_snapshot(table, publish.wap_id(work.plan.session_id, number))
        if snapshot.parent_snapshot_id != staged.parent:
            raise PublishConflict(work.target.table, expected=staged.parent, found=snapshot.parent_snapshot_id)
        hours = _hours_written(work.target, staged.staging, hours_added(table, snapshot, work.target.time_column))
        rows = publish.rows_added(snapshot)
        return replace(staged, snapshot_id=snapshot.snapshot_id, number=number, hours=hours, rows=rows)

    def _audited(self, work: Work, staged: Staged) -> tuple[AuditResult, ...]:
        if staged.staging is None:
            return ()
        aside = _quarantine_audits(work.target, staged)
        if staged.snapshot_id is None and not staged.unchanged:
            return aside
        scope = audit_scope(
            self.catalog,
            self.spark(),
            work.target,
            work.plan,
            staged.staging,
            snapshot_id=staged.snapshot_id,
            parent=staged.parent,
            hours=staged.judged,
            rows=staged.rows,
        )
        return evaluate(work.target.audits, scope) + aside

    def _stop_if_audits_failed(self, work: Work, staged: Staged) -> None:
        failed = failures(staged.audits)
        if staged.held or not failed:
            return
        self._move(work, state="blocked", **_as_recorded(staged), ended_at=self.clock())
        error = AuditFailed(work.target.table, failed)
        error.report = self._report(work, staged, "blocked")
        raise error

    def _record_staged(self, work: Work, staged: Staged) -> None:
        """The staged snapshot and its verdicts, so that a later attempt that finds it published can tell them."""
        if staged.staging is not None:
            self._move(work, state="staged", built=staged.hours, unchanged=staged.unchanged, **_as_recorded(staged))
        reach("after-staged-recorded")

    def _publish(self, work: Work, staged: Staged) -> None:
        self._still_ours(work)
        reach("before-published")
        publish.publish(
            self.catalog,
            work.target.table,
            staged.snapshot_id,
            parent=staged.parent,
            session_id=work.plan.session_id,
            complete_through=capped(
                work.plan.complete_through, [h.hour for h in staged.held], work.state.committed.complete_through
            ),
        )
        reach("after-published")
        self._move(work, state="published", published_snapshot_id=staged.snapshot_id)
        reach("after-published-recorded")

    def _acknowledge(self, work: Work, table: Table) -> SessionReport:
        """An earlier attempt published and died: commit, write nothing. `TargetRolledBack` if that was undone."""
        record = work.record
        snapshot_id = record.published_snapshot_id or publish.published_snapshot_id(table, work.plan.session_id)
        publish.check_not_rolled_back(table, work.target.table, snapshot_id or record.staged_snapshot_id)
        fates = RowCounts(read=record.rows_read)
        staged = _as_staged(record, snapshot_id)
        with work.timed("commit"):
            self._commit(work, staged)
        return self._report(work, staged, "already_committed", fates)

    def _commit(self, work: Work, staged: Staged) -> None:
        # A dead attempt may have moved the watermarks already; then the session's own id stands with them.
        state = self.store.state(work.target.table)
        if self.store.watermark_session(work.target.table) != work.plan.session_id:
            if state.revision != work.state.revision:
                raise StateMoved(work.target.table, expected=work.state.revision, found=state.revision)
            done = (*staged.hours, *staged.unchanged)
            committed = committed_after(
                work.target.mode, work.state.committed, work.plan, done, staged.unchanged, staged.held
            )
            published = staged.snapshot_id or work.state.published_snapshot_id
            self.store.move_watermarks(work.state, work.plan, committed, published)
        reach("after-watermark")
        self._move(work, state="committed", built=staged.hours, unchanged=staged.unchanged, ended_at=self.clock())
        reach("after-committed")

    def _move(self, work: Work, **fields: object) -> None:
        work.record = self.store.record(replace(work.record, **fields), after=work.record)  # type: ignore[arg-type]

    def _still_ours(self, work: Work) -> None:
        """Nobody else has moved this process since: a run that was paused stops here instead of doing things twice."""
        newest = self.store.state(work.target.table).session
        found = newest.revision if newest else None
        if found != work.record.revision:
            raise StateMoved(work.target.table, expected=work.record.revision, found=found)

    def _report(
        self,
        work: Work,
        staged: Staged,
        status: Literal["committed", "published", "already_committed", "blocked"],
        fates: RowCounts | None = None,
    ) -> SessionReport:
        fates, done = fates or staged.fates, status != "blocked"
        return SessionReport(
            plan=work.plan,
            status=status,
            hours_built=staged.hours if done else (),
            hours_unchanged=staged.unchanged if done else (),
            held=staged.held,
            released=tuple(h for h in staged.judged if done and h in work.state.committed.held_hours),
            staged_snapshot_id=staged.snapshot_id,
            published_snapshot_id=staged.snapshot_id if done else None,
            rows_read=fates.read,
            rows_written=staged.rows,
            rows_duplicate=fates.duplicates,
            rows_quarantined=fates.quarantined,
            rows_late=fates.late,
            lateness_p50_minutes=fates.lateness_p50,
            lateness_p95_minutes=fates.lateness_p95,
            lateness_max_minutes=fates.lateness_max,
            audits=staged.audits,
            seconds=work.seconds,
            data_version=str(staged.snapshot_id) if staged.snapshot_id else None,
        )

    def _release(self, work: Work) -> None:
        if work.plan.load != "none" or work.plan.processing_uris:
            from lake_assets.connections.row_checkpoint import (
                release_checkpoints,  # a session without rows imports no Spark
            )

            release_checkpoints(self.spark())

    def spark(self) -> SparkSession:
        assert self._spark is not None, "an engine without Spark can only decide"
        return self._spark()


def failures(audits: Iterable[AuditResult]) -> dict[str, str]:
    """The blocking audits that failed, and their verdicts in words."""
    return {a.name: _in_words(a) for a in audits if a.blocking and not a.passed}


def _in_words(audit: AuditResult) -> str:
    """A verdict for a message: its counts, and some of the offending keys."""
    counts = ", ".join(f"{n} {what}" for what, n in audit.counts.items())
    sample = f" (such as {', '.join(audit.sample)})" if audit.sample else ""
    return f"{counts}{sample}"


def _known(work: Work) -> float | None:
    """The last hour of a target that may have been built before this session."""
    return inf if isinstance(work.target.mode, Stateless) else work.state.committed.last_built


def _still_narrowed(work: Work, table: Table) -> SessionPlan:
    """The plan; for all entities, if the code, or somebody else the target, has changed since it was made."""
    same_code = work.plan.code_version == work.target.code_version
    if same_code and publish.only_compacted_since(table, work.state.published_snapshot_id):
        return work.plan
    return replace(work.plan, changed_through=None)


def _rows_about(work: Work, table: Table) -> float:
    """Of the table of which a session reads or writes most rows, about how many: by metadata."""
    plan, mode, time_column = work.plan, work.target.mode, work.target.time_column
    if plan.envelope is None:
        return plan.cost.rows
    first, last = plan.envelope
    there = rows_between(table, time_column, first, last)
    if isinstance(mode, Stateless):
        return plan.cost.rows + there
    before = rows_between(table, time_column, first - 1, first - 1)
    partitions = len(work.target.grain.firsts(plan.hour_numbers))
    history = sum(s.totals.rows if s.totals else inf for s in plan.sources if s.to_snapshot_id is not None)
    return history + there + before * partitions


def _hours_written(target: Target, staging: Staging, added: set[int]) -> tuple[int, ...]:
    """The hours that a staged snapshot writes, or empties. `ConfigurationError` if its source rows are of others."""
    if added <= set(staging.hours):
        return staging.hours if staging.load == "overwrite" else tuple(sorted(added))
    raise ConfigurationError(
        f"{target.table} puts rows into hours that their source rows are not of: "
        f"{format_hours(added - set(staging.hours))}.",
        remedy=f"A stateless transform keeps the source's {target.sources[0].time_column} as {target.time_column}.",
    )


def _as_staged(record: SessionRecord, snapshot_id: int | None) -> Staged:
    """What an earlier attempt has staged, as far as its record remembers it."""
    return Staged(
        snapshot_id,
        None,
        record.built,
        record.rows_written,
        unchanged=record.unchanged,
        audits=record.audits,
        held=record.held,
    )


def _as_recorded(staged: Staged) -> dict[str, Any]:
    return {
        "staging_number": staged.number,
        "staged_snapshot_id": staged.snapshot_id,
        "audits": staged.audits,
        "rows_read": staged.fates.read,
        "rows_written": staged.rows,
    }


def _quarantine_audits(target: Target, staged: Staged) -> tuple[AuditResult, ...]:
    """The verdicts on rows set aside: a warning on all, and the limit on those that quarantine had not yet."""
    limit, new = target.quarantine_limit, len(staged.quarantined)
    if new > limit and staged.staging:  # no more were collected
        new = staged.staging.number_aside()
    rows = max(staged.fates.quarantined, new)
    told, counts = f"at most {limit} rows newly set aside", {"quarantined": new, "limit": limit}
    return (
        AuditResult("quarantine", rows == 0, False, {"quarantined": rows}, (), "no row had to be set aside"),
        AuditResult("quarantine_limit", new <= limit, True, counts, (), told),
    )
