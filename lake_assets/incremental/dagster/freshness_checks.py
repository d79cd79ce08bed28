"""Freshness as asset checks: one for each target that declares `max_delay`, run on demand and with its sessions.

The sensor of `sensors.py` reports verdicts too, so that a target turns red also when nothing runs.
"""

import dagster as dg

from lake_assets.base.hours import hour_key
from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.assets import asset_key
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.monitoring.freshness import Freshness, freshness

FRESHNESS = "freshness"


def freshness_check(pipeline: Pipeline, target: Target, clock: Clock) -> dg.AssetChecksDefinition:
    """Fails when complete-through lags more than `max_delay`. Reads table properties, starts no Spark."""

    @dg.asset_check(
        asset=asset_key(target.table),
        name=FRESHNESS,
        description=f"complete at most {target.max_delay} after an hour's end",
        required_resource_keys={"iceberg"},
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        found = freshness(context.resources.iceberg.catalog(), pipeline, target, clock())
        return dg.AssetCheckResult(
            passed=found.fresh,
            severity=dg.AssetCheckSeverity.ERROR,
            description=description(found),
            metadata=freshness_metadata(found),
        )

    return check


def freshness_evaluation(found: Freshness) -> dg.AssetCheckEvaluation:
    """A verdict as an event outside any run."""
    return dg.AssetCheckEvaluation(
        asset_key=asset_key(found.table),
        check_name=FRESHNESS,
        passed=found.fresh,
        severity=dg.AssetCheckSeverity.ERROR,
        description=description(found),
        metadata=freshness_metadata(found),
    )


def unknown_evaluation(target: Target, error: LakeError) -> dg.AssetCheckEvaluation:
    """The verdict on a target of which nobody can tell whether it is fresh: it is not."""
    return dg.AssetCheckEvaluation(
        asset_key=asset_key(target.table),
        check_name=FRESHNESS,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{error.problem} {error.remedy}",
    )


def description(found: Freshness) -> str:
    return f"{found.what}." if found.fresh else f"{found.what}. {found.remedy}"


def freshness_metadata(found: Freshness) -> dict[str, dg.MetadataValue]:
    """Complete-through and the delay, in minutes."""
    through = "none" if found.complete_through is None else hour_key(found.complete_through)
    minutes = round(found.delay.total_seconds() / 60, 1)
    return {"complete through": dg.MetadataValue.text(through), "delay (minutes)": dg.MetadataValue.float(minutes)}
