"""Engagement lakes: Delta tables that ingestion, mutation and retention change in turns.

Folders, each of which may import those before it: requests, model, notifications, erasure, streams, then maintenance,
metrics and monitoring, then dagster.
"""
