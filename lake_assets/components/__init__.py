"""Components: what Dagster reads from YAML files of a user's project, and the definitions that it makes of them.

`incremental/sql` reads the same files without Dagster. May import the engines, the stages, `resources` and what they
may import.
"""
