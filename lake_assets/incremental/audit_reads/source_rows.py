"""The rows of a source, read on Spark by plain queries of the audits' own.

The engine's conditions are SQL text. The names in them are quoted, the values are numbers and times. The conditions
that a user has written are expressions of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from lake_assets.base.columns import KEY, LANDED, NEWEST, SAME, hash_sql, quoted
from lake_assets.base.hours import FIRST_HOUR, LAST_HOUR, hour_sql, moment_sql
from lake_assets.base.sql_text import any_is_true
from lake_assets.incremental.metadata.present_columns import with_present_columns

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame, SparkSession

    from lake_assets.incremental.declaration import Source
    from lake_assets.incremental.planning.session import SourceRange

CATALOG = "lake"


def rows_at(spark: SparkSession, table: Table, snapshot_id: int | None) -> DataFrame:
    """Return the rows of a table as of a snapshot, with the columns that the table has now; no rows for None."""
    name = ".".join((CATALOG, *table.name()))
    if snapshot_id is None:
        return spark.read.table(name).where("false")
    rows = spark.read.option("versionAsOf", str(snapshot_id)).table(name)
    return with_present_columns(rows, table, snapshot_id)


def rows_appended(spark: SparkSession, table: Table, span: SourceRange) -> DataFrame:
    """Return the rows that a range of snapshots appended. The range has no other change than appends."""
    after = span.from_snapshot_id
    if after is None:
        return rows_at(spark, table, span.to_snapshot_id)
    if after == span.to_snapshot_id:
        return rows_at(spark, table, None)
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


def is_valid(source: Source, *, start: int) -> Column:
    """Return the condition on rows of a source that do not belong in quarantine.

    Args:
        start: First hour of the pipeline.
    """
    from pyspark.sql import functions as F

    time = quoted(source.time_column)
    end = moment_sql(LAST_HOUR + 1)
    if source.trusted:
        return F.expr(f"coalesce({time} >= {moment_sql(FIRST_HOUR)} and {time} < {end}, true)")
    landed = None if source.landed_column is None else quoted(source.landed_column)
    needed = [f"{quoted(column)} is not null" for column in source.named_columns]
    tests = [*needed, f"{time} >= {moment_sql(start)}", f"{time} < {end}"]
    if landed is not None:
        tests.append(f"{landed} is not null and {time} <= least({landed}, {end}) + interval 1 hour")
    stands = F.expr(" and ".join(tests)) & ~any_is_true([rule.where for rule in source.rules])
    if source.deleted is None:
        return stands
    if source.takes_unordered_deletions:
        needed = [f"{quoted(str(source.key))} is not null"]
    deletes = " and ".join([*needed, "true" if landed is None else f"{landed} is not null"])
    return F.when(is_deleted(source), F.expr(deletes)).otherwise(stands)


def is_deleted(source: Source) -> Column:
    """Return the condition on rows of a source that delete their key."""
    return any_is_true([] if source.deleted is None else [source.deleted])


def newest_versions(rows: DataFrame, source: Source, columns: Sequence[str]) -> DataFrame:
    """Return the last of the rows of each key; if the source keeps all versions, of each key and order.

    Args:
        rows: Valid rows.
        columns: The columns of the source.
    """
    every_column = ", ".join(map(quoted, columns))
    places = [quoted(name) for name in source.arrival_columns if name in columns]
    order = [*map(quoted, source.order_columns), *places]
    if source.takes_unordered_deletions:
        rows = _after_unordered_deletions(rows, source, f"struct({', '.join(places)})")
    content = hash_sql(rows.schema)
    newest = f"max_by(struct({every_column}), struct({', '.join([*order, content])})) as {NEWEST}"
    same = {f"{SAME}{number}": name for number, name in enumerate(source.row_columns)}
    by_row = rows.selectExpr("*", *[f"{quoted(column)} as {name}" for name, column in same.items()])
    return by_row.groupBy(*same).agg(_expression(newest)).selectExpr(f"{NEWEST}.*")


def _after_unordered_deletions(rows: DataFrame, source: Source, place: str) -> DataFrame:
    """Return the rows with an order that landed after the last deletion of their key that has none.

    Args:
        place: The expression of when a row landed.
    """
    key = quoted(str(source.key))
    lacks_order = _expression(" or ".join(f"{quoted(column)} is null" for column in source.order_columns))
    is_unordered = is_deleted(source) & lacks_order
    deletions = rows.where(is_unordered).groupBy(_expression(f"{key} as {KEY}"))
    last = deletions.agg(_expression(f"max({place}) as {LANDED}"))
    ordered = rows.where(~is_unordered)
    beside = ordered.join(last, _expression(f"{key} = {KEY}"), "left")
    return beside.where(f"{LANDED} is null or {place} > {LANDED}").drop(KEY, LANDED)


def rows_of_keys(rows: DataFrame, some: DataFrame, source: Source) -> DataFrame:
    """Return the rows of a source whose key occurs in some of them."""
    key = quoted(str(source.key))
    keys = some.selectExpr(f"{key} as {SAME[0]}").distinct()
    return rows.join(keys, _expression(f"{key} = {SAME[0]}"), "left_semi")


def _expression(text: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(text)
