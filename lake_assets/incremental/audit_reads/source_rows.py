"""The rows of a source, read on Spark by plain queries of the audits' own.

Conditions are SQL text. The names in them are checked identifiers of a declaration, the values are numbers and times.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from lake_assets.base.hours import hour_start
from lake_assets.incremental.declaration import LANDED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from lake_assets.incremental.declaration import Source
    from lake_assets.incremental.planning.session import SourceRange

CATALOG = "lake"


def rows_at(spark: SparkSession, table: str, snapshot_id: int | None) -> DataFrame:
    """Return the rows of a table as of a snapshot; no rows for None."""
    name = f"{CATALOG}.{table}"
    if snapshot_id is None:
        return spark.read.table(name).where("false")
    return spark.read.option("versionAsOf", str(snapshot_id)).table(name)


def rows_appended(spark: SparkSession, span: SourceRange) -> DataFrame:
    """Return the rows that a range of snapshots appended. The range has no other change than appends."""
    after = span.from_snapshot_id
    if after is None:
        return rows_at(spark, span.source, span.to_snapshot_id)
    if after == span.to_snapshot_id:
        return rows_at(spark, span.source, None)
    options = {"start-snapshot-id": str(after), "end-snapshot-id": str(span.to_snapshot_id)}
    return spark.read.format("iceberg").options(**options).load(f"{CATALOG}.{span.source}")


def in_hours(time_column: str, hours: Collection[int]) -> str:
    """Return the condition that a time lies in some hours; null or false without a time.

    Their range is a condition of its own, because Iceberg leaves out files by it.
    """
    if not hours:
        return "false"
    first, last = _moment(min(hours)), _moment(max(hours) + 1)
    numbers = ", ".join(str(hour) for hour in sorted(set(hours)))
    in_range = f"`{time_column}` >= {first} and `{time_column}` < {last}"
    return f"{in_range} and {hour_of(time_column)} in ({numbers})"


def is_valid(source: Source, columns: Sequence[str], *, start: int) -> str:
    """Return the condition on rows of a source that do not belong in quarantine.

    Args:
        columns: The columns of the source.
        start: First hour of the pipeline.
    """
    if source.trusted:
        return "true"
    time = f"`{source.time_column}`"
    has_landed = LANDED in columns
    needed = [f"`{column}` is not null" for column in source.named_columns]
    tests = [*needed, f"{time} >= {_moment(start)}"]
    if has_landed:
        tests.append(f"{time} <= {LANDED} + interval 1 hour")
    for rule in source.rules:
        tests.append(f"not coalesce(({rule.where}), false)")
    stands = " and ".join(tests)
    if source.deleted is None:
        return stands
    if source.takes_unordered_deletions(has_landed=has_landed):
        needed = [f"`{source.key}` is not null"]
    deletes = " and ".join([*needed, f"{LANDED} is not null" if has_landed else "true"])
    return f"case when {is_deleted(source)} then {deletes} else {stands} end"


def is_deleted(source: Source) -> str:
    """Return the condition on rows of a source that delete their key."""
    return "false" if source.deleted is None else f"coalesce(({source.deleted}), false)"


def newest_versions(rows: DataFrame, source: Source, columns: Sequence[str]) -> DataFrame:
    """Return the last of the rows of each key; if the source keeps all versions, of each key and order.

    Args:
        rows: Valid rows.
        columns: The columns of the source.
    """
    every_column = ", ".join(f"`{column}`" for column in columns)
    places = [f"`{column}`" for column in (LANDED, "batch_id") if column in columns]
    order = [*(f"`{column}`" for column in source.order_columns), *places]
    if source.takes_unordered_deletions(has_landed=LANDED in columns):
        rows = _after_unordered_deletions(rows, source, f"struct({', '.join(places)})")
    content = f"sha2(to_json(struct({every_column})), 256)"
    newest = f"max_by(struct({every_column}), struct({', '.join([*order, content])})) as newest"
    same_row = source.row_columns
    by_row = rows.selectExpr("*", *[f"`{column}` as _row_{number}" for number, column in enumerate(same_row)])
    grouped = by_row.groupBy(*[f"_row_{number}" for number in range(len(same_row))])
    return grouped.agg(_expression(newest)).selectExpr("newest.*")


def _after_unordered_deletions(rows: DataFrame, source: Source, place: str) -> DataFrame:
    """Return the rows with an order that landed after the last deletion of their key that has none.

    Args:
        place: The expression of when a row landed.
    """
    lacks_order = " or ".join(f"`{column}` is null" for column in source.order_columns)
    deletions = rows.where(f"{is_deleted(source)} and ({lacks_order})")
    last = deletions.groupBy(str(source.key)).agg(_expression(f"max({place}) as _deletion"))
    ordered = rows.where(f"not ({is_deleted(source)} and ({lacks_order}))")
    remaining = ordered.join(last, str(source.key), "left").where(f"_deletion is null or {place} > _deletion")
    return remaining.drop("_deletion")


def hour_of(time_column: str) -> str:
    """Return the expression of a row's event hour (long); null without a time."""
    return f"(unix_timestamp(`{time_column}`) div 3600)"


def rows_of_keys(rows: DataFrame, some: DataFrame, source: Source) -> DataFrame:
    """Return the rows of a source whose key occurs in some of them."""
    keys = some.selectExpr(f"`{source.key}`").distinct()
    return rows.join(keys, str(source.key), "left_semi")


def _expression(text: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(text)


def _moment(hour: int) -> str:
    return f"timestamp '{hour_start(hour):%Y-%m-%d %H:%M:%S}Z'"
