"""Landing as local services.

May import `services` and what that may import, and `incremental` to know which tables the pipeline lands.
"""
