"""Dagster's code server and daemon as `lake up` starts them: runs are forked, and loops wake up when something changed.

May import `base`, `errors`, `settings` and `connections`. What imports Dagster is in `dagster/`.
"""
