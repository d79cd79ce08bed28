"""The code location that Dagster loads: the pipelines that the settings name, with their resources.

The assets of landing, engagement lakes and serving are those of raw tables with a feed, of configured lakes, and of
targets that are declared as served. They are left out if their extras are not installed. An import opens nothing.
"""

import logging
from datetime import timedelta
from functools import cache

import dagster as dg

from lake_assets.base.extras import installed
from lake_assets.components import timing_of, watching_definitions
from lake_assets.engagement.lakes import configured_lakes, metrics_locations
from lake_assets.incremental.dagster.asset_specs import with_report_links
from lake_assets.incremental.dagster.assets import incremental_definitions
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.from_settings import open_pipeline
from lake_assets.landing.messages import feeds
from lake_assets.resources import lake_resources
from lake_assets.serving.sources import metrics_sources, pipeline_sources
from lake_assets.settings import Settings, settings


@dg.definitions
@cache
def defs() -> dg.Definitions:
    """Return what the settings of this process declare. A forked run takes what its parent has loaded."""
    return declared(settings())


def declared(chosen: Settings) -> dg.Definitions:
    """Return what settings declare."""
    pipeline = open_pipeline(chosen)
    for broken in pipeline.broken:
        logging.getLogger("lake_assets").error("%s", broken.error)
    found = [
        incremental_definitions(pipeline, clock=utc_now, end=chosen.end, timing=timing_of(chosen)),
        watching_definitions(pipeline, chosen),
        dg.Definitions(resources=lake_resources(chosen), executor=dg.in_process_executor),
    ]
    sources = pipeline_sources(pipeline)
    if installed("landing"):
        from lake_assets.engagement.dagster.assets import engagement_definitions
        from lake_assets.landing.dagster import landing_definitions, with_landed_tables

        topics = feeds(pipeline, prefix=chosen.landing_prefix, max_bytes=chosen.landing_message_bytes)
        found[0] = with_landed_tables(found[0], topics)
        found.append(
            landing_definitions(
                topics,
                clock=utc_now,
                deadline=timedelta(seconds=chosen.landing_deadline_seconds),
                maintenance_cron=chosen.maintenance_cron,
                verify_cron=chosen.verify_cron,
            )
        )
        found.append(  # the streams of a lake read Kafka, too
            engagement_definitions(
                configured_lakes(chosen),
                seconds={
                    "ingestion": chosen.ingestion_seconds,
                    "mutation": chosen.mutation_seconds,
                    "retention": chosen.retention_seconds,
                },
                maintenance_seconds=chosen.engagement_maintenance_seconds,
                retain_hours=chosen.retain_hours,
                max_wait=chosen.turn_seconds,
                clock=utc_now,
            )
        )
        sources += metrics_sources(metrics_locations(chosen))
    if installed("serving"):
        from lake_assets.serving.dagster import serving_definitions

        found.append(serving_definitions(sources, clock=utc_now, groups=chosen.serving_groups))
    return with_report_links(dg.Definitions.merge(*found))
