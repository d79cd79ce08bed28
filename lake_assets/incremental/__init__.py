"""The incremental engine: facts and dimensions from Iceberg metadata. What changed is rebuilt, audited and published.

Folders, each of which may import those before it: declaration, engine, erasure, operations and sql, then dagster. The
engine imports no stage and no other engine.
"""
