"""Step 2: evaluate the audits of a target on what was staged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lake_assets.base.failpoints import reach
from lake_assets.incremental.declaration import Source, Target
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


def ties_description(source: Source) -> str:
    """Return what the warning on ties says of a source with a key."""
    if not source.has_versions:
        return f"no two rows of one {source.key} and {source.time_column} differ and landed together"
    order = ", ".join(source.order_columns)
    return f"no two versions of one {source.key} have equal {order} and landed together"


def ties_result(target: Target, tied: int) -> tuple[AuditResult, ...]:
    """Return a warning on rows that count by nothing but a hash; none for a target that reads no keys.

    Args:
        tied: Number of such rows of the driving source.
    """
    source = target.sources[0]
    if source.key is None:
        return ()
    ties = AuditResult(
        name="ties",
        passed=tied == 0,
        blocking=False,
        counts={"tied": tied},
        description=ties_description(source),
    )
    return (ties,)


def _audit_results(context: RunContext, attempt: Attempt, staged: Staged) -> tuple[AuditResult, ...]:
    if staged.prepared is None:
        return ()
    of_rows = _quarantine_results(attempt.target, staged) + ties_result(attempt.target, staged.row_counts.tied)
    if staged.prepared.load == "none":
        return of_rows
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
    return evaluate(attempt.target.audits, scope) + of_rows


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
