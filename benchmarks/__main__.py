"""All measurements, one after the other."""

from benchmarks import (
    accounts,
    baselines,
    coordination,
    engagement_ingestion,
    engagement_streams,
    identity,
    latency,
    planning,
    traffic,
)

for part in (
    planning,
    coordination,
    identity,
    traffic,
    engagement_ingestion,
    engagement_streams,
    latency,
    accounts,
    baselines,
):
    print(f"== {part.__name__}", flush=True)
    part.main()
