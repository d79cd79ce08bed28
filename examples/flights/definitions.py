"""The definitions of a separate code location of Dagster: `dagster dev -m examples.flights.definitions`."""

import dagster as dg

from examples.flights import PIPELINE
from lake_assets import incremental_definitions, lake_resources, utc_now

END = "2014-01-07-00:00"
"""The hour after the last one of the replay."""

defs = dg.Definitions.merge(
    incremental_definitions(PIPELINE, clock=utc_now, end=END),
    dg.Definitions(resources=lake_resources(), executor=dg.in_process_executor),
)
