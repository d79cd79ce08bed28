"""Tables that are declared in YAML and SQL: the same `Target` and `RawTable` values that Python declarations make.

Reading and deciding need no Spark. `analysis` and `query` use Spark; Dagster's components are in `components`.

May import `declaration`, `engine`, `connections`, `base`, `settings` and `errors`.
"""
