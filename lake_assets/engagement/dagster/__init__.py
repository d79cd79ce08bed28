"""Engagement lakes in Dagster: assets, checks, sensors.

May import every room of engagement.
"""
