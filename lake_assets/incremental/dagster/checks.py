"""A target's audits as Dagster asset checks: their specifications, the results of a session, and what Dagster has
stored.

The step evaluates the audits between stage and publish. Checks have the names of the audits. An hour that an audit
holds back gets an evaluation of its own; all other hours of a session share one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import dagster as dg
from dagster_shared.record import replace

from lake_assets.base.hours import Grain, format_hours, hour_key
from lake_assets.connections import dagster as private
from lake_assets.incremental.declaration import Stateless, Target
from lake_assets.incremental.declaration.model import DEFAULT_QUARANTINE_LIMIT
from lake_assets.incremental.engine.audit_run import PublishedAudit, ties_result
from lake_assets.incremental.engine.model import AuditResult, HeldHour, SessionReport, held_by_audit
from lake_assets.incremental.engine.planning import PendingHours


def shown_evaluation(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """Return the evaluation that Dagster shows for a check; None if the newest run that planned it left it open."""
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    found = None if record is None else record.evaluation
    return found if isinstance(found, dg.AssetCheckEvaluation) else None  # of a planned one, it is the plan


def last_evaluation(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """Return the last evaluation of a check that was finished; None if there is none."""
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=MAX_PARTITION_EVALUATIONS)
    found = (record.evaluation for record in records)
    return next((each for each in found if isinstance(each, dg.AssetCheckEvaluation)), None)


def planned_checks(instance: dg.DagsterInstance, run_id: str) -> list[dg.AssetCheckKey]:
    """Return the checks that a run has planned, also those of other steps."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED).records
    events = (record.event_log_entry.get_dagster_event() for record in records)
    return [event.asset_check_planned_data.asset_check_key for event in events]


def of_no_materialization(evaluation: dg.AssetCheckEvaluation) -> dg.AssetCheckEvaluation:
    """Return an evaluation that belongs to no materialization.

    Reported outside of a run, Dagster shows it with a newest materialization that was reported outside of a run, too.
    """
    return replace(evaluation, target_materialization_data=None)


def of_newest_materialization(
    instance: dg.DagsterInstance, evaluation: dg.AssetCheckEvaluation
) -> dg.AssetCheckEvaluation:
    """Return an evaluation with the newest materialization of its asset as its target.

    Dagster shows an evaluation without a target only if it is later than that materialization. SQLite stores its time
    in whole seconds, so what is evaluated in the second of that materialization would not be shown. One that the same
    run materializes afterwards is shown in any case. An evaluation of one partition is left as it is.
    """
    if evaluation.partition is not None:
        return evaluation
    newest = instance.fetch_materializations(evaluation.asset_key, limit=1).records
    if not newest:
        return evaluation
    record = newest[0]
    try:
        target = private.AssetCheckEvaluationTargetMaterializationData(
            run_id=record.event_log_entry.run_id, storage_id=record.storage_id, timestamp=record.timestamp
        )
    except private.Moved:
        return evaluation
    return replace(evaluation, target_materialization_data=target)


QUARANTINE = "quarantine"
QUARANTINE_LIMIT = "quarantine_limit"
SKIPPED_HOURS = "skipped_hours"
PENDING_HOURS = "pending_hours"

QUARANTINE_DESCRIPTION = "No row is in quarantine (table etl.quarantine)."
SKIPPED_HOURS_DESCRIPTION = "No late hour is beyond the catch-up threshold. Launch a backfill to build skipped hours."
PENDING_HOURS_DESCRIPTION = "No hour that has changed waits to be built."

NONE = "none"

MAX_PARTITION_EVALUATIONS = 100
"""Evaluations of single partitions that are stored for one session: each is an event of its own."""


def check_specs(key: dg.AssetKey, target: Target) -> list[dg.AssetCheckSpec]:
    """Return a check for each audit, two for quarantined rows, and one each for ties, pending hours and skipped hours.

    That for ties is left out if the target reads no keys, the last one if it skips no hours.
    """
    specs = []
    for audit in target.audits:
        specs.append(_spec(key, audit.name, audit.description, blocking=audit.blocking))
    limited = f"{target.quarantine_limit} rows"
    if 0 < target.quarantine_limit < 1:
        limited = f"{target.quarantine_limit:.0%} of the rows that it reads"
    elif target.quarantine_limit == DEFAULT_QUARANTINE_LIMIT:
        limited += ", or half of those that it reads"
    limit = f"One session quarantines at most {limited}."
    specs.append(_spec(key, QUARANTINE, QUARANTINE_DESCRIPTION, blocking=False))
    specs.append(_spec(key, QUARANTINE_LIMIT, limit, blocking=True))
    for ties in ties_result(target, 0):
        specs.append(_spec(key, ties.name, ties.description, blocking=False))
    specs.append(_spec(key, PENDING_HOURS, PENDING_HOURS_DESCRIPTION, blocking=False))
    if has_catchup_threshold(target):
        specs.append(_spec(key, SKIPPED_HOURS, SKIPPED_HOURS_DESCRIPTION, blocking=False))
    return specs


def has_catchup_threshold(target: Target) -> bool:
    """Return whether late hours of a target may be beyond a catch-up threshold."""
    return not isinstance(target.mode, Stateless) and target.mode.catchup_threshold is not None


def skipped_hours_evaluation(key: dg.AssetKey, skipped: Collection[int]) -> dg.AssetCheckEvaluation:
    """Return a warning if any session skipped hours that are not built yet."""
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=SKIPPED_HOURS,
        passed=not skipped,
        severity=dg.AssetCheckSeverity.WARN,
        description=SKIPPED_HOURS_DESCRIPTION,
        metadata={"skipped hours": format_hours(skipped) or NONE},
    )


def pending_hours_evaluation(key: dg.AssetKey, grain: Grain, pending: PendingHours) -> dg.AssetCheckEvaluation:
    """Return a warning if a target still has to build something, with the hours and the reason."""
    metadata = {"pending hours": grain.format_hours(pending.hours) or NONE}
    if pending.why:
        metadata["why"] = pending.why
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=PENDING_HOURS,
        passed=not pending.why,
        severity=dg.AssetCheckSeverity.WARN,
        description=pending.why or PENDING_HOURS_DESCRIPTION,
        metadata=metadata,
    )


def published_metadata(grain: Grain, found: PublishedAudit) -> dict[str, dg.MetadataValue]:
    """Return what an evaluation of published rows says besides the audit: which hours of which snapshot it read."""
    shown: dict[str, dg.MetadataValue] = {
        "evaluated hours": dg.MetadataValue.text(grain.format_hours(found.hours)),
        "evaluated snapshot": dg.MetadataValue.text(str(found.snapshot_id)),
    }
    if found.unsettled:
        hours = grain.format_hours(found.unsettled)
        shown["⚠ older than the sources"] = dg.MetadataValue.text(f"{hours} (pending, held back or skipped)")
    return shown


def as_result(evaluation: dg.AssetCheckEvaluation, severity: dg.AssetCheckSeverity) -> dg.AssetCheckResult:
    """Return an evaluation as the result that a step yields for a check that its run has planned."""
    return dg.AssetCheckResult(
        asset_key=evaluation.asset_key,
        check_name=evaluation.check_name,
        passed=evaluation.passed,
        severity=severity,
        description=evaluation.description,
        metadata=dict(evaluation.metadata),
    )


def audit_evaluations(
    key: dg.AssetKey, grain: Grain, report: SessionReport, held: Sequence[HeldHour]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the audit results of a session: first those of single partitions, then one for the asset as a whole.

    The newest evaluation of a check is what Dagster shows for the asset. It fails as long as the audit holds any hour
    back, also after a session in which the audit passed.

    Args:
        key: The asset.
        grain: Its grain.
        report: What the session did.
        held: All hours that are held back after the session, whichever session has evaluated them.
    """
    of_partitions = _all_partition_evaluations(key, grain, report, held)
    yield from islice(of_partitions, MAX_PARTITION_EVALUATIONS)
    for audit in report.audits:
        yield audit_evaluation(key, audit, held)


def audit_evaluation(
    key: dg.AssetKey,
    audit: AuditResult,
    held: Sequence[HeldHour],
    *,
    metadata: Mapping[str, dg.MetadataValue] | None = None,
) -> dg.AssetCheckEvaluation:
    """Return an audit's evaluation of the whole asset, with counts, offending keys and hours that it holds back.

    A result that failed without blocking is a warning.

    Args:
        key: The asset.
        audit: The result.
        held: All hours that are held back now.
        metadata: Further entries.
    """
    still_held = held_by_audit(held, audit.name) if audit.blocking else ()
    shown = {**audit_metadata(audit), **(metadata or {})}
    if still_held:
        shown["held hours"] = _list(f"{hour_key(each.hour)}: {each.why}" for each in still_held)
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=audit.name,
        passed=audit.passed and not still_held,
        severity=dg.AssetCheckSeverity.ERROR if audit.blocking else dg.AssetCheckSeverity.WARN,
        description=audit.description or None,
        metadata=shown,
    )


def _all_partition_evaluations(
    key: dg.AssetKey, grain: Grain, report: SessionReport, held: Sequence[HeldHour]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield, for each blocking audit that a hold or a release concerns, the released partitions, then those it holds.

    The step logs these evaluations, because a check of a run with several partitions has none itself. They are not
    reported outside of the run, because Dagster's storage takes only one such event for each check and partition.
    """
    released = grain.firsts(report.released)
    for audit in report.audits:
        reasons = _reasons(grain, audit, held)
        is_concerned = released or not reasons.keys().isdisjoint(each.hour for each in report.held)
        if audit.blocking and is_concerned:
            yield from _evaluations_of_audit(key, grain, audit, released, reasons, report.plan.session_id)


def _evaluations_of_audit(
    key: dg.AssetKey,
    grain: Grain,
    audit: AuditResult,
    released: Sequence[int],
    reasons: Mapping[int, HeldHour],
    session_id: str,
) -> Iterator[dg.AssetCheckEvaluation]:
    for hour in released:
        if hour not in reasons:
            yield _partition_evaluation(key, grain, audit, hour, session_id)
    for hour, reason in sorted(reasons.items()):
        yield _partition_evaluation(key, grain, audit, hour, reason.session_id, why=reason.why)


def _reasons(grain: Grain, audit: AuditResult, held: Sequence[HeldHour]) -> dict[int, HeldHour]:
    """Return the first hour of each partition that an audit holds back, with the hour as it is held."""
    return {grain.first(each.hour): each for each in held_by_audit(held, audit.name)}


def _partition_evaluation(
    key: dg.AssetKey, grain: Grain, audit: AuditResult, hour: int, session_id: str, *, why: str = ""
) -> dg.AssetCheckEvaluation:
    """Return an audit's evaluation of one partition. why: the reason why it is held back; empty if it has passed."""
    metadata: dict[str, str | int] = {"session": session_id}
    if why:
        metadata["why"] = why
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=audit.name,
        passed=not why,
        severity=dg.AssetCheckSeverity.ERROR,
        description=audit.description or None,
        metadata=metadata,
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
