"""The incremental engine: facts and dimensions from Iceberg metadata. What changed is rebuilt, audited and published.

Folders, each of which may import those before it: declaration, metadata, planning, audit_reads, user_code, staging,
execution, then maintenance, monitoring, erasure and diagnosis, then dagster. The engine imports no stage and no other
engine.
"""
