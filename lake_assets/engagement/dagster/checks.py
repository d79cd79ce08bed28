"""The Dagster asset checks of a turn, and the metadata that runs show.

No check blocks, because a committed batch is not taken back. The step of a stream evaluates them after its turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.dagster.graph import engagement_key
from lake_assets.engagement.delta_log import Commit
from lake_assets.engagement.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.maintenance import MaintenanceReport
from lake_assets.engagement.metrics import Refresh
from lake_assets.engagement.monitoring import (
    COPY_DAYS,
    Reconciliation,
    Sample,
    StreamStatus,
    commit_of,
    reconcile,
    repeated_ids,
    unmet_requests,
    unnotified_batches,
)
from lake_assets.engagement.notifications import DATA_COMMIT, collapsed, total_counts
from lake_assets.engagement.tables import ENGAGEMENT, LakeTables
from lake_assets.engagement.turn import TurnReport
from lake_assets.errors import CoordinationError
from lake_assets.incremental.operations.health import Problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Metadata = dict[str, Any]

TURN_IN_TIME = "turn_in_time"
NOTIFICATIONS = "notifications_equal_commits"
ROWS = "kafka_records_equal_rows"
REQUESTS = "kafka_records_equal_requests"
UNIQUE_IDS = "unique_engagement_ids"
DEAD_REQUESTS = "no_dead_requests"

DESCRIPTIONS = {
    TURN_IN_TIME: "The stream got its turn within its maximum wait.",
    NOTIFICATIONS: "Each batch that changed rows has exactly one notification.",
    ROWS: "Kafka's messages in the range of the batch equal its rows, repeated messages and dead letters.",
    REQUESTS: "Kafka's messages in the range of the batch equal its requests, repeated requests and dead letters.",
    UNIQUE_IDS: f"No engagement of the batch is in the table more than once within {COPY_DAYS} days.",
    DEAD_REQUESTS: "Every request has met a row within a day.",
}
CHECKS_OF_STREAM: dict[StreamName, tuple[str, ...]] = {
    "ingestion": (TURN_IN_TIME, NOTIFICATIONS, ROWS, UNIQUE_IDS),
    "mutation": (TURN_IN_TIME, NOTIFICATIONS, REQUESTS, DEAD_REQUESTS),
    "retention": (TURN_IN_TIME, NOTIFICATIONS, REQUESTS),
}


def check_specs(key: dg.AssetKey, stream: StreamName) -> list[dg.AssetCheckSpec]:
    """Return the checks of a stream."""
    return [_spec(key, name) for name in CHECKS_OF_STREAM[stream]]


def turn_spec(key: dg.AssetKey) -> dg.AssetCheckSpec:
    """Return the check of all assets that take turns."""
    return _spec(key, TURN_IN_TIME)


def check_results(
    tables: LakeTables, spark: SparkSession, servers: str, stream: StreamName, batch: Batch | None
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results after a turn.

    Args:
        servers: Kafka's `host:port`, comma-separated.
        batch: None if no batch was due.
    """
    yield turn_in_time()
    yield _notifications(tables)
    yield _reconciliation(tables, spark, servers, stream, batch)
    if stream == "ingestion":
        yield _unique_ids(tables, spark, batch)
    if stream == "mutation":
        yield _unmet_requests(tables)


def turn_in_time() -> dg.AssetCheckResult:
    """Return the result of a turn that was taken."""
    return _result(TURN_IN_TIME, passed=True)


def late_turn(error: CoordinationError) -> dg.AssetCheckResult:
    """Return the result of a turn that was not taken. The error names the waiting stream and its predecessor."""
    return _result(TURN_IN_TIME, passed=False, metadata={"reason": error.problem})


def refused_turns(instance: dg.DagsterInstance, lakes: Iterable[EngagementLake]) -> Iterator[Problem]:
    """Yield the streams whose newest run was refused its turn, or did not get the lock, until its wait was over."""
    for lake in lakes:
        for name in STREAMS:
            key = dg.AssetCheckKey(engagement_key(lake, name), TURN_IN_TIME)
            record = instance.get_latest_asset_check_evaluation_record(key)
            event = record.event.dagster_event if record and record.event else None
            if record is None or event is None or event.asset_check_evaluation_data.passed:
                continue
            reason = event.asset_check_evaluation_data.metadata.get("reason")
            yield Problem(
                lake.app_name(name),
                "turn_refused",
                f"{lake.app_name(name)} had no turn. {reason.value if reason else ''}".strip(),
                f"Look at who has the turn: `lake engagement status {lake.name}`.",
                run_id=record.run_id,
            )


def _spec(key: dg.AssetKey, name: str) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(name, asset=key, description=DESCRIPTIONS[name])


def _notifications(tables: LakeTables) -> dg.AssetCheckResult:
    wrong = unnotified_batches(tables)
    return _result(NOTIFICATIONS, passed=not wrong, metadata={"batches": ", ".join(wrong) or "none"})


def _reconciliation(
    tables: LakeTables, spark: SparkSession, servers: str, stream: StreamName, batch: Batch | None
) -> dg.AssetCheckResult:
    found = Reconciliation(records=0, outcomes={})
    if batch is not None:
        found = reconcile(tables, spark, servers, stream, batch)
    name = ROWS if stream == "ingestion" else REQUESTS
    return _result(name, passed=found.balanced, metadata={"records": found.records, **found.outcomes})


def _unique_ids(tables: LakeTables, spark: SparkSession, batch: Batch | None) -> dg.AssetCheckResult:
    commit = commit_of(tables, "ingestion", ENGAGEMENT, DATA_COMMIT, batch) if batch else None
    repeated = repeated_ids(spark, tables, commit.version) if commit else Sample(0, ())
    return _result(UNIQUE_IDS, passed=not repeated.count, metadata=_sample_metadata(repeated))


def _unmet_requests(tables: LakeTables) -> dg.AssetCheckResult:
    unmet = unmet_requests(tables, datetime.now(UTC))
    return _result(
        DEAD_REQUESTS,
        passed=not unmet.count,
        metadata=_sample_metadata(unmet),
        severity=dg.AssetCheckSeverity.WARN,
    )


def _sample_metadata(sample: Sample) -> Metadata:
    return {"count": sample.count, "examples": ", ".join(sample.ids) or "none"}


def _result(
    name: str,
    *,
    passed: bool,
    metadata: Metadata | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=name,
        passed=passed,
        severity=severity,
        description=DESCRIPTIONS[name],
        metadata=metadata,
    )


def turn_metadata(report: TurnReport, status: StreamStatus, commits: Mapping[str, Commit | None]) -> Metadata:
    """Return the metadata of a turn. Offsets are by Kafka partition, ends exclusive; lag is a number of offsets.

    Args:
        commits: Name of each commit of the batch, earlier turns included → what it committed.
    """
    metadata: Metadata = {
        "predecessor": report.predecessor or "none",
        "lock wait (seconds)": round(report.waited, 3),
        "lag": status.lag,
        "batch": "none was due",
        **{f"seconds: {step}": took for step, took in report.seconds.items()},
    }
    if report.effect is not None:
        metadata["dead letters"] = report.effect.dead_letters
        if report.effect.requests:
            metadata["collapsed"] = collapsed(report.effect)
    if report.batch is None:
        return metadata
    outcome = {"resumed": report.batch.resumed, "dropped": report.batch.dropped, "repeated": report.batch.repeated}
    versions = {name: commit.version if commit else None for name, commit in commits.items()}
    return {**metadata, **outcome, **batch_metadata(report.batch.batch, versions, commits.get(DATA_COMMIT))}


def batch_metadata(batch: Batch, versions: Mapping[str, int | None], data_commit: Commit | None) -> Metadata:
    """Return the metadata of a batch. versions: name of each of its commits → the version that it made."""
    metadata: Metadata = {
        "batch": batch.batch_id,
        "start offsets": json.dumps(dict(batch.messages.start)),
        "end offsets": json.dumps(dict(batch.messages.end)),
        "commit versions": json.dumps(dict(versions)),
    }
    if data_commit is not None:
        rows = total_counts(data_commit)
        metadata |= {
            "commit version": data_commit.version,
            "rows inserted": rows.inserted,
            "rows updated": rows.updated,
            "rows deleted": rows.deleted,
        }
    return metadata


def maintenance_metadata(report: MaintenanceReport) -> Metadata:
    """Return the metadata of a maintenance. Files and bytes are those of the present versions of all tables."""
    return {
        "files": report.after.files,
        "files before": report.before.files,
        "bytes": report.after.bytes,
        "bytes before": report.before.bytes,
        "files removed": sum(report.removed.values()),
        "files removed by table": json.dumps(dict(report.removed)),
        "orgs compacted": report.orgs,
        "orgs sorted": report.sorted_orgs,
        "hours kept": report.kept_hours,
    }


def refresh_metadata(refresh: Refresh) -> Metadata:
    """Return the metadata of a refresh. `commit version` is of the metrics, the others of the engagement table."""
    return {
        "since version": refresh.since,
        "as of version": refresh.cursor,
        "orgs": "all" if refresh.orgs is None else len(refresh.orgs),
        "metric partitions": "all" if refresh.partitions is None else refresh.partitions,
        "commit version": refresh.commit.version if refresh.commit else "none",
    }
