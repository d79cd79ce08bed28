"""Engagement lakes in Dagster: assets, checks, sensors.

May import every folder of engagement.
"""
