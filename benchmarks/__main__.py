"""All measurements, one after the other."""

from benchmarks import accounts, baselines, coordination, identity, ingestion, landing_files, latency, planning, traffic

for part in (planning, landing_files, coordination, identity, traffic, ingestion, latency, accounts, baselines):
    print(f"== {part.__name__}", flush=True)
    part.main()
