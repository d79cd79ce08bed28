"""The metadata that runs of the engagement assets show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lake_assets.engagement.maintenance.maintain import MaintenanceReport
from lake_assets.engagement.metrics.refresh import Refresh
from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.delta_log import Commit
from lake_assets.engagement.monitoring.status import StreamStatus
from lake_assets.engagement.notifications.change_reader import collapsed
from lake_assets.engagement.notifications.notify import DATA_COMMIT, total_counts
from lake_assets.engagement.streams.turn import TurnReport

Metadata = dict[str, Any]


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
