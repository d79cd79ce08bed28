"""What happens when a blocking audit fails: its hours are held back, or the session stops and publishes nothing."""

from __future__ import annotations

from dataclasses import replace

from lake_assets.errors import AuditFailed, PublishConflict
from lake_assets.incremental.execution.steps.attempt import Attempt, Staged, staged_fields
from lake_assets.incremental.execution.steps.audit_rows import audit_rows, failures
from lake_assets.incremental.execution.steps.report import report_of
from lake_assets.incremental.execution.steps.run_context import RunContext
from lake_assets.incremental.execution.steps.stage_rows import StagingOptions, stage_rows
from lake_assets.incremental.metadata import publish
from lake_assets.incremental.planning.verdicts import held_by, hours_to_hold, settled


def hold_failed_hours(context: RunContext, attempt: Attempt, staged: Staged, options: StagingOptions) -> Staged:
    """Stage and audit again without the hours in which blocking audits failed.

    Returns:
        The second staging, with the held hours; `staged` itself if no hour can be held back, because none failed or
        because hours build on each other.

    Raises:
        PublishConflict: Main has moved since the first staging.
    """
    held = hours_to_hold(
        attempt.target.mode,
        staged.audits,
        staged.audited_hours,
        attempt.state.committed.held_hours,
    )
    if not held:
        return staged
    table = context.target_table(attempt)  # it has the first staging, whose number is taken
    main = publish.main_id(table)
    if main != staged.parent:
        raise PublishConflict(attempt.target.table, expected=staged.parent, found=main)
    without = stage_rows(context, attempt, table, replace(options, held=held))
    without = audit_rows(context, attempt, without)
    if failures(without.audits):
        return without
    return replace(
        without,
        audits=settled(staged.audits, without.audits),
        held=held_by(attempt.plan, staged.audits),
    )


def stop_if_audits_failed(context: RunContext, attempt: Attempt, staged: Staged) -> None:
    """Record the session as blocked if a blocking audit failed and no hours are held back for it.

    Raises:
        AuditFailed: A blocking audit failed. Nothing is published.
    """
    failed = failures(staged.audits)
    if staged.held or not failed:
        return
    context.record_progress(
        attempt,
        state="blocked",
        ended_at=context.clock(),
        **staged_fields(staged),
    )
    error = AuditFailed(attempt.target.table, failed)
    error.report = report_of(attempt, staged, "blocked")
    raise error
