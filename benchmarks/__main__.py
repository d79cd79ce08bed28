"""All measurements, one after the other."""

from benchmarks import (
    accounts,
    baselines,
    coordination,
    identity,
    ingestion,
    landing_zones,
    latency,
    planning,
    traffic,
)

for part in (planning, coordination, identity, traffic, ingestion, landing_zones, latency, accounts, baselines):
    print(f"== {part.__name__}", flush=True)
    part.main()
