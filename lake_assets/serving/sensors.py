"""When tables are pushed: once for each state of their source that has rows to serve. From metadata alone."""

from collections.abc import Iterator, Mapping

import dagster as dg

from lake_assets.serving.groups import PushGroup

TICK_SECONDS = 60
"""A push replaces the whole table; so it follows its source at this pace, at most."""


def serving_sensor(assets: Mapping[PushGroup, dg.AssetsDefinition]) -> dg.SensorDefinition:
    """Requests a push when a source of a group has another snapshot than was pushed, or tried, last.

    A snapshot is pushed once: one that was taken back stays so until its source changes.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        catalog = context.resources.iceberg.catalog()
        heads = {group: group.head(catalog) for group in assets}
        for group, head in heads.items():
            if head is not None:
                selection = sorted(assets[group].keys, key=str)
                yield dg.RunRequest(run_key=f"{group.name}:{head}", asset_selection=selection)
        if not any(heads.values()):
            yield dg.SkipReason("No source has anything to push yet, or its group waits for another.")

    return dg.SensorDefinition(
        name="serving_sensor",
        evaluation_fn=evaluate,
        asset_selection=list(assets.values()),
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Pushes what is served after its table was published.",
        required_resource_keys={"iceberg"},
    )
