"""Serving in Dagster: pushes as assets, checks, sensors.

May import every room of serving.
"""
