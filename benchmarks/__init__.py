"""Measurements that print figures: `make bench` runs all of them, `python -m benchmarks.<name>` runs one."""
