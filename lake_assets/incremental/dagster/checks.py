"""A target's audits as Dagster asset checks: their specifications, and the audit results of one session.

The step evaluates the audits between stage and publish. Checks have the names of the audits. An hour that an audit
holds back gets an evaluation of its own; all other hours of a session share one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import dagster as dg

from lake_assets.base.grain import Grain
from lake_assets.base.hours import format_hours, hour_key
from lake_assets.incremental.declaration import Stateless, Target
from lake_assets.incremental.planning.session import AuditResult, SessionReport

QUARANTINE = "quarantine"
QUARANTINE_LIMIT = "quarantine_limit"
SKIPPED_HOURS = "skipped_hours"

QUARANTINE_DESCRIPTION = "No row is in quarantine (table etl.quarantine)."
SKIPPED_HOURS_DESCRIPTION = "No late hour is beyond the catch-up threshold. Launch a backfill to build skipped hours."

MAX_PARTITION_EVALUATIONS = 100
"""Evaluations of single partitions that are stored for one session: each is an event of its own."""


def check_specs(key: dg.AssetKey, target: Target) -> list[dg.AssetCheckSpec]:
    """Return a check for each audit, two for quarantined rows, and one for skipped hours if the target may skip any."""
    specs = []
    for audit in target.audits:
        specs.append(_spec(key, audit.name, audit.description, blocking=audit.blocking))
    limit = f"One session quarantines at most {target.quarantine_limit} rows."
    specs.append(_spec(key, QUARANTINE, QUARANTINE_DESCRIPTION, blocking=False))
    specs.append(_spec(key, QUARANTINE_LIMIT, limit, blocking=True))
    if has_catchup_threshold(target):
        specs.append(_spec(key, SKIPPED_HOURS, SKIPPED_HOURS_DESCRIPTION, blocking=False))
    return specs


def has_catchup_threshold(target: Target) -> bool:
    """Return whether late hours of a target may be beyond a catch-up threshold."""
    return not isinstance(target.mode, Stateless) and target.mode.catchup_threshold is not None


def skipped_hours_result(key: dg.AssetKey, skipped: Collection[int]) -> dg.AssetCheckResult:
    """Return a warning if this session or an earlier one skipped hours that are not built yet."""
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=SKIPPED_HOURS,
        passed=not skipped,
        severity=dg.AssetCheckSeverity.WARN,
        description=SKIPPED_HOURS_DESCRIPTION,
        metadata={"skipped hours": format_hours(skipped) or "none"},
    )


def check_results(key: dg.AssetKey, audits: Iterable[AuditResult]) -> Iterator[dg.AssetCheckResult]:
    """Yield the audit results with counts and offending keys; one that failed without blocking is a warning."""
    for audit in audits:
        yield dg.AssetCheckResult(
            asset_key=key,
            check_name=audit.name,
            passed=audit.passed,
            severity=dg.AssetCheckSeverity.ERROR if audit.blocking else dg.AssetCheckSeverity.WARN,
            description=audit.description or None,
            metadata=audit_metadata(audit),
        )


def partition_evaluations(key: dg.AssetKey, grain: Grain, report: SessionReport) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield a failed evaluation for each partition that an audit holds back, and a passed one for each released one.

    The step logs these evaluations, because its own check results have no partition when the run has several. They are
    not reported outside of the run, because Dagster's storage takes only one such event for each check and partition.
    """
    return islice(_all_partition_evaluations(key, grain, report), MAX_PARTITION_EVALUATIONS)


def _all_partition_evaluations(
    key: dg.AssetKey, grain: Grain, report: SessionReport
) -> Iterator[dg.AssetCheckEvaluation]:
    held = grain.firsts(hour.hour for hour in report.held)
    released = grain.firsts(report.released)
    for audit in report.audits:
        if not audit.blocking:
            continue
        failed = _failed_partitions(audit, held)
        for hour in [*failed, *released]:
            offending = audit.hours[hour_key(hour)] if hour in failed else 0
            yield dg.AssetCheckEvaluation(
                asset_key=key,
                check_name=audit.name,
                passed=hour not in failed,
                severity=dg.AssetCheckSeverity.ERROR,
                description=audit.description or None,
                metadata={"session": report.plan.session_id, "offending rows": offending},
                partition=grain.key(hour),
            )


def audit_metadata(audit: AuditResult) -> dict[str, dg.MetadataValue]:
    """Return the counts by name; the offending keys and the failed hours as lists."""
    metadata: dict[str, dg.MetadataValue] = {}
    for name, count in audit.counts.items():
        metadata[name] = dg.MetadataValue.int(count)
    if audit.sample:
        metadata["offending keys"] = _list(f"`{key}`" for key in audit.sample)
    if audit.hours:
        metadata["failed hours"] = _list(f"{hour}: {rows}" for hour, rows in audit.hours.items())
    return metadata


def _list(items: Iterable[str]) -> dg.MetadataValue:
    return dg.MetadataValue.md("\n".join(f"- {item}" for item in items))


def _spec(key: dg.AssetKey, name: str, description: str, *, blocking: bool) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(name=name, asset=key, description=description, blocking=blocking)


def _failed_partitions(audit: AuditResult, held: Iterable[int]) -> list[int]:
    return [hour for hour in held if hour_key(hour) in audit.hours]
