"""A target's audits as Dagster's asset checks: their specifications, and the verdicts of one session as results.

The step evaluates them between stage and publish. Their names are the audits' names, so a verdict finds its check. An
hour that is held back gets evaluations of its own; all others of a session share one.
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

NONE_SKIPPED = "no late hour lies beyond the catch-up threshold; a backfill builds those that do"

MOST_EVALUATIONS = 100
"""So many evaluations of single hours are stored for one session: each is an event of its own."""


def check_specs(key: dg.AssetKey, target: Target) -> list[dg.AssetCheckSpec]:
    """One check per audit, and two for rows that were set aside; one for hours that a catch-up threshold skips."""
    limit = f"at most {target.quarantine_limit} rows are newly set aside in one session"
    return [
        *(_spec(key, audit.name, audit.description, blocking=audit.blocking) for audit in target.audits),
        _spec(key, QUARANTINE, "no row was set aside in etl.quarantine", blocking=False),
        _spec(key, QUARANTINE_LIMIT, limit, blocking=True),
        *([_spec(key, SKIPPED_HOURS, NONE_SKIPPED, blocking=False)] if may_skip(target) else []),
    ]


def may_skip(target: Target) -> bool:
    """Whether late hours of a target may lie beyond a catch-up threshold."""
    return not isinstance(target.mode, Stateless) and target.mode.catchup_threshold is not None


def skipped_result(key: dg.AssetKey, skipped: Collection[int]) -> dg.AssetCheckResult:
    """A warning while hours are skipped, by this session or one before it."""
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=SKIPPED_HOURS,
        passed=not skipped,
        severity=dg.AssetCheckSeverity.WARN,
        description=NONE_SKIPPED,
        metadata={"skipped hours": format_hours(skipped) or "none"},
    )


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


def partition_evaluations(key: dg.AssetKey, grain: Grain, report: SessionReport) -> Iterator[dg.AssetCheckEvaluation]:
    """A failed one for each audit and each partition that it holds back; passed ones for those that are held no more.

    To be logged by the step, whose own results are of no partition when it has many. Not as events outside any run: of
    these Dagster's storage takes one for each check and partition, once and for all.
    """
    return islice(_partition_evaluations(key, grain, report), MOST_EVALUATIONS)


def _partition_evaluations(key: dg.AssetKey, grain: Grain, report: SessionReport) -> Iterator[dg.AssetCheckEvaluation]:
    held = grain.firsts(h.hour for h in report.held)
    for audit in (a for a in report.audits if a.blocking):
        failed = {h: audit.hours[hour_key(h)] for h in held if hour_key(h) in audit.hours}
        for hour in [*failed, *grain.firsts(report.released)]:
            yield dg.AssetCheckEvaluation(
                asset_key=key,
                check_name=audit.name,
                passed=hour not in failed,
                severity=dg.AssetCheckSeverity.ERROR,
                description=audit.description or None,
                metadata={"session": report.plan.session_id, "offending rows": failed.get(hour, 0)},
                partition=grain.key(hour),
            )


def verdict_metadata(audit: AuditResult) -> dict[str, dg.MetadataValue]:
    """The counts, by name; the offending keys, and the hours that failed, as lists."""
    counts: dict[str, dg.MetadataValue] = {name: dg.MetadataValue.int(count) for name, count in audit.counts.items()}
    if audit.sample:
        counts["offending keys"] = dg.MetadataValue.md("\n".join(f"- `{key}`" for key in audit.sample))
    if audit.hours:
        counts["failed hours"] = dg.MetadataValue.md("\n".join(f"- {hour}: {n}" for hour, n in audit.hours.items()))
    return counts


def _spec(key: dg.AssetKey, name: str, description: str, *, blocking: bool) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(name=name, asset=key, description=description, blocking=blocking)
