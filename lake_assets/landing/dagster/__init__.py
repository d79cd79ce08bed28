"""Landing in Dagster: assets, checks, sensors, jobs.

May import every room of landing.
"""
