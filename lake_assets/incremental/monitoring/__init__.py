"""What a person should know: freshness, alerts, arrivals and costs, and the proof against one full rebuild.

May import `incremental.execution` and the folders before it.
"""
