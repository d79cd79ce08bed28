"""All measurements, one after the other."""

from benchmarks import (
    accounts,
    baselines,
    coordination,
    identity,
    ingestion,
    landing_files,
    landing_zones,
    latency,
    planning,
    traffic,
)

PARTS = (
    planning,
    landing_files,
    landing_zones,
    coordination,
    identity,
    traffic,
    ingestion,
    latency,
    accounts,
    baselines,
)

for part in PARTS:
    print(f"== {part.__name__}", flush=True)
    part.main()
