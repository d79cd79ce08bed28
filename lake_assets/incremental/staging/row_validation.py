"""Row validation: classify each row of a source. It counts, repeats a delivery, or belongs in quarantine.

A classified row has five more columns, which `drop_classification` removes. All functions but `count_rows` are lazy.
The schema of the rows is an argument, because asking Spark for it takes a call each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.base.columns import (
    BESIDE,
    CUT,
    DELIVERY,
    HASH,
    HOUR,
    KEY,
    LANDED,
    REASON,
    REMAINS,
    TIED,
    TIME,
    VALID,
    column,
    columns,
    hash_sql,
    hour_of,
)
from lake_assets.base.hours import FIRST_HOUR, LAST_HOUR, hour_key
from lake_assets.base.sql_text import is_true
from lake_assets.base.time_filters import hours_condition, moment
from lake_assets.connections.row_checkpoint import aggregate
from lake_assets.incremental.planning.session import RowCounts

if TYPE_CHECKING:
    from pyspark.sql import WindowSpec
    from pyspark.sql.types import StructType

    from lake_assets.incremental.declaration import Source, Target
    from lake_assets.incremental.metadata.least_rows import LeastRows

CLASSIFICATION = (HASH, REASON, DELIVERY, HOUR, TIED)
"""The columns of a classified row besides its own.

- `HASH`: of rows that belong in quarantine, and of those that only it tells apart. Else null.
- `REASON`: why the row belongs in quarantine; null for a valid row.
- `DELIVERY`: `COUNTED` for the delivery that counts, `CONTESTED`, or a higher number for a repeated delivery. Of a
  source with versions: `COUNTED`, `REPEATED` also for a superseded version, or `DELETION`.
- `HOUR`: the event hour (long).
- `TIED`: whether the row counts, and only its hash tells it from another row, so that nothing says which is right.
"""

FORMER_HASH = "former_hash"
"""Column of rows for the quarantine: the hash that rows had there before it told all values apart."""

JSON_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Of the rows in quarantine, for people."""

Direction = Callable[[Any], Column]
"""Ascending or descending."""
FAR = "not in the years 1 to 9999"
"""Why a row of a source that is not validated is quarantined."""

MICROSECONDS_PER_MINUTE = 60_000_000
LATENESS_PERCENTILES = [0.5, 0.95]
LONGEST_LEAD = "INTERVAL 1 HOUR"
"""How long after its landing a row's time may be, because clocks differ."""

CONTESTED = 0
"""The delivery may have to replace a row that the target has already."""
COUNTED = 1
REPEATED = 2
DELETION = 3
"""The version that counts deletes its key."""


def classify(rows: DataFrame, source: Source, *, schema: StructType, start: int) -> DataFrame:
    """Return the rows with the columns of `CLASSIFICATION`.

    Of several rows with one key and time, the one with the least (landed_at, batch_id, hash) counts. If the source
    keeps the last, then of several rows with one key the one with the greatest (order_by, landed_at, batch_id, hash);
    if it keeps all, the one of several with one key and order. A deletion without an order removes the versions of its
    key that landed until it did.

    Args:
        rows: Rows of the source. If it has versions, all rows of each key that occurs.
        schema: The columns of the rows.
        start: First hour of the pipeline.
    """
    judged = rows.withColumn(REASON, _reason(source, start))
    # A column, so that the windows over the deliveries of a row share one shuffle.
    judged = judged.withColumn(VALID, is_valid())
    hashed = judged.withColumn(HASH, F.when(_needs_hash(source), F.expr(hash_sql(schema))))
    hour = hour_of(source.time_column).alias(HOUR)
    classified = hashed.select(*_with_time_zone(source, schema.names), HASH, REASON, hour, VALID)
    return _with_delivery(classified, source, schema.names).drop(VALID)


def classify_against_stored(
    rows: DataFrame,
    stored: DataFrame,
    source: Source,
    target: Target,
) -> DataFrame:
    """Return classified rows, compared with the rows that the target has.

    A row that the target has already is `REPEATED` if the stored one landed first, else `CONTESTED`.

    Args:
        rows: Classified rows of the source.
        stored: Rows of the target.
    """
    assert source.key is not None
    stored_landed = F.lit(None).cast("timestamp")
    stored_is_first = F.lit(False)
    if source.landed_column is not None and target.copies(source.landed_column):
        stored_landed = column(source.landed_column)
        stored_is_first = F.col(LANDED) < column(source.landed_column)
    known = stored.select(
        column(target.key[0]).alias(KEY),
        column(target.time_column).alias(TIME),
        stored_landed.alias(LANDED),
    )
    same_key = column(source.key) == F.col(KEY)
    same_time = column(source.time_column) == F.col(TIME)
    is_stored = is_counted() & F.col(KEY).isNotNull()
    delivery = F.when(is_stored & stored_is_first, REPEATED)
    delivery = delivery.when(is_stored, CONTESTED)
    delivery = delivery.otherwise(F.col(DELIVERY))
    compared = rows.join(known, same_key & same_time, "left")
    return compared.withColumn(DELIVERY, delivery).drop(KEY, TIME, LANDED)


def is_valid() -> Column:
    """Return the condition on classified rows that do not belong in quarantine."""
    return F.col(REASON).isNull()


def is_counted() -> Column:
    """Return the condition on classified rows that should appear in the target."""
    return is_valid() & (F.col(DELIVERY) == COUNTED)


def is_version() -> Column:
    """Return the condition on classified rows that are counted, or are the deletion of a key."""
    return is_valid() & F.col(DELIVERY).isin(COUNTED, DELETION)


def drop_classification(rows: DataFrame) -> DataFrame:
    """Return classified rows with the columns of the source alone."""
    return rows.drop(*CLASSIFICATION)


def quarantine_rows(rows: DataFrame, source: Source, *, schema: StructType) -> DataFrame:
    """Return classified rows that are not valid, for `etl.quarantine`: source, row_hash, reason, row; all strings.

    And `FORMER_HASH`, which is not stored.
    """
    row = F.struct(*columns(schema.names))
    return rows.where(~is_valid()).select(
        F.lit(source.table).alias("source"),
        F.col(HASH).alias("row_hash"),
        F.col(REASON).alias("reason"),
        F.to_json(row, JSON_OPTIONS).alias("row"),
        F.sha2(F.to_json(row), 256).alias(FORMER_HASH),
    )


def count_rows(
    rows: DataFrame,
    source: Source,
    *,
    complete_through: int | None,
    hours: Sequence[int] | None = None,
    least: LeastRows | None = None,
) -> RowCounts:
    """Count classified rows by their classification, in one pass.

    Args:
        complete_through: The target's before the session; rows of hours up to it count as late.
        hours: Hours that an overwrite replaces; rows in none of them count as outside. None: no row does.
        least: The rows that are read at least, by metadata.
    """
    aggregates = count_aggregates(source, complete_through=complete_through, hours=hours, least=least)
    return row_counts(aggregate(rows, aggregates))


def count_aggregates(
    source: Source,
    *,
    complete_through: int | None,
    hours: Sequence[int] | None = None,
    least: LeastRows | None = None,
) -> list[Column]:
    """Return the aggregates of classified rows that `row_counts` takes. The arguments are those of `count_rows`."""
    is_duplicate = is_valid() & (F.col(DELIVERY) > COUNTED)
    is_contested = is_valid() & (F.col(DELIVERY) == CONTESTED)
    is_late = is_counted() & _is_late(complete_through)
    counted_hour = F.when(is_counted(), F.col(HOUR))
    lateness = F.when(is_counted(), _lateness_minutes(source))
    return [
        F.count("*").alias("read"),
        F.count_if(_is_outside(source, hours)).alias("outside"),
        F.count_if(is_duplicate).alias("duplicates"),
        F.count_if(~is_valid()).alias("quarantined"),
        F.count_if(is_contested).alias("contested"),
        F.count_if(F.col(TIED)).alias("tied"),
        F.count_if(is_late).alias("late"),
        F.count_if(is_in_bounds(source.time_column, least)).alias("in_bounds"),
        F.sort_array(F.collect_set(counted_hour)).alias("hours"),
        F.percentile_approx(lateness, LATENESS_PERCENTILES).alias("lateness"),
        F.max(lateness).alias("lateness_max"),
    ]


def row_counts(values: Mapping[str, Any]) -> RowCounts:
    """Return the counts that the values of `count_aggregates` say, by their aliases."""
    p50, p95 = values["lateness"] or (None, None)
    return RowCounts(
        read=values["read"],
        outside=values["outside"],
        duplicates=values["duplicates"],
        quarantined=values["quarantined"],
        contested=values["contested"],
        tied=values["tied"],
        late=values["late"],
        in_bounds=values["in_bounds"],
        hours=tuple(values["hours"]),
        lateness_p50=p50,
        lateness_p95=p95,
        lateness_max=values["lateness_max"],
    )


def is_in_bounds(time_column: str, least: LeastRows | None) -> Column:
    """Return the condition that a time lies in the bounds of files that are read whole. It is not handed to Iceberg."""
    if least is None:
        return F.lit(False)
    time = F.unix_micros(column(time_column).cast("timestamp"))
    return (time >= least.first) & (time <= least.last)


def has_no_hour(source: Source, *, start: int) -> Column:
    """Return the condition on rows that no session's hours can contain: without a time, or with an absurd one."""
    time = column(source.time_column)
    condition = time.isNull() | (time < moment(start)) | (time >= moment(LAST_HOUR + 1))
    if source.landed_column is not None:
        condition = condition | column(source.landed_column).isNull() | _is_after_landing(source)
    return condition


def _with_time_zone(source: Source, names: Sequence[str]) -> list[Column]:
    """Return the columns, the time as a timestamp with a zone: one without is in UTC, the time zone of the session."""
    found = columns(names)
    if source.trusted:
        return found
    place = list(names).index(source.time_column)
    found[place] = found[place].cast("timestamp").alias(source.time_column)
    return found


def _needs_hash(source: Source) -> Column:
    """Return the condition on rows whose hash is used: it is dear to compute."""
    if source.key is None:
        return ~is_valid()
    return ~is_valid() | (F.count("*").over(_deliveries(source)) > 1)


def _deliveries(source: Source) -> WindowSpec:
    """Return the window over the deliveries of one row; of a source with versions, over those of a key."""
    if not source.has_versions:
        # The time column is among the partition columns so that Spark pushes a filter on it below the window.
        return Window.partitionBy(*columns([str(source.key), source.time_column]), F.col(VALID))
    return Window.partitionBy(*columns(source.row_columns), F.col(VALID))


def _with_delivery(rows: DataFrame, source: Source, names: Sequence[str]) -> DataFrame:
    """Return rows with the number of each among the deliveries of its row, and whether the first of them is tied."""
    if source.key is None:
        return rows.withColumns({DELIVERY: F.lit(COUNTED), TIED: F.lit(False)})
    places = columns(name for name in source.arrival_columns if name in names)
    if not source.has_versions:
        return _numbered(rows, source, places, F.asc)
    order = [*columns(source.order_columns), *places]
    if not source.takes_unordered_deletions:
        return _with_deletions(_numbered(rows, source, order, F.desc), source)
    unordered = _is_unordered_deletion(source)
    landed = F.struct(*places)
    rows = rows.withColumn(CUT, F.max(F.when(unordered, landed)).over(_deliveries(source)))
    is_later = F.coalesce(landed > F.col(CUT), F.lit(True))
    # A version that landed together with such a deletion is removed, but may have been written after it.
    is_beside = ~unordered & F.coalesce(landed == F.col(CUT), F.lit(False))
    beside = F.max(is_beside).over(_deliveries(source))
    # A version that remains comes first, then the deletion, then the versions that it removed.
    rows = rows.withColumns({REMAINS: F.when(unordered, 1).when(is_later, 2).otherwise(0), BESIDE: beside})
    found = _numbered(rows, source, [F.col(REMAINS), *order], F.desc)
    is_tied = F.col(TIED) | ((F.col(DELIVERY) == COUNTED) & unordered & F.col(BESIDE))
    return _with_deletions(found.withColumn(TIED, is_tied).drop(CUT, REMAINS, BESIDE), source)


def _with_deletions(rows: DataFrame, source: Source) -> DataFrame:
    """Return the numbered versions of a key, of which the first counts, or deletes the key; all others are repeated."""
    number = F.least(DELIVERY, F.lit(REPEATED))
    is_deletion = (F.col(DELIVERY) == COUNTED) & _is_deleted(source)
    return rows.withColumn(DELIVERY, F.when(is_deletion, DELETION).otherwise(number))


def _numbered(rows: DataFrame, source: Source, order: Sequence[Column], direction: Direction) -> DataFrame:
    """Return rows with their numbers in an order of columns, then of hashes, and whether only a hash puts one first."""
    first = _deliveries(source).orderBy(*map(direction, order), direction(F.col(HASH)))
    place = F.struct(F.lit(True), *order)
    is_same_place = F.lead(place).over(first).eqNullSafe(place)
    is_other_row = F.lead(HASH).over(first) != F.col(HASH)
    number = F.row_number().over(first)
    is_tied = is_valid() & (number == COUNTED) & is_same_place & is_other_row
    return rows.withColumns({DELIVERY: number, TIED: F.coalesce(is_tied, F.lit(False))})


def _is_unordered_deletion(source: Source) -> Column:
    """Return the condition on versions that delete their key and lack a column of the order."""
    lacks_order = [each.isNull() for each in columns(source.order_columns)]
    return _is_deleted(source) & F.greatest(*lacks_order, F.lit(False))


def _is_deleted(source: Source) -> Column:
    """Return the condition on versions that delete their key."""
    return F.lit(False) if source.deleted is None else is_true(source.deleted)


def _reason(source: Source, start: int) -> Column:
    """Return the first reason for which a row belongs in quarantine; null for a valid row."""
    if source.trusted:
        # An append takes all rows of a source that is not validated, and these have no partition.
        time = column(source.time_column)
        return F.when((time < moment(FIRST_HOUR)) | (time >= moment(LAST_HOUR + 1)), f"{source.time_column} is {FAR}")
    reasons = []
    for condition, reason in _flaws_of_any_row(source):
        reasons.append(F.when(condition, F.lit(reason)))
    for condition, reason in _flaws_of_a_row_that_stands(source, start):
        concerns_row = condition if source.deleted is None else condition & ~_is_deleted(source)
        reasons.append(F.when(concerns_row, F.lit(reason)))
    return F.coalesce(*reasons)


def _flaws_of_any_row(source: Source) -> Iterator[tuple[Column, str]]:
    """Yield the conditions, with reasons, that also concern a row that deletes its key."""
    if source.key is not None:
        yield column(source.key).isNull(), f"{source.key} is null"
    needs_order = ~_is_deleted(source) if source.takes_unordered_deletions else F.lit(True)
    for name in source.order_columns:
        yield column(name).isNull() & needs_order, f"{name} is null"
    landed = source.landed_column
    if source.deleted is not None and landed is not None:
        yield column(landed).isNull(), f"{landed} is null"


def _flaws_of_a_row_that_stands(source: Source, start: int) -> Iterator[tuple[Column, str]]:
    """Yield the conditions, with reasons, on rows that are to stand in an hour of the target."""
    name = source.time_column
    time = column(name)
    yield time.isNull(), f"{name} is null"
    yield time < moment(start), f"{name} is before the declared start, {hour_key(start)}"
    yield time >= moment(LAST_HOUR + 1), f"{name} is after the year 9999"
    landed = source.landed_column
    if landed is not None:
        # Without it nothing shows which times are absurd, nor which delivery came first.
        yield column(landed).isNull(), f"{landed} is null"
        yield _is_after_landing(source), f"{name} is over an hour after {landed}"
    for rule in source.rules:
        yield is_true(rule.where), rule.reason


def _is_after_landing(source: Source) -> Column:
    assert source.landed_column is not None
    # A later landing cannot be added to.
    landed = F.least(column(source.landed_column), moment(LAST_HOUR + 1))
    return column(source.time_column) > landed + F.expr(LONGEST_LEAD)


def _is_late(complete_through: int | None) -> Column:
    if complete_through is None:
        return F.lit(False)
    return F.col(HOUR) <= complete_through


def _is_outside(source: Source, hours: Sequence[int] | None) -> Column:
    if hours is None:
        return F.lit(False)
    return ~F.coalesce(hours_condition(source.time_column, hours), F.lit(False))


def _lateness_minutes(source: Source) -> Column:
    """Return landing minus event time in minutes (double); null without landing times."""
    if source.landed_column is None:
        return F.lit(None).cast("double")
    landed, time = columns([source.landed_column, source.time_column])
    microseconds = F.unix_micros(landed.cast("timestamp")) - F.unix_micros(time.cast("timestamp"))
    return microseconds / MICROSECONDS_PER_MINUTE
