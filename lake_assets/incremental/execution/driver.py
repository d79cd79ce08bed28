"""The driver: the four steps that every session of a target goes through.

1. Settle: take up the open session if it can be finished; else abandon it.
2. Decide: plan the next session.
3. Guard: delete rows of erased subjects that the plan would read; if there are any, begin again.
4. Run: record the session, and execute it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from lake_assets.base.failpoints import reach
from lake_assets.errors import PublishConflict, StateMoved, UsageError
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.execution import target_check
from lake_assets.incremental.execution.erasure_guard import ErasureGuard
from lake_assets.incremental.execution.planner import Planner
from lake_assets.incremental.execution.session_log import ProcessState, SessionRecord, SessionStore
from lake_assets.incremental.execution.steps.attempt import Attempt
from lake_assets.incremental.execution.steps.run_context import is_published
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.planning.outside_changes import version_of
from lake_assets.incremental.planning.plan import Committed
from lake_assets.incremental.planning.session import Decision, NoSession, SessionPlan, SourceRange

MAX_OVERTAKEN = 20
"""How often in a row a target's session may be overtaken by other processes before the target fails."""

OVERTAKEN_SECONDS = 0.2
"""Pause after a session was overtaken; it grows by as much each time in a row."""

OVERTAKEN = (StateMoved, PublishConflict, CommitFailedException)
"""Errors of a session that another process has overtaken."""

Result = TypeVar("Result")
Decide = Callable[[ProcessState], Decision]
Execute = Callable[[Attempt], Result]


class Driver:
    """Takes the sessions of one target through the four steps.

    Args:
        create_tables: Creates the tables of the pipeline; called before the first session of a process.
    """

    def __init__(
        self,
        target: Target,
        planner: Planner,
        store: SessionStore,
        erasure_guard: ErasureGuard,
        *,
        clock: Callable[[], datetime],
        create_tables: Callable[[], object],
    ) -> None:
        self.target = target
        self.planner = planner
        self.store = store
        self.erasure_guard = erasure_guard
        self.clock = clock
        self.create_tables = create_tables

    def drive(
        self,
        decide: Decide,
        execute: Execute[Result],
        *,
        run_id: str,
        decide_again: Decide | None = None,
        after_open_session: bool = False,
    ) -> Result | NoSession:
        """Execute the open session of the target, or the next one.

        Args:
            decide: Plans the next session.
            execute: Does the work of a session.
            run_id: Recorded with a new session.
            decide_again: Plans the next session after the guard has deleted rows; by default, `decide`.
            after_open_session: Whether the next session is due even if an open one was finished first.

        Returns:
            The result of `execute`, or why there is no session.
        """
        began = time.perf_counter()
        state = self.store.state(self.target.table)
        if state.open_session is not None:
            unfinished = self._take_up(state, state.open_session)
            if unfinished is not None:
                unfinished.seconds["plan"] = time.perf_counter() - began
                finished = execute(unfinished)
                if not after_open_session:
                    return finished
            state = self.store.state(self.target.table)
        decision = decide(state)
        if self.erasure_guard.delete_erased_rows(decision):
            return self.drive(
                decide_again or decide,
                execute,
                run_id=run_id,
                after_open_session=after_open_session,
            )
        if isinstance(decision, NoSession):
            return decision
        attempt = self._open(state, decision, run_id)
        attempt.seconds["plan"] = time.perf_counter() - began
        return execute(attempt)

    def drive_open_session(self, execute: Execute[Result]) -> Result:
        """Execute the open session of the target, and plan none.

        Raises:
            UsageError: No session is open.
        """
        unfinished = self.settle()
        if unfinished is None:
            raise UsageError(
                f"{self.target.table} has no open session.",
                remedy=f"Open one with `lake session init {self.target.name}`.",
            )
        return execute(unfinished)

    def settle(self) -> Attempt | None:
        """Take up the open session as it was planned, or record it as abandoned if it cannot be finished.

        Returns:
            The open session; None if there is none any more.
        """
        state = self.store.state(self.target.table)
        if state.open_session is None:
            return None
        return self._take_up(state, state.open_session)

    def _take_up(self, state: ProcessState, opened: SessionRecord) -> Attempt | None:
        attempt = _attempt(self.target, state, opened)
        if self._can_be_finished(attempt):
            return attempt
        abandoned = replace(attempt.record, state="abandoned", ended_at=self.clock())
        self.store.record(abandoned, after=attempt.record)
        return None

    def _can_be_finished(self, attempt: Attempt) -> bool:
        """Return whether a session is published, or fits today's declaration and its source snapshots exist."""
        table = target_check.target_table(self.planner.catalog, attempt.state)
        if not _was_planned_for(attempt, table):
            return False
        if is_published(attempt, table):
            return True
        return _fits_declaration(attempt) and self._source_snapshots_exist(attempt.plan)

    def _source_snapshots_exist(self, plan: SessionPlan) -> bool:
        if plan.late_rows and not _late_rows_exist(self.planner.source_table(self.target.sources[0]), plan):
            return False
        reads_both_ends = plan.load == "append" or plan.changed_through is not None
        for source, span in zip(self.target.sources, plan.sources, strict=True):
            table = self.planner.source_table(source)
            if not _is_retained(table, span.to_snapshot_id):
                return False
            if reads_both_ends and not _shows_start(table, plan, span):
                return False
        return True

    def _open(self, state: ProcessState, plan: SessionPlan, run_id: str) -> Attempt:
        """Record a planned session."""
        reach("before-planned")
        if state.session is None:
            self.create_tables()
        if plan.target is None:
            table = tables.load(self.planner.catalog, self.target.table)
            plan = replace(plan, target=version_of(table))
        planned = SessionRecord(
            plan=plan,
            state="planned",
            revision=0,
            pattern_id=self.target.mode.pattern_id,
            run_id=run_id,
            started_at=self.clock(),
        )
        recorded = self.store.record(planned, after=state.session)
        attempt = _attempt(self.target, state, recorded)
        reach("after-planned")
        return attempt


def _shows_start(table: Table, plan: SessionPlan, span: SourceRange) -> bool:
    """Return whether the rows that changed since the start of a range can be read.

    Rows that were appended can be read if all snapshots after the start exist.
    """
    start = span.from_snapshot_id
    if _is_retained(table, start):
        return True
    only_appended = plan.load == "append" or span.appends_only
    history = publish.ancestors(table, span.to_snapshot_id)
    return only_appended and any(snapshot.parent_snapshot_id == start for snapshot in history)


def _late_rows_exist(table: Table, plan: SessionPlan) -> bool:
    """Return whether the driving source has all snapshots that brought the late rows of a plan."""
    history = {snapshot.snapshot_id for snapshot in publish.ancestors(table, plan.sources[0].to_snapshot_id)}
    return all({late.from_snapshot_id, late.to_snapshot_id} <= history for late in plan.late_rows)


def _is_retained(table: Table, snapshot_id: int | None) -> bool:
    return snapshot_id is None or table.snapshot_by_id(snapshot_id) is not None


def _attempt(target: Target, state: ProcessState, record: SessionRecord) -> Attempt:
    if record.plan.starts_anew:
        state = replace(state, committed=Committed())
    return Attempt(target, state, record)


def _was_planned_for(attempt: Attempt, table: Table) -> bool:
    """Return whether a session was planned for this table, and not for one that was dropped since."""
    planned = attempt.plan.target
    return planned is None or planned.table_uuid == str(table.metadata.table_uuid)


def _fits_declaration(attempt: Attempt) -> bool:
    """Return whether a session was planned for the sources, in their order, and the pattern that its target has now."""
    declared = [source.table for source in attempt.target.sources]
    planned = [source.source for source in attempt.plan.sources]
    same_pattern = attempt.record.pattern_id == attempt.target.mode.pattern_id
    return same_pattern and planned == declared
