"""The code location that Dagster loads: the pipelines that the settings name, with their resources.

The assets of landing, engagement lakes and serving are those of raw tables with a feed, of configured lakes, and of
targets that are declared as served. They are left out if their extras are not installed.
"""

import logging
from datetime import timedelta

import dagster as dg

from lake_assets.base.extras import installed
from lake_assets.components.dagster.pipeline_definitions import timing_of, watching_definitions
from lake_assets.engagement.model.lakes import configured_lakes, metrics_locations
from lake_assets.incremental.dagster.asset_specs import with_report_links
from lake_assets.incremental.dagster.assets import incremental_definitions
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.from_settings import open_pipeline
from lake_assets.landing.consume.messages import feeds
from lake_assets.resources import lake_resources
from lake_assets.serving.sources import metrics_sources, pipeline_sources
from lake_assets.settings import settings

_settings = settings()
_pipeline = open_pipeline(_settings)
for _broken in _pipeline.broken:
    logging.getLogger("lake_assets").error("%s", _broken.error)


_feeds = feeds(_pipeline, prefix=_settings.landing_prefix, max_bytes=_settings.landing_message_bytes)


def _landing() -> dg.Definitions:
    from lake_assets.landing.dagster.assets import landing_definitions

    return landing_definitions(
        _feeds,
        clock=utc_now,
        deadline=timedelta(seconds=_settings.landing_deadline_seconds),
        maintenance_cron=_settings.maintenance_cron,
        verify_cron=_settings.verify_cron,
    )


def _tables() -> dg.Definitions:
    tables = incremental_definitions(_pipeline, clock=utc_now, end=_settings.end, timing=timing_of(_settings))
    if not installed("landing"):
        return tables
    from lake_assets.landing.dagster.assets import with_landed_tables

    return with_landed_tables(tables, _feeds)


def _serving() -> dg.Definitions:
    from lake_assets.serving.dagster import serving_definitions

    sources = pipeline_sources(_pipeline)
    if installed("landing"):  # otherwise there are no engagement lakes
        sources += metrics_sources(metrics_locations(_settings))
    return serving_definitions(sources, clock=utc_now, groups=_settings.serving_groups)


def _engagement() -> dg.Definitions:
    from lake_assets.engagement.dagster.assets import engagement_definitions

    return engagement_definitions(
        configured_lakes(_settings),
        seconds={
            "ingestion": _settings.ingestion_seconds,
            "mutation": _settings.mutation_seconds,
            "retention": _settings.retention_seconds,
        },
        maintenance_seconds=_settings.engagement_maintenance_seconds,
        retain_hours=_settings.retain_hours,
        max_wait=_settings.turn_seconds,
        clock=utc_now,
    )


_optional: list[dg.Definitions] = []
if installed("landing"):
    _optional += [_landing(), _engagement()]  # the streams of a lake read Kafka, too
if installed("serving"):
    _optional.append(_serving())

defs = with_report_links(  # the only `Definitions` of the module: Dagster refuses to choose
    dg.Definitions.merge(
        _tables(),
        watching_definitions(_pipeline, _settings),
        *_optional,
        dg.Definitions(resources=lake_resources(_settings), executor=dg.in_process_executor),
    )
)
