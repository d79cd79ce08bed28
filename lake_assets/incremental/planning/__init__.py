"""Deciding which hours a session rebuilds, and why. Pure, but for `changes` and `landed`, which read metadata.

May import `incremental.declaration` and `incremental.metadata`.
"""
