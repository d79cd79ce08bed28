"""Run all measurements, one after the other."""

from benchmarks import (
    accounts,
    baselines,
    coordination,
    engagement_batches,
    engagement_ingestion,
    engagement_large_batch,
    engagement_mutation,
    engagement_streams,
    growth,
    history,
    identity,
    landing_files,
    landing_latency,
    landing_zones,
    latency,
    planning,
    serving,
    session_cost,
    tables,
    traffic,
)

PARTS = (
    planning,
    growth,
    history,
    landing_files,
    landing_zones,
    landing_latency,
    coordination,
    identity,
    traffic,
    engagement_ingestion,
    engagement_mutation,
    engagement_batches,
    engagement_large_batch,
    engagement_streams,
    serving,
    latency,
    session_cost,
    accounts,
    baselines,
    tables,
)

for part in PARTS:
    print(f"== {part.__name__}", flush=True)
    part.main()
