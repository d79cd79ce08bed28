"""Judging: what becomes of each row of a source. It counts, repeats a delivery, or is set aside in quarantine.

A judged row carries four columns of this module's own; `plain` takes them off again. All but `measured` is lazy. The
columns of the rows are an argument: to ask Spark for them takes a call each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.base.hours import hour_key
from lake_assets.base.time_filters import moment
from lake_assets.incremental.declaration import LANDED
from lake_assets.incremental.planning.session import RowCounts

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import Source, Target

HASH, REASON, DELIVERY, HOUR = OWN = ("_row_hash", "_reason", "_delivery", "_hour")
"""A row's hash; why it is set aside (null: it is not); 1 for the delivery that counts; its event hour."""

COUNTS, CONTESTED = 1, 0


def judged(rows: DataFrame, source: Source, *, columns: Sequence[str], start: int) -> DataFrame:
    """The rows with `OWN`. Of rows with equal (key, time) the least (landed_at, batch_id, hash) counts."""
    found = rows.select(
        *columns,
        (F.lit(None).cast("string") if source.trusted else F.sha2(F.to_json(F.struct(*columns)), 256)).alias(HASH),
        _reason(source, start, landed=LANDED in columns).alias(REASON),
        F.floor(F.unix_timestamp(source.time_column) / 3600).alias(HOUR),
    )
    if source.key is None:
        return found.withColumn(DELIVERY, F.lit(COUNTS))
    # The time column is among the partition columns so that Spark pushes a filter on it below the window.
    window = Window.partitionBy(source.key, source.time_column, F.col(REASON).isNull())
    order = [F.col(c) for c in (LANDED, "batch_id") if c in columns] + [F.col(HASH)]
    return found.withColumn(DELIVERY, F.row_number().over(window.orderBy(*order)))


def against(stored: DataFrame, rows: DataFrame, source: Source, target: Target, *, columns: Sequence[str]) -> DataFrame:
    """Judged rows, numbered 2 where the target has the row already, `CONTESTED` where that one may have to yield."""
    assert source.key is not None
    landed = F.col(LANDED) if LANDED in target.columns else F.lit(None).cast("timestamp")
    known = stored.select(
        F.col(target.key[0]).alias("_key"), F.col(target.time_column).alias("_time"), landed.alias("_landed")
    )
    same = (F.col(source.key) == F.col("_key")) & (F.col(source.time_column) == F.col("_time"))
    later = F.col("_landed") < F.col(LANDED) if LANDED in columns else F.lit(False)
    met = sound() & (F.col(DELIVERY) == COUNTS) & F.col("_key").isNotNull()
    number = F.when(met & later, 2).when(met, CONTESTED).otherwise(F.col(DELIVERY))
    return rows.join(known, same, "left").withColumn(DELIVERY, number).drop("_key", "_time", "_landed")


def sound() -> Column:
    """Judged rows that are not set aside."""
    return F.col(REASON).isNull()


def counting() -> Column:
    """Judged rows that should show in the target."""
    return sound() & (F.col(DELIVERY) == COUNTS)


def plain(rows: DataFrame) -> DataFrame:
    return rows.drop(*OWN)


def set_aside(rows: DataFrame, source: Source, *, columns: Sequence[str]) -> DataFrame:
    """The rows for `etl.quarantine`: source, row_hash, reason, row (JSON); all strings."""
    content = F.to_json(F.struct(*columns)).alias("row")
    bad = rows.where(~sound())
    return bad.select(
        F.lit(source.table).alias("source"), F.col(HASH).alias("row_hash"), F.col(REASON).alias("reason"), content
    )


def measured(rows: DataFrame, source: Source, *, columns: Sequence[str], complete_through: int | None) -> RowCounts:
    """What became of judged rows, in one pass. complete_through: the target's before; tells which rows are late."""
    through = F.lit(-1 if complete_through is None else complete_through)
    contested = sound() & (F.col(DELIVERY) == CONTESTED)
    minutes = F.lit(None).cast("double")
    if LANDED in columns:
        minutes = (F.unix_micros(LANDED) - F.unix_micros(source.time_column)) / 60_000_000
    row = rows.agg(
        F.count("*").alias("read"),
        F.count_if(sound() & (F.col(DELIVERY) > COUNTS)).alias("duplicates"),
        F.count_if(~sound()).alias("quarantined"),
        F.count_if(contested).alias("contested"),
        F.sort_array(F.collect_set(F.when(counting(), F.col(HOUR)))).alias("hours"),
        F.count_if(counting() & (F.col(HOUR) <= through)).alias("late"),
        F.percentile_approx(F.when(counting(), minutes), [0.5, 0.95]).alias("lateness"),
        F.max(F.when(counting(), minutes)).alias("lateness_max"),
    ).first()
    assert row is not None  # an aggregate without groups always has one row
    p50, p95 = row["lateness"] or (None, None)
    counts = {name: row[name] for name in ("read", "duplicates", "quarantined", "contested", "late")}
    return RowCounts(
        **counts, hours=tuple(row["hours"]), lateness_p50=p50, lateness_p95=p95, lateness_max=row["lateness_max"]
    )


def _reason(source: Source, start: int, *, landed: bool) -> Column:
    if source.trusted:
        return F.lit(None).cast("string")
    name, time = source.time_column, F.col(source.time_column)
    tests = [
        (F.col(source.key).isNull() if source.key else F.lit(False), f"{source.key} is null"),
        (time.isNull(), f"{name} is null"),
        (time < moment(start), f"{name} is before the declared start, {hour_key(start)}"),
    ]
    if landed:
        # Without it nothing says which times are absurd, nor which delivery came first.
        tests.append((F.col(LANDED).isNull(), f"{LANDED} is null"))
        tests.append((time > F.col(LANDED) + F.expr("INTERVAL 1 HOUR"), f"{name} is over an hour after {LANDED}"))
    tests += [(F.expr(rule.where), rule.reason) for rule in source.rules]
    return F.coalesce(*[F.when(condition, F.lit(reason)) for condition, reason in tests])


def in_no_hour(source: Source, columns: Sequence[str], *, start: int) -> Column:
    """Rows that no session's hours can hold: without a time, or with an absurd one. They belong in quarantine."""
    time = F.col(source.time_column)
    nowhere = time.isNull() | (time < moment(start))
    if LANDED not in columns:
        return nowhere
    return nowhere | F.col(LANDED).isNull() | (time > F.col(LANDED) + F.expr("INTERVAL 1 HOUR"))
