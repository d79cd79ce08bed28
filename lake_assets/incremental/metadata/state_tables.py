"""The names of the engine's own tables. `incremental.execution.log` defines their columns."""

SESSION = "etl.session"
HIGH_WATERMARK = "etl.high_watermark"
QUARANTINE = "etl.quarantine"
