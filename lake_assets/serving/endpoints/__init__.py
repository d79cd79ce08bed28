"""Readers of served tables: routing, queries and HTTP; and the client of an Apache Pinot cluster.

May import `serving.store` and `serving.lineage`.
"""
