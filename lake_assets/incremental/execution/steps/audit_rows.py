"""Step 2: evaluate the audits of a target on what was staged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lake_assets.base.failpoints import reach
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.execution.steps.attempt import Attempt, Staged
from lake_assets.incremental.execution.steps.run_context import RunContext
from lake_assets.incremental.planning.session import AuditResult
from lake_assets.incremental.staging.audit_evaluation import evaluate
from lake_assets.incremental.staging.audit_scope import audit_scope


def audit_rows(context: RunContext, attempt: Attempt, staged: Staged) -> Staged:
    """Return the staged with the results of its audits."""
    with attempt.timed("audit"):
        staged = replace(staged, audits=_audit_results(context, attempt, staged))
    reach("after-audits")
    return staged


def failures(audits: Iterable[AuditResult]) -> dict[str, str]:
    """Return the blocking audits that failed: name → counts and offending keys, for a message."""
    failed = {}
    for audit in audits:
        if audit.blocking and not audit.passed:
            failed[audit.name] = _describe(audit)
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


def _audit_results(context: RunContext, attempt: Attempt, staged: Staged) -> tuple[AuditResult, ...]:
    if staged.prepared is None:
        return ()
    of_quarantine = _quarantine_results(attempt.target, staged)
    if staged.prepared.load == "none":
        return of_quarantine
    # Without a staged row the audits evaluate what is published: a source that was not read has rows, too.
    scope = audit_scope(
        context.catalog,
        context.spark(),
        attempt.target,
        attempt.plan,
        staged.prepared,
        snapshot_id=staged.snapshot_id,
        parent=staged.parent,
        hours=staged.audited_hours,
        rows=staged.rows,
        start=context.start_hour,
    )
    return evaluate(attempt.target.audits, scope) + of_quarantine


def _quarantine_results(target: Target, staged: Staged) -> tuple[AuditResult, AuditResult]:
    new_rows = len(staged.quarantined)
    if new_rows > target.quarantine_limit and staged.prepared is not None:
        new_rows = staged.prepared.count_quarantined()  # no more than the limit + 1 were collected
    return quarantine_results(target, all_rows=staged.row_counts.quarantined, new_rows=new_rows)


def _describe(audit: AuditResult) -> str:
    counts = ", ".join(f"{number} {counted}" for counted, number in audit.counts.items())
    if not audit.sample:
        return counts
    return f"{counts} (such as {', '.join(audit.sample)})"
