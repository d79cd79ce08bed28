"""What do decisions about targets depend on, and what of it has moved since a target was looked at?

Reads the catalog and the manifests of the log of sessions, and loads no other table. May import
`incremental.declaration` and `incremental.metadata`.
"""
