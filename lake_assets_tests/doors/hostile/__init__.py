"""Hostile tables: made from a seed, changed step by step as other programs do, and compared with a plain replay.

`tables.py` draws what a table is and which rows it gets; `writing.py` does to it what Spark, pyiceberg and pyarrow do;
`oracle.py` says what its target has to be; `world.py` plays several tables side by side with the `lake` command.
"""
