"""Iceberg tables as their metadata describe them: creating, partitions, manifests, publishing. No Spark.

May import `incremental.declaration`, `connections` and `base`.
"""
