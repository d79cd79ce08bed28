"""The rows of a session on Spark: reading, validating, building, auditing, and writing them where nobody reads yet.

May import `incremental.planning` and the rooms before it.
"""
