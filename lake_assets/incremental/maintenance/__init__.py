"""Keeping tables small: compaction, expiry of snapshots, removal of orphans, and what must be kept for them.

May import `incremental.execution` and the folders before it.
"""
