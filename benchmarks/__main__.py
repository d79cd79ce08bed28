"""All measurements, one after the other."""

from benchmarks import accounts, baselines, coordination, identity, ingestion, latency, planning

for part in (planning, coordination, identity, ingestion, latency, accounts, baselines):
    print(f"== {part.__name__}", flush=True)
    part.main()
