"""The declared tables as Dagster asset specifications: keys, partitions, dependencies, schemas and column lineage."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from lake_assets.base.grain import DAY, HOUR, Grain
from lake_assets.base.hours import hour_of, parse_hour
from lake_assets.connections.addresses import REPORT_PATH
from lake_assets.incremental.declaration import Pipeline, RawTable, Target
from lake_assets.incremental.declaration.pipeline import column_sources

Metadata = dict[str, Any]

IO_MANAGER = "lake_assets_io_manager"
"""The key of the I/O manager in every code location that has the tables."""

PARTITIONS_OF_GRAIN: Mapping[str, type[dg.HourlyPartitionsDefinition | dg.DailyPartitionsDefinition]] = {
    HOUR.name: dg.HourlyPartitionsDefinition,
    DAY.name: dg.DailyPartitionsDefinition,
}


def asset_key(table: str) -> dg.AssetKey:
    """Return the asset key of a table: core/signup_fact for `core.signup_fact`."""
    return dg.AssetKey(table.split("."))


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
        group_name=raw.table.split(".")[0],
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
        group_name=target.table.split(".")[0],
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
