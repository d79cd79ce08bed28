"""`lake`, the command line: one module for each group of commands, and `main`, which assembles them.

A command reads its arguments, calls a stage or an engine, and renders the result. May import everything except
`definitions` and `resources`. A command imports its own module alone; imports that take long (pyspark, pyiceberg,
Dagster) are inside the commands, so `lake --help`, which imports all modules, is instant.
"""
