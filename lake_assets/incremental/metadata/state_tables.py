"""The names of the engine's own tables. What they hold is in `incremental.execution.session_log`."""

SESSION = "etl.session"
HIGH_WATERMARK = "etl.high_watermark"
QUARANTINE = "etl.quarantine"
