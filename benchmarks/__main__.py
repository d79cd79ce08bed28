"""All measurements, one after the other."""

from benchmarks import coordination, latency, lookback, planning

for part in (planning, coordination, latency, lookback):
    print(f"== {part.__name__}", flush=True)
    part.main()
