"""All measurements, one after the other."""

from benchmarks import accounts, latency, lookback, planning

for part in (planning, latency, accounts, lookback):
    print(f"== {part.__name__}", flush=True)
    part.main()
