"""Serving: snapshots of tables, stored as segments, that are pushed and reverted in one switch.

`lineage` decides, `registry` keeps what it decided in ZooKeeper, `store` the files, `push` replaces, `query` reads,
`http` answers both, `pinot` asks a controller elsewhere, `sources` names what is served, `upkeep` repairs and erases.
Each may import those before it. `served_tables` connects them for a data directory, and `dagster` runs them.
"""
