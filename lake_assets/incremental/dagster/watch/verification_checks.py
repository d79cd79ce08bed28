"""The comparison with a rebuild as asset checks: one for each target, and a schedule that runs all of them once a day.

The schedule requests one run for each target. A run changes no table. If the check of a target fails, it stays red, and
an alert is due, until a later evaluation finds the day's hours equal.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

import dagster as dg

from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.operations.health import Problem
from lake_assets.incremental.operations.verify import Verification, verify_hours

EQUALS_REBUILD = "equals_rebuild"


def check_key(target: Target) -> dg.AssetCheckKey:
    """Return the key of a target's check."""
    return dg.AssetCheckKey(asset_key(target.table), EQUALS_REBUILD)


def day_number(now: datetime) -> int:
    """Return the number of a day, which chooses the hours that are compared on it."""
    return now.date().toordinal()


def verification_check(pipeline: Pipeline, target: Target, clock: Clock, hours: int) -> dg.AssetChecksDefinition:
    """Return the check of a target. `hours`: most hours that it compares on a day."""

    @dg.asset_check(
        asset=asset_key(target.table),
        name=EQUALS_REBUILD,
        description=f"Some hours a day, at most {hours}, equal a rebuild from the sources. All hours come round.",
    )
    def check(context: dg.AssetCheckExecutionContext, lake_assets: LakeResource) -> dg.AssetCheckResult:
        engine = Engine(
            lake_assets.catalog(),
            pipeline,
            clock=clock,
            spark=lambda: lake_assets.spark_session,
        )
        try:
            found = verify_hours(engine, target, day=day_number(clock()), limit=hours)
        except LakeError as error:
            return dg.AssetCheckResult(passed=False, description=f"{error.problem} {error.remedy}")
        return _result(found)

    return check


def verification_problem(instance: dg.DagsterInstance, target: Target) -> Problem | None:
    """Return the problem of a target whose newest evaluation failed; None if it passed or there is none."""
    record = instance.get_latest_asset_check_evaluation_record(check_key(target))
    event = record.event.dagster_event if record and record.event else None
    if event is None or event.asset_check_evaluation_data.passed:
        return None
    what = event.asset_check_evaluation_data.description or f"{target.table} could not be compared with a rebuild."
    return Problem(
        target=target.table,
        kind="not_equal",
        what=what,
        remedy=f"Compare again with `lake verify {target.name}` when it is repaired.",
        run_id=record.run_id if record else None,
    )


def _result(found: Verification) -> dg.AssetCheckResult:
    lines = "\n".join(f"- {line}" for line in found.left_out) or "none"
    return dg.AssetCheckResult(
        passed=found.equal,
        severity=dg.AssetCheckSeverity.ERROR,
        description=" ".join(filter(None, (found.what, found.remedy, found.note))),
        metadata={
            "hours compared": len(found.compared),
            "hours that differ": len(found.differing),
            "rows": found.rows,
            "rows rebuilt": found.rows_rebuilt,
            "seconds": round(found.seconds, 2),
            "left out": dg.MetadataValue.md(lines),
        },
    )


def verification_schedule(checks: Sequence[dg.AssetChecksDefinition], cron: str) -> dg.ScheduleDefinition:
    """Return the schedule that requests one run for each check; `cron` is in UTC."""

    def evaluate(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest]:
        tick = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        for check in checks:
            for key in check.check_keys:
                yield dg.RunRequest(f"{tick}:{key.to_user_string()}", asset_selection=[], asset_check_keys=[key])

    return dg.ScheduleDefinition(
        name="verification_schedule",
        target=dg.AssetSelection.checks(*checks),
        execution_fn=evaluate,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Compares some hours of every target with a rebuild from its sources. Changes nothing.",
    )


def verification_definitions(pipeline: Pipeline, *, clock: Clock, hours: int, cron: str) -> dg.Definitions:
    """Return the checks of a pipeline's targets and their schedule; nothing for a pipeline without targets.

    Args:
        pipeline: Declares the targets.
        clock: The present moment; its day chooses the hours.
        hours: Most hours of a target that a day compares.
        cron: When the checks run, in UTC.
    """
    checks = [verification_check(pipeline, target, clock, hours) for target in pipeline.targets]
    if not checks:
        return dg.Definitions()
    return dg.Definitions(asset_checks=checks, schedules=[verification_schedule(checks, cron)])
