"""The report of a session: what an attempt has done, as a value."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from lake_assets.incremental.execution.steps.attempt import Attempt, Staged
from lake_assets.incremental.planning.session import RowCounts, SessionReport

Status = Literal["committed", "published", "already_committed", "blocked"]


def report_of(
    attempt: Attempt, staged: Staged, status: Status, *, row_counts: RowCounts | None = None
) -> SessionReport:
    """Return the report of a session.

    Args:
        status: How far the session has come; a blocked one has published nothing.
        row_counts: What became of the source rows; by default, what `staged` has.
    """
    counts = row_counts or staged.row_counts
    report = SessionReport(
        plan=attempt.plan,
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
        seconds=attempt.seconds,
        data_version=str(staged.snapshot_id) if staged.snapshot_id else None,
    )
    if status == "blocked":
        return report
    held_before = attempt.state.committed.held_hours
    return replace(
        report,
        hours_built=staged.hours,
        hours_unchanged=staged.unchanged,
        released=tuple(hour for hour in staged.audited_hours if hour in held_before),
        published_snapshot_id=staged.snapshot_id,
    )
