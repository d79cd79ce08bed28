"""A target's audits as Dagster's asset checks: their specifications, and the verdicts of one session as results.

The step evaluates them between stage and publish. Their names are the audits' names, so a verdict finds its check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import dagster as dg

from lake_assets.incremental.declaration import Target
from lake_assets.incremental.session import AuditResult

QUARANTINE = "quarantine"
QUARANTINE_LIMIT = "quarantine_limit"


def check_specs(key: dg.AssetKey, target: Target) -> list[dg.AssetCheckSpec]:
    """One check per audit, and two for rows that were set aside."""
    limit = f"at most {target.quarantine_limit} rows of one session are set aside"
    return [
        *(_spec(key, audit.name, audit.description, blocking=audit.blocking) for audit in target.audits),
        _spec(key, QUARANTINE, "no row was set aside in etl.quarantine", blocking=False),
        _spec(key, QUARANTINE_LIMIT, limit, blocking=True),
    ]


def check_results(key: dg.AssetKey, audits: Iterable[AuditResult]) -> Iterator[dg.AssetCheckResult]:
    """The verdicts, with counts and offending keys; a failed one that is not blocking is a warning."""
    for audit in audits:
        yield dg.AssetCheckResult(
            asset_key=key,
            check_name=audit.name,
            passed=audit.passed,
            severity=dg.AssetCheckSeverity.ERROR if audit.blocking else dg.AssetCheckSeverity.WARN,
            description=audit.description or None,
            metadata=verdict_metadata(audit),
        )


def verdict_metadata(audit: AuditResult) -> dict[str, dg.MetadataValue]:
    """The counts, by name, and the offending keys as a list."""
    counts: dict[str, dg.MetadataValue] = {name: dg.MetadataValue.int(count) for name, count in audit.counts.items()}
    if audit.sample:
        counts["offending keys"] = dg.MetadataValue.md("\n".join(f"- `{key}`" for key in audit.sample))
    return counts


def _spec(key: dg.AssetKey, name: str, description: str, *, blocking: bool) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(name=name, asset=key, description=description, blocking=blocking)
