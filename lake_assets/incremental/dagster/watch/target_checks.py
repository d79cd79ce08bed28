"""An asset check for each target: is it well, but for its freshness? A sensor reports it, also while nothing runs."""

import json

import dagster as dg

from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.operations.health import health
from lake_assets.incremental.operations.inputs import Inputs, TargetInputs

INTACT = "intact"
DESCRIPTION = "The next session can be planned, the last one has not failed, and no hour is held back."
TICK_SECONDS = 30


def intact_check(pipeline: Pipeline, target: Target, clock: Clock) -> dg.AssetChecksDefinition:
    """Return a check that fails if a target has a problem. It reads metadata and starts no Spark."""

    @dg.asset_check(
        asset=asset_key(target.table),
        name=INTACT,
        description=DESCRIPTION,
    )
    def check(context: dg.AssetCheckExecutionContext, lake_assets: LakeResource) -> dg.AssetCheckResult:
        problem = _problem(Engine(lake_assets.catalog(), pipeline, clock=clock), target)
        return dg.AssetCheckResult(
            passed=problem is None,
            severity=dg.AssetCheckSeverity.ERROR,
            description=problem,
        )

    return check


def targets_sensor(pipeline: Pipeline, clock: Clock) -> dg.SensorDefinition:
    """Return a sensor that evaluates the check of each target, and reports an evaluation when its result changes.

    A target without a problem is evaluated again when something has moved that its evaluation reads.
    """
    inputs = TargetInputs(pipeline, pipeline.targets)
    known: dict[str, tuple[Inputs, str | None]] = {}

    def evaluate(context: dg.SensorEvaluationContext, lake_assets: LakeResource) -> dg.SensorResult:
        engine = Engine(lake_assets.catalog(), pipeline, clock=clock)
        reported = json.loads(context.cursor or "{}")
        moved = inputs.look(engine.catalog)
        for target in pipeline.targets:
            if known.get(target.table) != (moved[target.table], None):
                known[target.table] = (moved[target.table], _problem(engine, target))
        found = {table: problem for table, (_, problem) in known.items()}
        events = []
        for table, problem in found.items():
            if table not in reported or reported[table] != problem:
                events.append(_evaluation(table, problem))
        wrong = sum(problem is not None for problem in found.values())
        reason = f"{wrong} of {len(found)} targets have a problem."
        return dg.SensorResult(asset_events=events, cursor=json.dumps(found), skip_reason=reason)

    return dg.SensorDefinition(
        name="targets_sensor",
        evaluation_fn=evaluate,
        asset_selection=[asset_key(target.table) for target in pipeline.targets],
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports targets that have a problem.",
    )


def _problem(engine: Engine, target: Target) -> str | None:
    """Return what is wrong with a target and what to do; None if nothing is. Freshness has a check of its own."""
    errors = [each for each in health(engine, target).problems if each.level == "error" and each.kind != "not_fresh"]
    return " ".join(f"{problem.what} {problem.remedy}" for problem in errors) or None


def _evaluation(table: str, problem: str | None) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=asset_key(table),
        check_name=INTACT,
        passed=problem is None,
        severity=dg.AssetCheckSeverity.ERROR,
        description=problem,
    )
