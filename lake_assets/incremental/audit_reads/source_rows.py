"""The rows of a source, read on Spark by plain queries of the audits' own.

Conditions are SQL text. The names in them are quoted, the values are numbers and times.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from lake_assets.base.columns import NEWEST, SAME, hash_sql, quoted
from lake_assets.base.hours import FIRST_HOUR, LAST_HOUR, hour_sql, moment_sql

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
    time = quoted(time_column)
    numbers = ", ".join(str(hour) for hour in sorted(set(hours)))
    in_range = f"{time} >= {moment_sql(min(hours))} and {time} < {moment_sql(max(hours) + 1)}"
    return f"{in_range} and {hour_sql(time)} in ({numbers})"


def is_valid(source: Source, *, start: int) -> str:
    """Return the condition on rows of a source that do not belong in quarantine.

    Args:
        start: First hour of the pipeline.
    """
    time = quoted(source.time_column)
    end = moment_sql(LAST_HOUR + 1)
    if source.trusted:
        return f"coalesce({time} >= {moment_sql(FIRST_HOUR)} and {time} < {end}, true)"
    landed = None if source.landed_column is None else quoted(source.landed_column)
    needed = [f"{quoted(column)} is not null" for column in (source.key, source.order_by) if column is not None]
    tests = [*needed, f"{time} >= {moment_sql(start)}", f"{time} < {end}"]
    if landed is not None:
        tests.append(f"{landed} is not null and {time} <= least({landed}, {end}) + interval 1 hour")
    for rule in source.rules:
        tests.append(f"not coalesce(({rule.where}), false)")
    stands = " and ".join(tests)
    if source.deleted is None:
        return stands
    deletes = " and ".join([*needed, "true" if landed is None else f"{landed} is not null"])
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
    every_column = ", ".join(map(quoted, columns))
    order = [quoted(name) for name in (str(source.order_by), *source.arrival_columns) if name in columns]
    content = hash_sql(rows.schema)
    newest = f"max_by(struct({every_column}), struct({', '.join([*order, content])})) as {NEWEST}"
    same_row = [source.key, source.order_by] if source.keep == "all" else [source.key]
    same = dict(zip(SAME, map(str, same_row), strict=False))
    by_row = rows.selectExpr("*", *[f"{quoted(column)} as {name}" for name, column in same.items()])
    return by_row.groupBy(*same).agg(_expression(newest)).selectExpr(f"{NEWEST}.*")


def rows_of_keys(rows: DataFrame, some: DataFrame, source: Source) -> DataFrame:
    """Return the rows of a source whose key occurs in some of them."""
    key = quoted(str(source.key))
    keys = some.selectExpr(f"{key} as {SAME[0]}").distinct()
    return rows.join(keys, _expression(f"{key} = {SAME[0]}"), "left_semi")


def _expression(text: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(text)
