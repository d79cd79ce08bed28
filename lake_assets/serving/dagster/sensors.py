"""The sensor that requests pushes: one for each state of a group's sources. It reads only metadata."""

from collections.abc import Iterator, Mapping

import dagster as dg
from dagster import DagsterRunStatus

from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.dagster.session_runs import ended_attempts, rest_seconds
from lake_assets.serving.store.groups import PushGroup

TICK_SECONDS = 60
"""Between two evaluations. A push replaces the whole table, so it is not requested more often."""

PUSH_TAG = "lake/push"
"""Of a run: its group, and the state of the sources that it was requested for."""

FAILED = [DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


def serving_sensor(assets: Mapping[PushGroup, dg.AssetsDefinition], clock: Clock) -> dg.SensorDefinition:
    """Return the sensor that requests a push when the sources of a group have a state that was not pushed yet.

    Each state is pushed once, and not before the frequency of the group's tables allows it; after a revert, nothing is
    pushed until a source changes. Failed pushes are requested again after the same delays, and as often, as failed
    sessions (`incremental.sensors.RETRY_AFTER_SECONDS`). An error of one group does not affect the others.

    Args:
        assets: Group → the asset that pushes it.
        clock: UTC.
    """

    def evaluate(
        context: dg.SensorEvaluationContext, lake_assets: LakeResource
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        reasons = []
        for group, asset in assets.items():
            decision = _decide(context, lake_assets, group, asset, clock)
            if isinstance(decision, dg.RunRequest):
                yield decision
            else:
                reasons.append(f"{group.name}: {decision}")
        if len(reasons) == len(assets):
            yield dg.SkipReason(" ".join(reasons))

    return dg.SensorDefinition(
        name="serving_sensor",
        evaluation_fn=evaluate,
        asset_selection=list(assets.values()),
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a push of served tables after their sources have changed.",
    )


def _decide(
    context: dg.SensorEvaluationContext,
    lake: LakeResource,
    group: PushGroup,
    asset: dg.AssetsDefinition,
    clock: Clock,
) -> dg.RunRequest | str:
    """Return the next push of a group, or the reason why there is none."""
    try:
        head = group.head(lake.catalog())
    except Exception as error:  # any error of a catalog or a table's reader affects only this group
        context.log.exception(f"The sources of {group.name} cannot be read.")
        return f"its sources cannot be read: {error}"
    if head is None:
        return "a source has no rows to push yet."
    return _decide_for_head(context, group, asset, head, clock)


def _pushed_at(instance: dg.DagsterInstance, key: dg.AssetKey) -> float:
    event = instance.get_latest_materialization_event(key)
    return event.timestamp if event else 0


def _decide_for_head(
    context: dg.SensorEvaluationContext, group: PushGroup, asset: dg.AssetsDefinition, head: str, clock: Clock
) -> dg.RunRequest | str:
    """Decide by the earlier runs for the same state of the sources, which their tags contain."""
    state = f"{group.name}:{head}"
    succeeded = ended_attempts(context.instance, state, tag=PUSH_TAG, statuses=[DagsterRunStatus.SUCCESS])
    if succeeded:
        return "the current state of its sources was pushed."
    failed = ended_attempts(context.instance, state, tag=PUSH_TAG, statuses=FAILED)
    rest = rest_seconds(failed, "", clock().timestamp())
    since = clock().timestamp() - max(_pushed_at(context.instance, key) for key in asset.keys)
    if not failed and since < group.seconds:
        return f"it is pushed every {group.seconds} s at most; the next push is in {group.seconds - since:.0f} s."
    failures = f"{len(failed)} pushes of {head} failed"
    if rest is None:
        context.log.error(f"{group.name}: {failures}.")
        return f"{failures}, so it is not requested again. Read the last run, then re-execute it."
    if rest > 0:
        return f"{failures}; next attempt in {rest:.0f} s."
    return dg.RunRequest(
        run_key=f"{state}:{len(failed) + 1}",
        asset_selection=sorted(asset.keys, key=str),
        tags={PUSH_TAG: state},
    )
