"""Running one session from wherever an earlier attempt left it: stage, audit, publish, commit.

If audits fail in some hours only, and hours do not build on each other, those hours are held back: the others are
staged again without them, under the next number, and audited again. So all that is published has passed its audits.

Failure model: a process may die, or stop and continue later, between any two lines, and two processes may run one
session at once. Each step is safe to repeat. A staged snapshot that nobody published has no effect. Main moves once,
because it must still be the staged snapshot's parent. A record names the revision that it follows, and the watermarks
name the one that they start from.
"""

from __future__ import annotations

from pyiceberg.table import Table

from lake_assets.errors import PublishConflict
from lake_assets.incremental.execution.steps.attempt import Attempt, staged_as_recorded
from lake_assets.incremental.execution.steps.audit_rows import audit_rows
from lake_assets.incremental.execution.steps.commit_watermarks import commit_watermarks
from lake_assets.incremental.execution.steps.failed_audits import hold_failed_hours, stop_if_audits_failed
from lake_assets.incremental.execution.steps.publish_snapshot import publish_snapshot
from lake_assets.incremental.execution.steps.report import report_of
from lake_assets.incremental.execution.steps.run_context import RunContext, is_published
from lake_assets.incremental.execution.steps.stage_rows import StagingOptions, find_written, stage_rows, write_rows
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.declared_columns import check_target
from lake_assets.incremental.planning.session import RowCounts, SessionReport

MAX_STAGINGS = 3
"""How often a session is staged anew because main has moved meanwhile."""


class Runner:
    """Runs sessions."""

    leaves_out_unchanged = True
    """Whether hours whose rows equal the published ones are left out of the commit."""

    def __init__(self, context: RunContext) -> None:
        self.context = context

    def run(self, attempt: Attempt) -> SessionReport:
        """Bring a session to its end.

        Raises:
            AuditFailed: A blocking audit failed; nothing is published.
            StateMoved: Another run of the process has overtaken this one.
            TargetError: The target cannot be published to.
        """
        for staging in range(1, MAX_STAGINGS + 1):
            table = self.context.target_table(attempt)
            if is_published(attempt, table):
                return self._commit_published(attempt, table)
            tables.check_write_audit_publish(table, attempt.target.table)
            check_target(table, attempt.target)
            try:
                return self._run_steps(attempt, table)
            except PublishConflict:
                self.context.check_not_overtaken(attempt)
                if staging == MAX_STAGINGS:
                    raise
            finally:
                self.context.release_rows(attempt)
        raise AssertionError("unreachable: the last staging returns or raises")

    def publish_written(self, attempt: Attempt) -> SessionReport:
        """Audit and publish what another program has written for a session; `run` commits the watermarks later.

        Raises:
            UsageError: Nothing was written.
            NotAsPlanned: What was written is not what the plan says.
            PublishConflict: It was written onto another snapshot than main.
        """
        table = self.context.target_table(attempt)
        if is_published(attempt, table):
            staged = staged_as_recorded(attempt.record, attempt.record.staged_snapshot_id)
            return report_of(attempt, staged, "published")
        options = StagingOptions(find_written, leave_out_unchanged=False)
        try:
            staged = stage_rows(self.context, attempt, table, options)
            staged = audit_rows(self.context, attempt, staged)
            stop_if_audits_failed(self.context, attempt, staged)
            publish_snapshot(self.context, attempt, staged)
            return report_of(attempt, staged, "published")
        finally:
            self.context.release_rows(attempt)

    def _run_steps(self, attempt: Attempt, table: Table) -> SessionReport:
        options = StagingOptions(write_rows, leave_out_unchanged=self.leaves_out_unchanged)
        staged = stage_rows(self.context, attempt, table, options)
        staged = audit_rows(self.context, attempt, staged)
        staged = hold_failed_hours(self.context, attempt, staged, options)
        stop_if_audits_failed(self.context, attempt, staged)
        publish_snapshot(self.context, attempt, staged)
        commit_watermarks(self.context, attempt, staged)
        return report_of(attempt, staged, "committed")

    def _commit_published(self, attempt: Attempt, table: Table) -> SessionReport:
        """Commit the watermarks of a session that an earlier attempt has published. Write no row."""
        record = attempt.record
        in_history = publish.published_snapshot_id(table, attempt.plan.session_id)
        snapshot_id = record.published_snapshot_id or in_history
        publish.check_not_rolled_back(table, attempt.target.table, snapshot_id or record.staged_snapshot_id)
        staged = staged_as_recorded(record, snapshot_id)
        commit_watermarks(self.context, attempt, staged)
        return report_of(
            attempt,
            staged,
            "already_committed",
            row_counts=RowCounts(read=record.rows_read),
        )
