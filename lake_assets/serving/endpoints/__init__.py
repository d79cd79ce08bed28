"""Reading served tables: routing, queries, HTTP; and pushing to an Apache Pinot cluster.

May import `serving.store` and `serving.lineage`.
"""
