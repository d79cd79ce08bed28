"""What runs in Dagster beside sessions: maintenance, freshness, outside changes, comparisons with a rebuild, alerts.

May import `incremental.dagster`, which imports nothing of this folder, and what that may import.
"""
