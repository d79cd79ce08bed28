"""All measurements, one after the other."""

from benchmarks import baselines, latency, planning

for part in (planning, latency, baselines):
    print(f"== {part.__name__}", flush=True)
    part.main()
