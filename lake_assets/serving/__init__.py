"""Serving: snapshots of tables, stored as segments, that are pushed and reverted in one switch.

Folders, each of which may import those before it: lineage, store, endpoints, then erasure,
verification and dagster. `served_tables`
connects all of them for a data directory.
"""
