"""What must hold after a turn, as Dagster's asset checks: their specifications, and the verdicts as results.

None blocks: a batch that is committed is not taken back. The step of a stream evaluates them after its turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import dagster as dg

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.lake import StreamName
from lake_assets.engagement.model.tables import ENGAGEMENT, LakeTables
from lake_assets.engagement.monitoring.audits import Sample, commit_of, dead_requests, repeated_ids, untold_batches
from lake_assets.engagement.monitoring.reconciliation import Tally, tally
from lake_assets.engagement.notifications.notify import Notification
from lake_assets.errors import CoordinationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Metadata = Mapping[str, int | str]

TURN_IN_TIME = "turn_in_time"
NOTIFICATIONS = "notifications_equal_commits"
ROWS = "kafka_records_equal_rows"
REQUESTS = "kafka_records_equal_requests"
UNIQUE_IDS = "unique_engagement_ids"
DEAD_REQUESTS = "no_dead_requests"

DESCRIPTIONS = {
    TURN_IN_TIME: "The stream had its turn before its longest wait was over.",
    NOTIFICATIONS: "Each batch that changed rows was told of once.",
    ROWS: "Kafka's messages in the range of the batch are its rows and dead letters together.",
    REQUESTS: "Kafka's messages in the range of the batch are its requests, repeated ones and dead letters together.",
    UNIQUE_IDS: "No engagement of the batch is there more than once.",
    DEAD_REQUESTS: "No request met no row, however often it was tried. Send one that is wanted again, under a new id.",
}
OF_STREAM: dict[StreamName, tuple[str, ...]] = {
    "ingestion": (TURN_IN_TIME, NOTIFICATIONS, ROWS, UNIQUE_IDS),
    "mutation": (TURN_IN_TIME, NOTIFICATIONS, REQUESTS, DEAD_REQUESTS),
    "retention": (TURN_IN_TIME, NOTIFICATIONS, REQUESTS),
}


def check_specs(key: dg.AssetKey, stream: StreamName) -> list[dg.AssetCheckSpec]:
    """The checks of a stream."""
    return [_spec(key, name) for name in OF_STREAM[stream]]


def turn_spec(key: dg.AssetKey) -> dg.AssetCheckSpec:
    """The check of whoever takes turns."""
    return _spec(key, TURN_IN_TIME)


def check_results(
    tables: LakeTables, spark: SparkSession, servers: str, stream: StreamName, batch: Batch | None
) -> Iterator[dg.AssetCheckResult]:
    """The verdicts after a turn. batch: None if none was due."""
    yield turn_in_time()
    untold = untold_batches(tables)
    yield _result(NOTIFICATIONS, passed=not untold, metadata={"batches": ", ".join(untold) or "none"})
    counted = tally(tables, spark, servers, stream, batch) if batch else Tally(0, {})
    yield _result(
        ROWS if stream == "ingestion" else REQUESTS,
        passed=counted.balanced,
        metadata={"records": counted.records, **counted.became},
    )
    if stream == "ingestion":
        yield _unique_ids(tables, spark, batch)
    if stream == "mutation":
        dead = dead_requests(spark, tables)
        yield _result(DEAD_REQUESTS, passed=not dead.count, metadata=_told(dead), severity=dg.AssetCheckSeverity.WARN)


def turn_in_time() -> dg.AssetCheckResult:
    """The verdict on a turn that was had."""
    return _result(TURN_IN_TIME, passed=True)


def late_turn(error: CoordinationError) -> dg.AssetCheckResult:
    """The verdict on a turn that was not had: the error names who waits, and for whom."""
    return _result(TURN_IN_TIME, passed=False, metadata={"why": error.problem})


def _spec(key: dg.AssetKey, name: str) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(name, asset=key, description=DESCRIPTIONS[name])


def _unique_ids(tables: LakeTables, spark: SparkSession, batch: Batch | None) -> dg.AssetCheckResult:
    commit = commit_of(tables, "ingestion", ENGAGEMENT, Notification.of, batch) if batch else None
    repeated = repeated_ids(spark, tables, commit.version) if commit else Sample(0, ())
    return _result(UNIQUE_IDS, passed=not repeated.count, metadata=_told(repeated))


def _told(found: Sample) -> Metadata:
    return {"count": found.count, "such as": ", ".join(found.ids) or "none"}


def _result(
    name: str,
    *,
    passed: bool,
    metadata: Metadata | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=name, passed=passed, severity=severity, description=DESCRIPTIONS[name], metadata=metadata
    )
