"""The programs that `lake up` starts in place of `dagster api grpc` and `dagster-daemon run`.

Runs are forked, and loops wake up when something changed. Private names of Dagster's stand in `connections/dagster.py`
alone, each with a test. May import `base`, `errors`, `settings` and `connections`.
"""
