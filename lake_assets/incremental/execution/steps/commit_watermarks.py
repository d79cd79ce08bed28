"""Step 4: commit the watermarks of a session that is published."""

from __future__ import annotations

from pyiceberg.table import Table

from lake_assets.base.failpoints import reach
from lake_assets.errors import StateMoved
from lake_assets.incremental.execution.session_log import ProcessState
from lake_assets.incremental.execution.steps.attempt import Attempt, Staged
from lake_assets.incremental.execution.steps.run_context import RunContext
from lake_assets.incremental.execution.target_check import version_after
from lake_assets.incremental.metadata import publish
from lake_assets.incremental.planning.plan import committed_after
from lake_assets.incremental.planning.session import TargetVersion


def commit_watermarks(context: RunContext, attempt: Attempt, staged: Staged) -> None:
    """Move the watermarks from where the session found them to where its plan ends, and record it as committed.

    Raises:
        StateMoved: Another run has moved the process meanwhile.
    """
    with attempt.timed("commit"):
        revision, moved_by = context.store.last_move(attempt.target.table)
        # An earlier attempt may have moved the watermarks and died; then they name this session.
        if moved_by != attempt.plan.session_id:
            _move_watermarks(context, attempt, staged, revision)
        reach("after-watermark")
        context.record_progress(
            attempt,
            state="committed",
            built=staged.hours,
            unchanged=staged.unchanged,
            ended_at=context.clock(),
        )
        reach("after-committed")


def _move_watermarks(context: RunContext, attempt: Attempt, staged: Staged, revision: int) -> None:
    planned_from = attempt.state
    if revision != planned_from.revision:
        raise StateMoved(
            attempt.target.table,
            expected=planned_from.revision,
            found=revision,
        )
    committed = committed_after(
        attempt.target.mode,
        planned_from.committed,
        attempt.plan,
        built=(*staged.hours, *staged.unchanged),
        unchanged=staged.unchanged,
        held=staged.held,
    )
    table = context.target_table(attempt)
    target = version_after(table, attempt.plan.target, staged.snapshot_id)
    published = staged.snapshot_id or _still_published(table, planned_from, target)
    context.store.move_watermarks(planned_from, attempt.plan, committed, published, target=target)


def _still_published(table: Table, state: ProcessState, target: TargetVersion) -> int | None:
    """Return the snapshot that a session published last; if main does not descend from it any more, main as planned."""
    published = state.published_snapshot_id
    if published is None or any(snapshot.snapshot_id == published for snapshot in publish.ancestors(table)):
        return published
    return target.snapshot_id
