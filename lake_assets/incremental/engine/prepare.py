"""Rows of a source: read as of a snapshot or between two, and classified.

A classified row counts, repeats a delivery, or belongs in quarantine. It has five more columns, `CLASSIFICATION`, which
`drop_classification` removes. All functions are lazy, but for `count_rows`, and for `classify` of many rows. The schema
of the rows is an argument, because asking Spark for it takes a call each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

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
    any_of,
    column,
    columns,
    hash_sql,
    hour_of,
)
from lake_assets.base.hours import FIRST_HOUR, LAST_HOUR, hour_key
from lake_assets.base.sql_text import is_true
from lake_assets.base.time_filters import hours_condition, moment
from lake_assets.connections.row_checkpoint import aggregate, checkpoint_and_aggregate, checkpoint_rows
from lake_assets.incremental.declaration import Source
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.columns import with_present_columns
from lake_assets.incremental.engine.model import RowCounts, SourceRange
from lake_assets.incremental.engine.readable import LeastRows

if TYPE_CHECKING:
    from pyspark.sql import WindowSpec


CATALOG = "lake"

SINGLE_PARTITION_ROWS = 50_000
"""Most rows that are handled as one partition, so that nothing is shuffled: tasks are the main cost of few rows."""

FEW_PARTITIONS = 20
"""Most partitions of so many rows that others are merged into. Of more rows, a table's own partitions are as good.

Iceberg reads four small files in a task, so an hourly table gives a task for each hour or so.
"""


def read_at(spark: SparkSession, catalog: Catalog, table: str, snapshot_id: int | None) -> DataFrame:
    """Return the rows of a table as of a snapshot, with the columns that the table has now; no rows for None."""
    if snapshot_id is None:
        return spark.table(f"{CATALOG}.{table}").where(F.lit(False))
    reader = spark.read.option("versionAsOf", str(snapshot_id)).options(**iceberg.SMALL_FILES)
    return with_present_columns(reader.table(f"{CATALOG}.{table}"), iceberg.load(catalog, table), snapshot_id)


def read_appended(spark: SparkSession, catalog: Catalog, source: SourceRange) -> DataFrame:
    """Return the rows that the snapshots of a range appended. Only for a range that metadata shows to be appends."""
    if source.from_snapshot_id is None:
        return read_at(spark, catalog, source.source, source.to_snapshot_id)
    if source.from_snapshot_id == source.to_snapshot_id:
        return read_at(spark, catalog, source.source, None)  # Iceberg refuses an empty range
    reader = spark.read.format("iceberg")
    reader = reader.option("start-snapshot-id", str(source.from_snapshot_id))
    reader = reader.option("end-snapshot-id", str(source.to_snapshot_id))
    return reader.load(f"{CATALOG}.{source.source}")


def is_few(rows: float) -> bool:
    """Return whether a number of rows is handled as one partition."""
    return rows <= SINGLE_PARTITION_ROWS


def coalesce_if_few(rows: DataFrame, number: float) -> DataFrame:
    """Return the rows in as few partitions as their number needs, if it is small.

    Args:
        number: About how many rows there are, at most; infinite if that is not known.
    """
    if is_few(number):
        return rows.coalesce(1)
    if number <= FEW_PARTITIONS * SINGLE_PARTITION_ROWS:
        return rows.coalesce(ceil(number / SINGLE_PARTITION_ROWS))
    return rows


MOST_REPEATED = 100_000
"""Most keys and times of several rows that each task holds in memory."""

CLASSIFICATION = (HASH, REASON, DELIVERY, HOUR, TIED)
"""The columns of a classified row besides its own.

- `HASH`: of rows that belong in quarantine, and of those that only it tells apart. Else null.
- `REASON`: why the row belongs in quarantine; null for a valid row.
- `DELIVERY`: `COUNTED` for the delivery that counts, `CONTESTED`, or a higher number for a repeated delivery. Of a
  source with versions: `COUNTED`, `REPEATED` also for a superseded version, or `DELETION`.
- `HOUR`: the event hour (long).
- `TIED`: whether the row counts, and only its hash tells it from another row, so that nothing says which is right.
"""

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


def classify(rows: DataFrame, source: Source, *, schema: StructType, start: int, number: float = 0) -> DataFrame:
    """Return the rows with the columns of `CLASSIFICATION`.

    Of several rows with one key and time, the one with the least (landed_at, batch_id, hash) counts. If the source
    keeps the last, then of several rows with one key the one with the greatest (order_by, landed_at, batch_id, hash);
    if it keeps all, the one of several with one key and order. A deletion without an order removes the versions of its
    key that landed until it did.

    Args:
        rows: Rows of the source. If it has versions, all rows of each key that occurs.
        schema: The columns of the rows.
        start: First hour of the pipeline.
        number: About how many rows there are. Many are not sorted, but for those with a key and time of others: these
            are looked for first, which computes the rows once.
    """
    if source.key is None:
        return _classified(rows, source, schema, start, is_once=True)
    if source.has_versions or is_few(number):
        return _classified(rows, source, schema, start)
    key, time = column(source.key), column(source.time_column)
    repeated = rows.groupBy(key.alias(KEY), time.alias(TIME)).count().where(F.col("count") > 1).select(KEY, TIME)
    repeated = checkpoint_rows(repeated.limit(MOST_REPEATED + 1))
    found = repeated.count()
    if found > MOST_REPEATED:
        return _classified(rows, source, schema, start)
    if not found:
        return _classified(rows, source, schema, start, is_once=True)
    same, is_same = F.broadcast(repeated), key.eqNullSafe(F.col(KEY)) & time.eqNullSafe(F.col(TIME))
    once = _classified(rows.join(same, is_same, "left_anti"), source, schema, start, is_once=True)
    return once.unionByName(_classified(rows.join(same, is_same, "left_semi"), source, schema, start))


def _classified(rows: DataFrame, source: Source, schema: StructType, start: int, *, is_once: bool = False) -> DataFrame:
    """Return the rows with the columns of `CLASSIFICATION`. is_once: No row has the key and time of another."""
    names = schema.names
    # Whether a row is valid is a column, so that the windows over the deliveries of a row share one shuffle.
    rows = rows.withColumn(REASON, _reason(source, start)).withColumn(VALID, is_valid())
    needs_hash = ~is_valid()  # it is dear to compute
    if not is_once:
        needs_hash = needs_hash | (F.count("*").over(_deliveries(source)) > 1)
    rows = rows.withColumn(HASH, F.when(needs_hash, F.expr(hash_sql(schema))))
    own = columns(names)
    if not source.trusted:
        # As a timestamp with a zone: one without is in UTC, the time zone of the session.
        place = names.index(source.time_column)
        own[place] = own[place].cast("timestamp").alias(source.time_column)
    rows = rows.select(*own, HASH, REASON, hour_of(source.time_column).alias(HOUR), VALID)
    if is_once:
        return rows.withColumns({DELIVERY: F.lit(COUNTED), TIED: F.lit(False)}).drop(VALID)
    return _with_delivery(rows, source, names).drop(VALID)


def _reason(source: Source, start: int) -> Column:
    """Return the first reason for which a row belongs in quarantine; null for a valid row."""
    if source.trusted:
        # An append takes all rows of a source that is not validated, and these have no partition.
        time = column(source.time_column)
        return F.when((time < moment(FIRST_HOUR)) | (time >= moment(LAST_HOUR + 1)), f"{source.time_column} is {FAR}")
    stands = ~_is_deleted(source)
    needs_order = stands if source.takes_unordered_deletions else F.lit(True)
    flaws = [] if source.key is None else [(column(source.key).isNull(), f"{source.key} is null")]
    flaws += [(column(name).isNull() & needs_order, f"{name} is null") for name in source.order_columns]
    if source.deleted is not None and source.landed_column is not None:
        flaws.append((column(source.landed_column).isNull(), f"{source.landed_column} is null"))
    # A row that deletes its key is to stand in no hour.
    of_hour = [*_flaws_of_hour(source, start), *((is_true(rule.where), rule.reason) for rule in source.rules)]
    flaws += [(flaw & stands, reason) for flaw, reason in of_hour]
    return F.coalesce(*[F.when(flaw, F.lit(reason)) for flaw, reason in flaws])


def _flaws_of_hour(source: Source, start: int) -> list[tuple[Column, str]]:
    """Return the conditions, with reasons, on rows that no session's hours can contain."""
    name, landed = source.time_column, source.landed_column
    time = column(name)
    flaws = [
        (time.isNull(), f"{name} is null"),
        (time < moment(start), f"{name} is before the declared start, {hour_key(start)}"),
        (time >= moment(LAST_HOUR + 1), f"{name} is after the year 9999"),
    ]
    if landed is not None:
        # Without it nothing shows which times are absurd, nor which delivery came first.
        flaws.append((column(landed).isNull(), f"{landed} is null"))
        # A later landing cannot be added to.
        latest = F.least(column(landed), moment(LAST_HOUR + 1)) + F.expr(LONGEST_LEAD)
        flaws.append((time > latest, f"{name} is over an hour after {landed}"))
    return flaws


def has_no_hour(source: Source, *, start: int) -> Column:
    """Return the condition on rows that no session's hours can contain: without a time, or with an absurd one."""
    return any_of(flaw for flaw, _ in _flaws_of_hour(source, start))


def _is_deleted(source: Source) -> Column:
    """Return the condition on versions that delete their key."""
    return F.lit(False) if source.deleted is None else is_true(source.deleted)


def _deliveries(source: Source) -> WindowSpec:
    """Return the window over the deliveries of one row; of a source with versions, over those of a key."""
    # The time column is among the partition columns so that Spark pushes a filter on it below the window.
    same = source.row_columns if source.has_versions else (str(source.key), source.time_column)
    return Window.partitionBy(*columns(same), F.col(VALID))


def _with_delivery(rows: DataFrame, source: Source, names: Sequence[str]) -> DataFrame:
    """Return rows with the number of each among the deliveries of its row, and whether the first of them is tied."""
    places = columns(name for name in source.arrival_columns if name in names)
    if not source.has_versions:
        return _numbered(rows, source, places, F.asc)
    order = [*columns(source.order_columns), *places]
    is_deletion = _is_deleted(source)
    if not source.takes_unordered_deletions:
        rows = _numbered(rows, source, order, F.desc)
    else:
        is_unordered = is_deletion & F.greatest(
            *[each.isNull() for each in columns(source.order_columns)], F.lit(False)
        )
        landed = F.struct(*places)
        rows = rows.withColumn(CUT, F.max(F.when(is_unordered, landed)).over(_deliveries(source)))
        is_later = F.coalesce(landed > F.col(CUT), F.lit(True))
        # A version that landed together with such a deletion is removed, but may have been written after it.
        is_beside = ~is_unordered & F.coalesce(landed == F.col(CUT), F.lit(False))
        beside = F.max(is_beside).over(_deliveries(source))
        # A version that remains comes first, then the deletion, then the versions that it removed.
        rows = rows.withColumns({REMAINS: F.when(is_unordered, 1).when(is_later, 2).otherwise(0), BESIDE: beside})
        rows = _numbered(rows, source, [F.col(REMAINS), *order], F.desc)
        is_tied = F.col(TIED) | ((F.col(DELIVERY) == COUNTED) & is_unordered & F.col(BESIDE))
        rows = rows.withColumn(TIED, is_tied).drop(CUT, REMAINS, BESIDE)
    # The first version of a key counts, or deletes the key; all others are repeated.
    number = F.when((F.col(DELIVERY) == COUNTED) & is_deletion, DELETION).otherwise(F.least(DELIVERY, F.lit(REPEATED)))
    return rows.withColumn(DELIVERY, number)


def _numbered(
    rows: DataFrame, source: Source, order: Sequence[Column], direction: Callable[[Any], Column]
) -> DataFrame:
    """Return rows with their numbers in an order of columns, then of hashes, and whether only a hash puts one first."""
    first = _deliveries(source).orderBy(*map(direction, order), direction(F.col(HASH)))
    place = F.struct(F.lit(True), *order)
    is_same_place = F.lead(place).over(first).eqNullSafe(place)
    is_other_row = F.lead(HASH).over(first) != F.col(HASH)
    number = F.row_number().over(first)
    is_tied = is_valid() & (number == COUNTED) & is_same_place & is_other_row
    return rows.withColumns({DELIVERY: number, TIED: F.coalesce(is_tied, F.lit(False))})


def classify_against_earlier(rows: DataFrame, earlier: DataFrame, source: Source, *, start: int) -> DataFrame:
    """Return classified rows, compared with those that the source had before.

    A row that the source had already is `REPEATED` if the earlier delivery landed first, else `CONTESTED`. The target's
    rows would not tell: they may have another key or time, or the query may have left the earlier delivery out.

    Args:
        rows: Classified rows of the source.
        earlier: Rows of the source that sessions have read, of the same hours.
        start: First hour of the pipeline.
    """
    assert source.key is not None
    landed = F.lit(None).cast("timestamp") if source.landed_column is None else column(source.landed_column)
    time = column(source.time_column).cast("timestamp")
    valid = earlier.where(_reason(source, start).isNull())
    known = valid.groupBy(column(source.key).alias(KEY), time.alias(TIME)).agg(F.min(landed).alias(LANDED))
    is_same = (column(source.key) == F.col(KEY)) & (column(source.time_column) == F.col(TIME))
    is_known = is_counted() & F.col(KEY).isNotNull()
    delivery = F.when(is_known & (F.col(LANDED) < landed), REPEATED).when(is_known, CONTESTED)
    counted = delivery.otherwise(F.col(DELIVERY))
    return rows.join(known, is_same, "left").withColumn(DELIVERY, counted).drop(KEY, TIME, LANDED)


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


def count_rows(
    rows: DataFrame, source: Source, *, complete_through: int | None, hours: Sequence[int] | None, least: LeastRows
) -> tuple[DataFrame, RowCounts]:
    """Count classified rows by their classification, in one pass that also computes them.

    Rows of a trusted source of which hours are read are not computed: to read them again is cheaper.

    Args:
        complete_through: The target's before the session; rows of hours up to it count as late.
        hours: Hours that an overwrite replaces; rows in none of them count as outside. None: no row does.
        least: The rows that are read at least, by metadata.

    Returns:
        The rows, computed, and their counts.

    Raises:
        RowsUnread: Spark has read fewer rows than `least`.
    """
    no = F.lit(False)
    is_in_hours = F.lit(True)
    if hours is not None:
        is_in_hours = F.coalesce(hours_condition(source.time_column, hours), no)
    is_late = no if complete_through is None else F.col(HOUR) <= complete_through
    lateness = F.lit(None).cast("double")
    if source.landed_column is not None:
        landed, time = (
            F.unix_micros(each.cast("timestamp")) for each in columns([source.landed_column, source.time_column])
        )
        lateness = F.when(is_counted(), (landed - time) / MICROSECONDS_PER_MINUTE)
    aggregates = {
        "read": F.count("*"),
        "outside": F.count_if(~is_in_hours),
        "duplicates": F.count_if(is_valid() & (F.col(DELIVERY) > COUNTED)),
        "quarantined": F.count_if(~is_valid()),
        "contested": F.count_if(is_valid() & (F.col(DELIVERY) == CONTESTED)),
        "tied": F.count_if(F.col(TIED)),
        "late": F.count_if(is_counted() & is_late),
        "in_bounds": F.count_if(is_in_bounds(source.time_column, least)),
        "hours": F.sort_array(F.collect_set(F.when(is_counted(), F.col(HOUR)))),
        "lateness": F.percentile_approx(lateness, LATENESS_PERCENTILES),
        "lateness_max": F.max(lateness),
    }
    named = [value.alias(name) for name, value in aggregates.items()]
    if hours is not None and source.trusted:
        values = dict(aggregate(rows, named))
    else:
        rows, found = checkpoint_and_aggregate(rows, named)
        values = dict(found)
    p50, p95 = values.pop("lateness") or (None, None)
    values["hours"] = tuple(values["hours"])
    counts = RowCounts(**values, lateness_p50=p50, lateness_p95=p95)
    least.check(read=counts.read, timed=counts.in_bounds)
    return rows, counts


def is_in_bounds(time_column: str, least: LeastRows) -> Column:
    """Return the condition that a time lies in the bounds of files that are read whole. It is not handed to Iceberg."""
    time = F.unix_micros(column(time_column).cast("timestamp"))
    return (time >= least.first) & (time <= least.last)
