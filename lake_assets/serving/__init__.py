"""STAGE: served tables: whole snapshots as segments, pushed and taken back in one switch.

Rooms, each of which may import those before it: lineage, store, endpoints, then erasure and dagster. `served_tables`
opens all of them for a home.
"""
