"""What Dagster loads: the pipelines that the settings name, with their resources. It only assembles."""

from pkgutil import resolve_name

import dagster as dg

from lake_assets.incremental.asset import incremental_definitions
from lake_assets.incremental.declaration import merge
from lake_assets.incremental.sensors import Rhythm
from lake_assets.resources import lake_resources, utc_now
from lake_assets.settings import settings

_settings = settings()

defs = dg.Definitions.merge(
    incremental_definitions(
        merge(resolve_name(name.strip()) for name in _settings.pipelines.split(",")),
        clock=utc_now,
        end=_settings.end,
        rhythm=Rhythm(tick_seconds=_settings.tick_seconds, settle_seconds=_settings.settle_seconds),
    ),
    dg.Definitions(resources=lake_resources(_settings), executor=dg.in_process_executor),
)
