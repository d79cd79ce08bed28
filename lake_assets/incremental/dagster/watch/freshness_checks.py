"""Freshness as asset checks: one for each target that declares `max_delay`, to be run on demand.

The freshness sensor reports evaluations too, so that a target turns red while nothing runs.
"""

import dagster as dg

from lake_assets.base.hours import hour_key
from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.operations.freshness import Freshness, freshness

FRESHNESS = "freshness"


def freshness_check(pipeline: Pipeline, target: Target, clock: Clock) -> dg.AssetChecksDefinition:
    """Return a check that fails when complete-through lags more than `max_delay`.

    It reads table properties and starts no Spark.
    """

    @dg.asset_check(
        asset=asset_key(target.table),
        name=FRESHNESS,
        description=f"The table is complete at most {target.max_delay} after the end of an hour.",
    )
    def check(context: dg.AssetCheckExecutionContext, lake_assets: LakeResource) -> dg.AssetCheckResult:
        found = freshness(lake_assets.catalog(), pipeline, target, clock())
        return dg.AssetCheckResult(
            passed=found.fresh,
            severity=dg.AssetCheckSeverity.ERROR,
            description=_description(found),
            metadata=_metadata(found),
        )

    return check


def freshness_evaluation(found: Freshness) -> dg.AssetCheckEvaluation:
    """Return an evaluation as an event outside of any run."""
    return dg.AssetCheckEvaluation(
        asset_key=asset_key(found.table),
        check_name=FRESHNESS,
        passed=found.fresh,
        severity=dg.AssetCheckSeverity.ERROR,
        description=_description(found),
        metadata=_metadata(found),
    )


def failed_evaluation(target: Target, error: LakeError) -> dg.AssetCheckEvaluation:
    """Return the evaluation of a target whose freshness cannot be computed: it failed."""
    return dg.AssetCheckEvaluation(
        asset_key=asset_key(target.table),
        check_name=FRESHNESS,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{error.problem} {error.remedy}",
    )


def _description(found: Freshness) -> str:
    return f"{found.what}." if found.fresh else f"{found.what}. {found.remedy}"


def _metadata(found: Freshness) -> dict[str, dg.MetadataValue]:
    through = "none" if found.complete_through is None else hour_key(found.complete_through)
    minutes = round(found.delay.total_seconds() / 60, 1)
    return {
        "complete through": dg.MetadataValue.text(through),
        "delay (minutes)": dg.MetadataValue.float(minutes),
    }
