"""Iceberg tables through their metadata: creating tables, partitions, manifests, publishing. No Spark.

May import `incremental.declaration`, `connections` and `base`.
"""
