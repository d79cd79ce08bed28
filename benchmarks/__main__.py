"""All measurements, one after the other."""

from benchmarks import accounts, coordination, identity, ingestion, latency, lookback, planning

for part in (planning, coordination, identity, ingestion, latency, accounts, lookback):
    print(f"== {part.__name__}", flush=True)
    part.main()
