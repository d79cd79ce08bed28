"""`lake doctor`: the checks of this machine, and the command, which adds those of catalog, tables and session log.

`declarations` is `lake check`: the declarations, and the columns of queries.

`machine` checks settings, Java, disk and services.
"""
