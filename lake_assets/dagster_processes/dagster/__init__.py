"""The programs that `lake up` starts in place of `dagster api grpc` and `dagster-daemon run`.

Private names of Dagster's stand in `private_names.py` alone, each with a test. May import `dagster_processes`.
"""
