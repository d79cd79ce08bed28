"""`lake doctor`: the checks of this machine, and the command, which adds those of catalog, tables and session log.

`machine` checks settings, Java, disk and services.
"""
