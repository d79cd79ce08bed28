"""The backup of a data directory and its restore: `lake backup` and `lake restore`.

May import what `services` may import, and `services.lifecycle`.
"""
