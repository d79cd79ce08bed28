"""The programs that `lake up` starts in place of `dagster api grpc` and `dagster-daemon run`.

Private names of Dagster's stand in `connections/dagster.py` alone, each with a test. May import `dagster_processes`.
"""
