"""The rows of a source, read on Spark by plain queries of the audits' own.

The engine's conditions are SQL text. The names in them are checked identifiers of a declaration, the values are numbers
and times. The conditions that a user has written are expressions of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from lake_assets.base.hours import hour_start
from lake_assets.base.sql_text import any_is_true, quoted
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


def is_valid(source: Source, columns: Sequence[str], *, start: int) -> Column:
    """Return the condition on rows of a source that do not belong in quarantine.

    Args:
        columns: The columns of the source.
        start: First hour of the pipeline.
    """
    from pyspark.sql import functions as F

    if source.trusted:
        return F.lit(True)
    time = f"`{source.time_column}`"
    has_landed = LANDED in columns
    needed = [f"`{column}` is not null" for column in (source.key, source.order_by) if column is not None]
    tests = [*needed, f"{time} >= {_moment(start)}"]
    if has_landed:
        tests.append(f"{time} <= {LANDED} + interval 1 hour")
    stands = F.expr(" and ".join(tests)) & ~any_is_true([rule.where for rule in source.rules])
    if source.deleted is None:
        return stands
    deletes = " and ".join([*needed, f"{LANDED} is not null" if has_landed else "true"])
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
    every_column = ", ".join(quoted(column) for column in columns)
    order = [f"`{column}`" for column in (source.order_by, LANDED, "batch_id") if column in columns]
    content = f"sha2(to_json(struct({every_column})), 256)"
    newest = f"max_by(struct({every_column}), struct({', '.join([*order, content])})) as newest"
    same_row = [source.key, source.order_by] if source.keep == "all" else [source.key]
    by_row = rows.selectExpr("*", *[f"`{column}` as _row_{number}" for number, column in enumerate(same_row)])
    grouped = by_row.groupBy(*[f"_row_{number}" for number in range(len(same_row))])
    return grouped.agg(_expression(newest)).selectExpr("newest.*")


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
