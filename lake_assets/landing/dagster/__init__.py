"""Landing in Dagster: assets, checks, sensors, jobs.

May import every folder of landing.
"""
