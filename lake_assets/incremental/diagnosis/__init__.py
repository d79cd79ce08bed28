"""The checks of `lake doctor` on catalog, tables and session log, and their repairs. None needs Spark.

`newest_metadata` decides which metadata file a lost table is registered from; the other modules read and repair. May
import `incremental.execution`, `incremental.maintenance` and the folders before them.
"""
