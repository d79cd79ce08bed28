"""What a user sees: the tests here touch the project only from outside, so that the code behind can be rewritten.

They use the `lake` command (`lake_door.py`), the public names of `lake_assets`, the tables themselves (pyiceberg,
delta-rs, DuckDB), Dagster's own API, and the named points of `LAKE_FAILPOINT`. They import nothing else of the package.
"""
