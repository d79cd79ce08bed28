"""Deciding which hours a session rebuilds, and why.

`changes` and `landed` read the metadata of tables; everything else is pure.

May import `incremental.declaration` and `incremental.metadata`.
"""
