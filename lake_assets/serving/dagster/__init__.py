"""Serving in Dagster: pushes as assets, their checks, and the sensor that requests them.

May import every folder of serving.
"""
