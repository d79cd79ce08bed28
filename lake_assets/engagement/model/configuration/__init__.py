"""The configuration of lakes in YAML files: those of the package, and those of users. The same code reads both.

May import `engagement.model.lake`. Nothing here starts Spark or opens a connection.
"""
