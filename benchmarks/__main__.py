"""All measurements, one after the other."""

from benchmarks import accounts, baselines, coordination, identity, ingestion, latency, planning, serving, traffic

for part in (planning, coordination, identity, serving, traffic, ingestion, latency, accounts, baselines):
    print(f"== {part.__name__}", flush=True)
    part.main()
