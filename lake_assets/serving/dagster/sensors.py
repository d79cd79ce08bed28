"""When tables are pushed: once for each state of their source that has rows to serve. From metadata alone."""

from collections.abc import Iterator, Mapping

import dagster as dg
from dagster import DagsterRunStatus

from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.dagster.session_runs import ended_attempts, rest_seconds
from lake_assets.serving.store.groups import PushGroup

TICK_SECONDS = 60
"""A push replaces the whole table; so it follows its source at this pace, at most."""

PUSH_TAG = "lake/push"
"""Of a run: its group, and the state of the sources that it was requested for."""

FAILED = [DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


def serving_sensor(assets: Mapping[PushGroup, dg.AssetsDefinition], clock: Clock) -> dg.SensorDefinition:
    """Requests a push when a source of a group has another state than was pushed last; one that failed, again.

    A state is pushed once: one that was taken back stays so until its source changes. Failed pushes rest as sessions
    do (`incremental.sensors.RETRY_AFTER_SECONDS`), and end as they do. A group that cannot be asked stops no other.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        answers = {group.name: _answer(context, group, asset, clock) for group, asset in assets.items()}
        requests = [answer for answer in answers.values() if isinstance(answer, dg.RunRequest)]
        yield from requests
        if not requests:
            yield dg.SkipReason(" ".join(f"{name}: {answer}" for name, answer in answers.items()))

    return dg.SensorDefinition(
        name="serving_sensor",
        evaluation_fn=evaluate,
        asset_selection=list(assets.values()),
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Pushes what is served after its table was published.",
        required_resource_keys={"iceberg"},
    )


def _answer(
    context: dg.SensorEvaluationContext, group: PushGroup, asset: dg.AssetsDefinition, clock: Clock
) -> dg.RunRequest | str:
    """The next push of a group, or why there is none."""
    try:
        head = group.head(context.resources.iceberg.catalog())
    except Exception as error:  # whatever a catalog or a table's reader raises is this group's alone
        context.log.exception(f"The sources of {group.name} cannot be asked.")
        return f"its sources cannot be asked: {error}"
    return "a source has nothing to push yet." if head is None else _of_state(context, group, asset, head, clock)


def _of_state(
    context: dg.SensorEvaluationContext, group: PushGroup, asset: dg.AssetsDefinition, head: str, clock: Clock
) -> dg.RunRequest | str:
    """The next push of this state, told by how the runs that had it in their tag have ended."""
    state = f"{group.name}:{head}"
    if ended_attempts(context.instance, state, tag=PUSH_TAG, statuses=[DagsterRunStatus.SUCCESS]):
        return "what it has was pushed."
    failed = ended_attempts(context.instance, state, tag=PUSH_TAG, statuses=FAILED)
    rest, tried = rest_seconds(failed, "", clock().timestamp()), f"{len(failed)} pushes of {head} failed"
    if rest is None:
        context.log.error(f"{group.name}: {tried}.")
        return f"{tried}: no more attempts. Read the last run; then re-execute it."
    if rest > 0:
        return f"{tried}; next attempt in {rest:.0f} s."
    keys = sorted(asset.keys, key=str)
    return dg.RunRequest(run_key=f"{state}:{len(failed) + 1}", asset_selection=keys, tags={PUSH_TAG: state})
