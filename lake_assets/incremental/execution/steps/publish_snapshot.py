"""Step 3: publish a staged snapshot that passed its audits."""

from __future__ import annotations

from lake_assets.base.failpoints import reach
from lake_assets.incremental.execution.steps.attempt import Attempt, Staged, staged_fields
from lake_assets.incremental.execution.steps.run_context import RunContext
from lake_assets.incremental.metadata import publish
from lake_assets.incremental.planning.verdicts import capped


def publish_snapshot(context: RunContext, attempt: Attempt, staged: Staged) -> None:
    """Publish what passed its audits, and add its bad rows to the quarantine.

    Raises:
        PublishConflict: Main is not the parent of the staged snapshot any more.
        StateMoved: Another run has moved the process meanwhile.
    """
    _record_staged(context, attempt, staged)
    with attempt.timed("publish"):
        _quarantine_rows(context, attempt, staged)
        _move_main(context, attempt, staged)


def _record_staged(context: RunContext, attempt: Attempt, staged: Staged) -> None:
    # A later attempt that finds the snapshot published reports these fields.
    if staged.prepared is not None:
        context.record_progress(
            attempt,
            state="staged",
            built=staged.hours,
            unchanged=staged.unchanged,
            **staged_fields(staged),
        )
    reach("after-staged-recorded")


def _quarantine_rows(context: RunContext, attempt: Attempt, staged: Staged) -> None:
    session_id = attempt.plan.session_id
    rows = [{**row, "session_id": session_id} for row in staged.quarantined]
    context.store.quarantine(attempt.target.table, rows)
    reach("after-quarantine")


def _move_main(context: RunContext, attempt: Attempt, staged: Staged) -> None:
    context.check_not_overtaken(attempt)
    reach("before-published")
    held = [each.hour for each in staged.held]
    complete_through = capped(
        attempt.plan.complete_through,
        held,
        attempt.state.committed.complete_through,
    )
    publish.publish(
        context.catalog,
        attempt.target.table,
        staged.snapshot_id,
        parent=staged.parent,
        session_id=attempt.plan.session_id,
        complete_through=complete_through,
    )
    reach("after-published")
    context.record_progress(attempt, state="published", published_snapshot_id=staged.snapshot_id)
    reach("after-published-recorded")
