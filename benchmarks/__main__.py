"""All measurements, one after the other."""

from benchmarks import latency, lookback, planning

for part in (planning, latency, lookback):
    print(f"== {part.__name__}", flush=True)
    part.main()
