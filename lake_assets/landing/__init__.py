"""Landing: messages of Kafka, through two independent zones of checked files, into raw tables.

Folders, each of which may import those before it: files, manifest, consume, then operations, loading and erasure, then
dagster. `landing_service` runs all of them.
"""
