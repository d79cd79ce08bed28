"""The engine in Dagster: assets, checks, sensors, maintenance.

May import every folder of the engine; with `definitions.py`, `resources.py` and the other `dagster` folders, alone to
import dagster.
"""
