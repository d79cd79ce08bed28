"""A session's report as Dagster materializations: one for each partition, with figures for people as metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import dagster as dg
from pyiceberg.catalog import Catalog

from lake_assets.base.hours import format_hours, hour_key
from lake_assets.incremental.dagster.asset_specs import Metadata, asset_key
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.iceberg import files_by_hours
from lake_assets.incremental.engine.model import Committed, SessionPlan, SessionReport, verdicts_in_words

COMPLETE_THROUGH = "complete through"

UNOBSERVED = "INITIAL"
"""What Dagster takes as the data version of an asset that nobody has observed."""


def rows_of_session(
    catalog: Catalog, target: Target, report: SessionReport, hours: Collection[int]
) -> dict[int, Metadata]:
    """Return the rows of each partition of a target after a session, and of the whole table, as Dagster names them.

    Returns:
        First hour of a partition → its rows; empty if the snapshot has expired.
    """
    table = iceberg.load(catalog, target.table)
    snapshot_id = report.published_snapshot_id or publish.main_id(table)
    snapshot = table.snapshot_by_id(snapshot_id or 0)
    if snapshot is None:
        return {}
    rows: Counter[int] = Counter()
    written: Counter[int] = Counter()
    for partition, entry in files_by_hours(table, snapshot, target.time_column, hours):
        first = target.grain.first(partition[0])  # a local day has several partitions of its table
        rows[first] += entry.data_file.record_count
        if entry.snapshot_id == report.published_snapshot_id:  # else the session found all its hours unchanged
            written[first] += entry.data_file.record_count
    total = publish.summary_of(snapshot).get("total-records")
    shown: dict[int, Metadata] = {}
    for hour in target.grain.firsts(hours):
        shown[hour] = {"dagster/partition_row_count": rows[hour], "rows written": written[hour]}
        if total is not None:
            shown[hour] = {**shown[hour], "dagster/row_count": int(total)}
    return shown


def materializations(
    target: Target,
    report: SessionReport,
    hours: Collection[int],
    rows: Mapping[int, Metadata] | None = None,
    *,
    complete_through: int | None = None,
) -> Iterator[dg.AssetMaterialization]:
    """Yield one materialization for each partition that contains any of the hours.

    Args:
        target: The table that the session built.
        report: What the session did.
        hours: Event hours, in hours since 1970-01-01 UTC.
        rows: What `rows_of_session` returned; None leaves them out.
        complete_through: The target's; None leaves it out.
    """
    metadata = {**report_metadata(report), **completeness(complete_through)}
    tags = version_tags(target, report.plan.code_version, report.data_version)
    reasons = {planned.hour: planned.reason for planned in report.plan.hours}
    for hour in target.grain.firsts(hours):
        reason = reasons.get(hour, "within the range that was rebuilt")
        yield dg.AssetMaterialization(
            asset_key=asset_key(target.table),
            partition=target.grain.key(hour),
            metadata={"why": reason, **(rows or {}).get(hour, {}), **metadata},
            tags=tags,
        )


def completed(
    catalog: Catalog, target: Target, hours: Collection[int], committed: Committed
) -> Iterator[dg.AssetMaterialization]:
    """Yield one materialization for each complete partition that Dagster does not show, although nothing is left of it.

    Its sources have no rows for it, so no session had to build it; or a session did so outside of Dagster, long ago.

    Args:
        catalog: Has the table.
        target: The table.
        hours: The first hour of each of these partitions.
        committed: What the target has committed.
    """
    table = iceberg.load(catalog, target.table)
    snapshot = table.snapshot_by_id(publish.main_id(table) or 0)
    rows: Counter[int] = Counter()
    for partition, entry in files_by_hours(table, snapshot, target.time_column, target.grain.whole(hours)):
        rows[target.grain.first(partition[0])] += entry.data_file.record_count
    for hour in hours:
        yield dg.AssetMaterialization(
            asset_key=asset_key(target.table),
            partition=target.grain.key(hour),
            metadata={
                "why": "built before" if rows[hour] else "complete, without rows",
                "dagster/partition_row_count": rows[hour],
                **completeness(committed.complete_through),
            },
            tags=version_tags(target, committed.code_version or target.code_version),
        )


def completeness(through: int | None) -> Metadata:
    """Return a target's complete-through as metadata; nothing if no hour is complete."""
    return {} if through is None else {COMPLETE_THROUGH: hour_key(through)}


def version_tags(target: Target, code_version: str, data_version: str | None = None) -> dict[str, str]:
    """Return the tags by which Dagster decides whether a partition is up to date: by its code version alone.

    The engine knows which hours a change of a source concerns, and Dagster does not. With an event pointer of `NULL`,
    Dagster never compares the materialization of a source with that of the target; without any, each source would
    count as a new dependency.
    """
    tags = {"dagster/code_version": code_version}
    if data_version is not None:
        tags["dagster/data_version"] = data_version
    for key in map(asset_key, target.source_tables):
        tags[f"dagster/input_data_version/{key.to_user_string()}"] = UNOBSERVED
        tags[f"dagster/input_event_pointer/{key.to_user_string()}"] = "NULL"
    return tags


def report_metadata(report: SessionReport) -> Metadata:
    """Return the metadata that Dagster shows for a session; entries without a value are left out.

    Dagster plots the numbers over time. Snapshot ids are text, because they exceed the integers that a browser can
    represent.
    """
    plan = report.plan
    shown: Metadata = {
        "session": plan.session_id,
        "load": plan.load,
        "hours": format_hours(report.hours_built) or "none",
        "unchanged hours": format_hours(report.hours_unchanged),
        "hours rebuilt": len(report.hours_built),
        "session rows read": report.rows_read,
        "session rows written": report.rows_written,
        "session rows repeated": report.rows_duplicate,
        "session rows quarantined": report.rows_quarantined,
        "session rows late": report.rows_late,
        "lateness p50 (minutes)": _rounded(report.lateness_p50_minutes),
        "lateness p95 (minutes)": _rounded(report.lateness_p95_minutes),
        "lateness max (minutes)": _rounded(report.lateness_max_minutes),
        "sources": _source_table(plan),
        "published snapshot": _as_text(report.published_snapshot_id),
        "staged snapshot": _as_text(report.staged_snapshot_id),
        "seconds": {step: round(seconds, 2) for step, seconds in report.seconds.items()},
        "total seconds": round(sum(report.seconds.values()), 2),
        "pending hours": format_hours(plan.pending),
        "⚠ held hours": verdicts_in_words(report.held),
        "⚠ skipped hours": _skipped_hours(plan),
        "notes": "\n".join(plan.notes),
    }
    return {name: value for name, value in shown.items() if value not in (None, "")}


def _rounded(minutes: float | None) -> float | None:
    return None if minutes is None else round(minutes, 1)


def _skipped_hours(plan: SessionPlan) -> str:
    if not plan.skipped:
        return ""
    return f"{format_hours(plan.skipped)} (beyond the catch-up threshold; launch a backfill to build them)"


def _source_table(plan: SessionPlan) -> dg.TableMetadataValue:
    """Return the snapshots of each source that the session covers: after `from`, up to and including `to`."""
    records = []
    for source in plan.sources:
        covered = {
            "source": source.source,
            "from": _as_text(source.from_snapshot_id) or "the beginning",
            "to": _as_text(source.to_snapshot_id) or "none",
        }
        records.append(dg.TableRecord(covered))
    for late in plan.late_rows:
        what = f"{plan.sources[0].source}, late rows of {format_hours(late.hours)}"
        covered = {"source": what, "from": str(late.from_snapshot_id), "to": str(late.to_snapshot_id)}
        records.append(dg.TableRecord(covered))
    columns = [dg.TableColumn(name) for name in ("source", "from", "to")]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns))


def _as_text(snapshot_id: int | None) -> str | None:
    return None if snapshot_id is None else str(snapshot_id)
