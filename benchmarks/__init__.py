"""Measurements that print figures: `make bench` runs them all, `python -m benchmarks.<name>` one. Never timed tests."""
