"""When tables are pushed: once for each published snapshot of their source that has a complete hour. From metadata."""

from collections.abc import Iterator, Mapping

import dagster as dg

from lake_assets.incremental import tables
from lake_assets.serving.sources import Source

TICK_SECONDS = 60
"""A push replaces the whole table; so it follows its source at this pace, at most."""


def serving_sensor(assets: Mapping[Source, dg.AssetsDefinition]) -> dg.SensorDefinition:
    """Requests a push when a source has another snapshot than was pushed, or tried, last.

    A snapshot is pushed once: one that was taken back stays so until its source changes.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        catalog, due = context.resources.iceberg.catalog(), False
        for source, asset in assets.items():
            table = tables.load(catalog, source.table)
            head = table.metadata.current_snapshot_id
            if head is not None and tables.complete_through(table, source.table) is not None:
                due = True
                yield dg.RunRequest(run_key=f"{source.name}:{head}", asset_selection=[asset.key])
        if not due:
            yield dg.SkipReason("No source has a complete hour yet.")

    return dg.SensorDefinition(
        name="serving_sensor",
        evaluation_fn=evaluate,
        asset_selection=list(assets.values()),
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Pushes what is served after its table was published.",
        required_resource_keys={"iceberg"},
    )
