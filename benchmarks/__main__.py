"""All measurements, one after the other."""

from benchmarks import coordination, identity, ingestion, latency, lookback, planning

for part in (planning, coordination, identity, ingestion, latency, lookback):
    print(f"== {part.__name__}", flush=True)
    part.main()
