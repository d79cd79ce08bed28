"""Step 1: stage the rows of a session as one snapshot that main does not refer to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from lake_assets.base.failpoints import reach
from lake_assets.base.hours import format_hours
from lake_assets.errors import ConfigurationError, PublishConflict, UsageError
from lake_assets.incremental.declaration import Stateless, Target
from lake_assets.incremental.execution.steps.attempt import Attempt, Staged
from lake_assets.incremental.execution.steps.external_writes import check_written
from lake_assets.incremental.execution.steps.run_context import RunContext, has_no_rows
from lake_assets.incremental.key_index.lookup import KeyIndex
from lake_assets.incremental.metadata import publish
from lake_assets.incremental.metadata.partitions import hours_added, rows_between
from lake_assets.incremental.planning.session import SessionPlan
from lake_assets.incremental.user_code.failed_rows import naming_failed_rows

if TYPE_CHECKING:
    from lake_assets.incremental.staging.prepared_rows import PreparedRows

Put = Callable[[RunContext, Attempt, "PreparedRows", Table], int]
"""Makes sure that prepared rows are in a staged snapshot; returns the number of the staging, 0 if there is none."""


@dataclass(frozen=True)
class StagingOptions:
    """How a session is staged.

    Attributes:
        put: How prepared rows get into a snapshot: `write_rows` or `find_written`.
        leave_out_unchanged: Whether hours whose rows equal the published ones are left out.
        held: Hours that audits hold back; their rows are left out.
    """

    put: Put
    leave_out_unchanged: bool
    held: Collection[int] = ()


def stage_rows(context: RunContext, attempt: Attempt, table: Table, options: StagingOptions) -> Staged:
    """Prepare the rows of a session, and put them into a staged snapshot if there are any.

    Args:
        table: The target as loaded when the session was seen to be unpublished. What is staged is to follow its main.

    Raises:
        PublishConflict: Main has moved meanwhile.
        RowsFailed: An expression of the target's function failed on a row.
    """
    staged = Staged(snapshot_id=None, parent=publish.main_id(table))
    if has_no_rows(attempt):
        return staged
    with attempt.timed("stage"), naming_failed_rows(attempt.target, attempt.plan.hour_numbers):
        prepared = _prepare_rows(context, attempt, table, options)
        most_quarantined = attempt.target.quarantine_limit + 1
        staged = replace(
            staged,
            prepared=prepared,
            quarantined=tuple(prepared.quarantined_rows(most_quarantined)),
            unchanged=prepared.unchanged,
        )
        number = options.put(context, attempt, prepared, table)
        if number == 0:
            return staged
        return _with_snapshot(context, attempt, staged, prepared, number)


def write_rows(context: RunContext, attempt: Attempt, prepared: PreparedRows, table: Table) -> int:
    """Write prepared rows as a staged snapshot.

    Returns:
        The number of the staging; 0 if there is nothing to write.
    """
    if not prepared.has_rows:
        return 0
    from lake_assets.incremental.staging.prepared_rows import write  # a session without rows needs no Spark

    number = publish.next_staging_number(table, attempt.plan.session_id)
    wap_id = publish.wap_id(attempt.plan.session_id, number)
    write(context.spark(), attempt.target, prepared, wap_id)
    reach("after-staged")
    return number


def find_written(context: RunContext, attempt: Attempt, prepared: PreparedRows, table: Table) -> int:
    """Find the newest snapshot that another program has staged for a session.

    Returns:
        The number of the staging; 0 if there is none and no row had to be written.

    Raises:
        UsageError: Nothing was written.
        NotAsPlanned: What was written is not what the plan says.
    """
    session_id = attempt.plan.session_id
    number = publish.next_staging_number(table, session_id) - 1
    if number == 0 and prepared.has_rows:
        raise UsageError(
            f"Nothing was written for {session_id}: no snapshot of its target has its WAP id.",
            remedy=f"Write with spark.wap.id set to {publish.wap_id(session_id, 1)}, in one commit.",
        )
    check_written(
        table,
        attempt.target.table,
        attempt.plan,
        publish.wap_id(session_id, number),
        attempt.target.time_column,
    )
    return number


def _prepare_rows(context: RunContext, attempt: Attempt, table: Table, options: StagingOptions) -> PreparedRows:
    from lake_assets.incremental.staging.stage import Stager  # a session without rows needs no Spark

    committed = attempt.state.committed
    overdue = committed.pending | committed.skipped | committed.held_hours
    stager = Stager(
        context.spark(),
        attempt.target,
        start=context.start_hour,
        main=publish.main_id(table),
        complete_through=committed.complete_through,
        last_built=_last_built(attempt, table, overdue) if options.leave_out_unchanged else None,
        overdue=overdue,
        max_rows=_estimated_rows(attempt, table),
        index=KeyIndex(context.catalog),
        catalog=context.catalog,
    )
    plan = _plan_as_valid_now(attempt, table)
    return stager.prepare(plan.without(options.held))


def _with_snapshot(
    context: RunContext, attempt: Attempt, staged: Staged, prepared: PreparedRows, number: int
) -> Staged:
    """Return the staged with what its snapshot contains. Raises `PublishConflict` for another parent."""
    table = context.target_table(attempt)
    snapshot = publish.staged_snapshot(table, publish.wap_id(attempt.plan.session_id, number))
    if snapshot.parent_snapshot_id != staged.parent:
        raise PublishConflict(
            attempt.target.table,
            expected=staged.parent,
            found=snapshot.parent_snapshot_id,
        )
    added = hours_added(table, snapshot, attempt.target.time_column)
    return replace(
        staged,
        snapshot_id=snapshot.snapshot_id,
        number=number,
        hours=_hours_written(attempt.target, prepared, added),
        rows=publish.rows_added(snapshot),
    )


def _hours_written(target: Target, prepared: PreparedRows, added: set[int]) -> tuple[int, ...]:
    """Return the hours that a staged snapshot writes or empties."""
    unexpected = added - set(prepared.hours)
    if unexpected:
        raise ConfigurationError(
            f"{target.table} puts rows into hours that their source rows do not have: {format_hours(unexpected)}.",
            remedy=f"A stateless transform keeps the source's {target.sources[0].time_column} as {target.time_column}.",
        )
    if prepared.load == "overwrite":
        return prepared.hours
    return tuple(sorted(target.grain.whole(added)))


def _last_built(attempt: Attempt, table: Table, overdue: Collection[int]) -> float | None:
    """Return the last hour of the target that may have been built before this session; None if none was."""
    if not isinstance(attempt.target.mode, Stateless):
        return attempt.state.committed.last_built
    plan = attempt.plan
    # Overdue hours are built even if they are empty. So without published rows, a comparison would leave none out.
    if plan.envelope and set(plan.hour_numbers).issubset(overdue):
        return inf if rows_between(table, attempt.target.time_column, *plan.envelope) else None
    return inf


def _plan_as_valid_now(attempt: Attempt, table: Table) -> SessionPlan:
    """Return the plan; for all entities if the code has changed, or another program has written to the target."""
    plan = attempt.plan
    same_code = plan.code_version == attempt.target.code_version
    if same_code and publish.only_compacted_since(table, attempt.state.published_snapshot_id):
        return plan
    return replace(plan, changed_through=None)


def _estimated_rows(attempt: Attempt, table: Table) -> float:
    """Return about how many rows a session reads or writes, by metadata; infinite if a source does not tell."""
    plan = attempt.plan
    if plan.envelope is None:
        return plan.cost.rows
    first, last = plan.envelope
    time_column = attempt.target.time_column
    published = rows_between(table, time_column, first, last)
    if isinstance(attempt.target.mode, Stateless):
        # The rows of hours that were pending came with earlier snapshots, which the cost of the plan does not contain.
        was_pending = not attempt.state.committed.pending.isdisjoint(plan.hour_numbers)
        has_versions = attempt.target.sources[0].has_versions
        reads_whole_source = plan.load == "overwrite" and (has_versions or was_pending)
        waited = sum(each.rows for each in attempt.state.committed.deferred) if plan.late_rows else 0
        return (_source_rows(plan) if reads_whole_source else plan.cost.rows + waited) + published
    grain = attempt.target.grain
    state_before = rows_between(table, time_column, grain.first(first - 1), first - 1)
    partitions = len(grain.firsts(plan.hour_numbers))
    return _source_rows(plan) + published + state_before * partitions


def _source_rows(plan: SessionPlan) -> float:
    rows = 0.0
    for source in plan.sources:
        if source.to_snapshot_id is not None:
            rows += source.totals.rows if source.totals else inf
    return rows
