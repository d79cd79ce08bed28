"""The view of an audit of published rows."""

from __future__ import annotations

from collections.abc import Iterator

from lake_assets.base.hours import format_hours
from lake_assets.incremental.engine.model import AuditResult, verdicts_in_words
from lake_assets.incremental.engine.published_audit import PublishedAudit
from lake_assets.pages.terminal.render import Part, failed, faint, succeeded, warning


def published(found: PublishedAudit) -> Iterator[Part]:
    """Show the result of each audit, and which hours it evaluated."""
    yield f"{found.table}, hours {format_hours(found.hours)} of snapshot {found.snapshot_id}:"
    for audit in found.audits:
        line = f"{audit.name}: {_describe(audit)}"
        if audit.passed:
            yield succeeded(line)
        elif audit.blocking:
            yield failed(line)
        else:
            yield warning(f"! {line}")
    if found.unsettled:
        yield faint(f"Older than the sources, because pending, held back or skipped: {format_hours(found.unsettled)}.")
    if found.held:
        yield faint(f"{verdicts_in_words(found.held)}.")


def _describe(audit: AuditResult) -> str:
    counts = ", ".join(f"{number} {name}" for name, number in audit.counts.items())
    parts = [counts or ("passed" if audit.passed else "failed")]
    if audit.sample:
        parts.append(f"such as {', '.join(audit.sample)}")
    if audit.hours:
        parts.append(f"in {', '.join(audit.hours)}")
    return "; ".join(parts)
