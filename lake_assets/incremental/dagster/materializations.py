"""A session's report as Dagster materializations: one for each partition, with figures for people as metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import dagster as dg

from lake_assets.base.hours import format_hours
from lake_assets.incremental.dagster.asset_specs import Metadata, asset_key
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.planning.session import SessionPlan, SessionReport
from lake_assets.incremental.planning.verdicts import in_words


def materializations(
    target: Target, report: SessionReport, hours: Collection[int]
) -> Iterator[dg.AssetMaterialization]:
    """Yield one materialization for each partition that contains any of the hours.

    Args:
        target: The table that the session built.
        report: What the session did.
        hours: Event hours, in hours since 1970-01-01 UTC.
    """
    metadata = report_metadata(report)
    tags = _version_tags(target, report)
    reasons = {planned.hour: planned.reason for planned in report.plan.hours}
    for hour in target.grain.firsts(hours):
        reason = reasons.get(hour, "within the range that was rebuilt")
        yield dg.AssetMaterialization(
            asset_key=asset_key(target.table),
            partition=target.grain.key(hour),
            metadata={"why": reason, **metadata},
            tags=tags,
        )


def report_metadata(report: SessionReport) -> Metadata:
    """Return the metadata that Dagster shows for a session; entries without a value are left out.

    Snapshot ids are text, because they exceed the integers that a browser can represent.
    """
    plan = report.plan
    shown: Metadata = {
        "session": plan.session_id,
        "load": plan.load,
        "hours": format_hours(report.hours_built) or "none",
        "unchanged hours": format_hours(report.hours_unchanged),
        "hours rebuilt": len(report.hours_built),
        "rows read": report.rows_read,
        "rows written": report.rows_written,
        "rows repeated": report.rows_duplicate,
        "rows quarantined": report.rows_quarantined,
        "rows late": report.rows_late,
        "lateness p50 (minutes)": report.lateness_p50_minutes,
        "lateness p95 (minutes)": report.lateness_p95_minutes,
        "lateness max (minutes)": report.lateness_max_minutes,
        "sources": _source_table(plan),
        "published snapshot": _as_text(report.published_snapshot_id),
        "staged snapshot": _as_text(report.staged_snapshot_id),
        "seconds": dict(report.seconds),
        "total seconds": round(sum(report.seconds.values()), 3),
        "pending hours": format_hours(plan.pending),
        "⚠ held hours": in_words(report.held),
        "⚠ skipped hours": _skipped_hours(plan),
        "notes": "\n".join(plan.notes),
    }
    return {name: value for name, value in shown.items() if value not in (None, "")}


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
    columns = [dg.TableColumn(name) for name in ("source", "from", "to")]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns))


def _as_text(snapshot_id: int | None) -> str | None:
    return None if snapshot_id is None else str(snapshot_id)


def _version_tags(target: Target, report: SessionReport) -> dict[str, str]:
    tags = {"dagster/code_version": target.code_version}
    if report.data_version is not None:
        tags["dagster/data_version"] = report.data_version
    return tags
