"""The engine in Dagster: assets, checks, sensors, maintenance.

May import every room of the engine; with `definitions.py`, `resources.py` and the other `dagster` folders, alone to
import dagster.
"""
