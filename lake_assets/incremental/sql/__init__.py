"""Tables that are declared in YAML and SQL: the same `Target` and `RawTable` values that Python declarations make.

Reading and deciding need no Spark. `analysis` and `transform` use Spark; Dagster's components are in `components`.

May import `declaration`, `staging`, `metadata`, `connections`, `base`, `settings` and `errors`.
"""
