"""Run all measurements, one after the other."""

from benchmarks import (
    accounts,
    baselines,
    coordination,
    engagement_ingestion,
    engagement_mutation,
    engagement_streams,
    growth,
    identity,
    landing_files,
    landing_latency,
    landing_zones,
    latency,
    planning,
    serving,
    traffic,
)

PARTS = (
    planning,
    growth,
    landing_files,
    landing_zones,
    landing_latency,
    coordination,
    identity,
    traffic,
    engagement_ingestion,
    engagement_mutation,
    engagement_streams,
    serving,
    latency,
    accounts,
    baselines,
)

for part in PARTS:
    print(f"== {part.__name__}", flush=True)
    part.main()
