"""The declared tables as Dagster assets, and reports of sessions as their materializations.

Specifications have keys, partitions, dependencies, schemas and column lineage. A session has one materialization for
each partition, with figures for people as metadata.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import dagster as dg
from pyiceberg.catalog import Catalog

from lake_assets.base.hours import DAY, HOUR, Grain, format_hours, hour_key, hour_of, parse_hour
from lake_assets.connections.addresses import REPORT_PATH
from lake_assets.incremental.declaration import Pipeline, RawTable, Target
from lake_assets.incremental.declaration.pipeline import column_sources
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.iceberg import files_by_hours
from lake_assets.incremental.engine.model import Committed, SessionPlan, SessionReport, verdicts_in_words

Metadata = dict[str, Any]

IO_MANAGER = "lake_assets_io_manager"
"""The key of the I/O manager in every code location that has the tables."""

PARTITIONS_OF_GRAIN: Mapping[str, type[dg.HourlyPartitionsDefinition | dg.DailyPartitionsDefinition]] = {
    HOUR.name: dg.HourlyPartitionsDefinition,
    DAY.name: dg.DailyPartitionsDefinition,
}


def asset_key(table: str) -> dg.AssetKey:
    """Return the asset key of a table: core/signup_fact for `core.signup_fact`.

    In a part with other signs than Dagster takes, `_` stands for them, and a hash of the part follows.
    """
    return dg.AssetKey([_accepted(part) for part in table.split(".")])


def _accepted(part: str) -> str:
    found = _plain(part)
    return found if found == part else f"{found}_{hashlib.sha256(part.encode()).hexdigest()[:8]}"


def _group(table: str) -> str:
    """Return the group of a table: its namespace, with `_` in place of all that no group may have."""
    return _plain(table.rpartition(".")[0])


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", text)  # Dagster takes a hyphen, but for the same as _


def partitions_of(grain: Grain, start: str, end: str | None, now: datetime) -> dg.TimeWindowPartitionsDefinition:
    """Return the hours or days that Dagster shows; days in the time zone of the grain.

    The current hour or day is included, because its rows are published before it is over.

    Args:
        grain: Hours or days.
        start: Key of the first hour.
        end: Key of the hour after the last one. None: the current hour is the last one, and moves with the clock.
        now: The present moment.
    """
    first = grain.first(parse_hour(start, where="The pipeline's start"))
    last_hour = parse_hour(end, where="LAKE_END") - 1 if end else hour_of(now)
    after = grain.last(last_hour) + 1
    # Texts: Dagster takes the clock time of a datetime, whatever its time zone is, as one of the partitions' zone.
    return PARTITIONS_OF_GRAIN[grain.name](
        start_date=grain.key(first),
        end_date=grain.key(after) if end else None,
        timezone=grain.timezone,
        end_offset=max(0, grain.number(after) - grain.number(hour_of(now))),
    )


def raw_spec(raw: RawTable, partitions: dg.TimeWindowPartitionsDefinition) -> dg.AssetSpec:
    """Return a raw table as an external asset, partitioned by landing hour: other programs land its rows."""
    return dg.AssetSpec(
        key=asset_key(raw.table),
        description=raw.description or None,
        group_name=_group(raw.table),
        kinds={"iceberg"},
        partitions_def=partitions,
        metadata=_table_metadata(raw.table, raw.all_columns, raw.all_descriptions),
    ).with_io_manager_key(IO_MANAGER)


def target_spec(pipeline: Pipeline, target: Target, partitions: dg.TimeWindowPartitionsDefinition) -> dg.AssetSpec:
    """Return a target's specification, partitioned by event hour or day."""
    lineage: Metadata = {"dagster/column_lineage": column_lineage(pipeline, target)}
    if target.unknown_lineage:
        lineage["columns_of_unknown_source"] = ", ".join(target.unknown_lineage)
    return dg.AssetSpec(
        key=asset_key(target.table),
        deps=_dependencies(pipeline, target),
        skippable=True,  # a session yields no output
        description=target.description or None,
        group_name=_group(target.table),
        kinds={"iceberg", "spark"},
        owners=list(target.owners),
        code_version=target.code_version,
        partitions_def=partitions,
        freshness_policy=freshness_policy(target),
        metadata=_table_metadata(target.table, target.columns, target.descriptions) | lineage,
    ).with_io_manager_key(IO_MANAGER)


def freshness_policy(target: Target) -> dg.FreshnessPolicy | None:
    """Return how old the newest materialization of a target may be; None without a `max_delay`.

    Each complete partition is materialized, also one without rows. So between two there is at most the time of a
    partition and the delay. The check `freshness` is exact: it compares complete-through, which late rows do not move.
    """
    if target.max_delay is None:
        return None
    hours = target.grain.hours + int(target.grain.is_local)  # a local day may have 25
    return dg.FreshnessPolicy.time_window(fail_window=target.max_delay + timedelta(hours=hours))


def with_report_links(definitions: dg.Definitions) -> dg.Definitions:
    """Return definitions whose assets link to the report, which the web server of `lake up` shows."""
    link = {"lake/report": dg.MetadataValue.url(REPORT_PATH)}
    # The version of Dagster is pinned, so a changed preview is noticed when the pin moves, by the test of definitions.
    with warnings.catch_warnings(action="ignore", category=dg.PreviewWarning):
        return definitions.map_asset_specs(func=lambda spec: spec.merge_attributes(metadata=link))


def column_lineage(pipeline: Pipeline, target: Target) -> dg.TableColumnLineage:
    """Return the source columns of each column of a target; a column that no source has is left out."""
    dependencies = {}
    for column, names in column_sources(pipeline, target).items():
        dependencies[column] = [_column_dependency(name) for name in names]
    return dg.TableColumnLineage(dependencies)


def _column_dependency(name: str) -> dg.TableColumnDep:
    table, _, column = name.rpartition(".")
    return dg.TableColumnDep(asset_key=asset_key(table), column_name=column)


def _dependencies(pipeline: Pipeline, target: Target) -> list[dg.AssetDep]:
    """Return a target's dependencies with their partition mappings: what a backfill of a source asks for downstream.

    Raw tables are partitioned by landing hour and targets by event hour, so any hour of a raw table may affect any hour
    of a target. Of another target, a partition reads the hours that it contains. The engine builds by itself what else
    depends on them, as the later hours of a sequential target.
    """
    grains = {each.table: each.grain for each in pipeline.targets}
    return [
        dg.AssetDep(asset_key(source.table), partition_mapping=_mapping(grains.get(source.table), target.grain))
        for source in target.sources
    ]


def _mapping(source: Grain | None, target: Grain) -> dg.PartitionMapping:
    """Return how partitions of a target depend on those of a source. source: its grain; None for a raw table."""
    if source is None:
        return dg.AllPartitionMapping()
    with warnings.catch_warnings(action="ignore", category=dg.BetaWarning):
        # The first day may begin before the first hour, and the last one ends after the current hour.
        same_time = dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)
    any_start = "2026-01-01"
    windows = [dg.DailyPartitionsDefinition(any_start, timezone=grain.timezone) for grain in (source, target)]
    try:
        same_time.validate_partition_mapping(*windows)
    except dg.DagsterInvalidDefinitionError:
        return dg.AllPartitionMapping()  # Dagster by itself maps windows of time only within one time zone
    return same_time


def _table_metadata(table: str, columns: Mapping[str, str], descriptions: Mapping[str, str]) -> Metadata:
    metadata: Metadata = {"dagster/table_name": f"lake.{table}", "dagster/storage_kind": "iceberg"}
    if columns:  # only the catalog knows those of a table that exists, and definitions load without it
        shown = [dg.TableColumn(name, found, description=descriptions.get(name)) for name, found in columns.items()]
        metadata["dagster/column_schema"] = dg.TableSchema(shown)
    return metadata


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
