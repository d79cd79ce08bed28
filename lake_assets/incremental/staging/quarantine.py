"""Rows of a session that belong in quarantine: not valid, and not quarantined before for the same target."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lake_assets.base.columns import HASH, KEY, column
from lake_assets.base.time_filters import hours_condition, moment
from lake_assets.incremental.declaration import LANDED, Source
from lake_assets.incremental.metadata.state_tables import QUARANTINE
from lake_assets.incremental.planning.session import SessionPlan, SourceRange
from lake_assets.incremental.staging import row_validation
from lake_assets.incremental.staging.reading import CATALOG, is_few
from lake_assets.incremental.staging.target_build import TargetBuild


def classified_rows_in_scope(
    build: TargetBuild,
    source: Source,
    span: SourceRange,
    plan: SessionPlan,
) -> tuple[DataFrame, StructType]:
    """Return the classified rows of the planned hours, and those without an hour that landed with this session.

    Returns:
        The rows, and the columns of the source.
    """
    rows = build.read(source.table, span.to_snapshot_id)
    schema = rows.schema
    in_hours = hours_condition(source.time_column, plan.hour_numbers)
    in_scope = in_hours
    if not source.trusted and span.from_snapshot_id != span.to_snapshot_id:
        without_hour = row_validation.has_no_hour(source, start=build.start)
        landed = _landed_with_session(plan, span, source, schema.names)
        in_scope = in_hours | (without_hour & landed)
        if not source.has_versions:
            rows = rows.where(_may_be_in(source, plan.hour_numbers) | landed)
    if source.has_versions:
        rows = _rows_of_same_keys(build, rows, rows.where(in_scope), source)
    else:
        rows = rows.where(in_scope)
    classified = row_validation.classify(rows, source, schema=schema, start=build.start)
    if source.has_versions:
        classified = classified.where(in_scope)  # only now: a version outside may supersede one of the scope
    return classified, schema


def _may_be_in(source: Source, hours: Sequence[int]) -> Column:
    """Return a wider condition than that a time is in any of the hours. Iceberg leaves out files by it.

    The exact condition of a scope compares columns, which Iceberg cannot evaluate. If this one contained the condition
    on the hours as it is there, Spark would factor it out, and hand Iceberg neither.
    """
    if not hours:
        return F.lit(False)
    time = column(source.time_column)
    return (time >= moment(hours[0] - 1)) & (time < moment(hours[-1] + 2))


def _rows_of_same_keys(build: TargetBuild, rows: DataFrame, in_scope: DataFrame, source: Source) -> DataFrame:
    """Return the rows of all keys that occur in some rows; without a key, those rows themselves."""
    assert source.key is not None
    if is_few(build.max_rows):
        return rows  # to classify them all is cheaper than to read the table twice
    keys = in_scope.select(column(source.key).alias(KEY)).distinct()
    return rows.join(keys, column(source.key).eqNullSafe(F.col(KEY)), "left_semi")


def new_quarantine_rows(
    build: TargetBuild,
    rows: DataFrame,
    source: Source,
    schema: StructType,
) -> DataFrame:
    """Return the classified rows that are not valid, and not quarantined yet for this target.

    The version before stored another hash of a row: such a row is known by it.
    """
    quarantine = build.spark.table(f"{CATALOG}.{QUARANTINE}")
    of_target = quarantine.where(F.col("target") == build.target.table)
    known = of_target.where(F.col("source") == source.table).select(F.col("row_hash").alias(HASH))
    rejected = row_validation.quarantine_rows(rows, source, schema=schema)
    for stored_hash in ("row_hash", row_validation.FORMER_HASH):
        rejected = rejected.join(known, F.col(stored_hash) == F.col(HASH), "left_anti")
    return rejected.drop(row_validation.FORMER_HASH)


def quarantine_rows_of_other_sources(build: TargetBuild, plan: SessionPlan) -> list[DataFrame]:
    """Return the rows for the quarantine of all sources but the driving one, a DataFrame for each."""
    found = []
    for source, span in build.sources(plan)[1:]:
        if not source.trusted:
            rows, schema = classified_rows_in_scope(build, source, span, plan)
            found.append(new_quarantine_rows(build, rows, source, schema))
    return found


def _landed_with_session(plan: SessionPlan, span: SourceRange, source: Source, columns: Sequence[str]) -> Column:
    """Return the condition on rows that landed in the partitions of a session, or later.

    All rows may have, if the plan names no landing partition, or the source was not read before or has none.
    """
    if source.landed_column != LANDED or "landing_date" not in columns or "landing_hour" not in columns:
        return F.lit(True)
    landings = []
    for uri in plan.processing_uris:
        if "landing_hour" in uri:
            hour = int(str(uri["landing_hour"]))
            landings.append((str(uri["landing_date"]), hour))
    if not landings or span.from_snapshot_id is None:
        return F.lit(True)
    first_date, first_hour = min(landings)
    day = F.lit(first_date).cast("date")
    on_later_day = F.col("landing_date") > day
    on_same_day = F.col("landing_date") == day
    in_later_hour = F.col("landing_hour") >= first_hour
    return on_later_day | (on_same_day & in_later_hour)
