"""All measurements, one after the other."""

from benchmarks import accounts, coordination, latency, lookback, planning

for part in (planning, coordination, latency, accounts, lookback):
    print(f"== {part.__name__}", flush=True)
    part.main()
