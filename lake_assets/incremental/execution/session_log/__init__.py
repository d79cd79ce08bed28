"""The log of sessions: `etl.session`, `etl.high_watermark` and `etl.quarantine`, how they are read and appended to.

`records` has the values, `schemas` the columns, `session_rows` and `watermark_rows` their encoding, `log_files` the
files of each process, `process_log` the compare-and-set on an Iceberg table, and `store` the operations that the engine
uses. May import `incremental.planning` and the folders before it.
"""

from lake_assets.incremental.execution.session_log.log_files import files_by_process
from lake_assets.incremental.execution.session_log.process_log import KEEP_SNAPSHOTS, MERGE_FILES
from lake_assets.incremental.execution.session_log.records import OPEN, ProcessState, SessionRecord, State
from lake_assets.incremental.execution.session_log.schemas import create_tables
from lake_assets.incremental.execution.session_log.store import SessionStore

__all__ = [
    "KEEP_SNAPSHOTS",
    "MERGE_FILES",
    "OPEN",
    "ProcessState",
    "SessionRecord",
    "SessionStore",
    "State",
    "create_tables",
    "files_by_process",
]
