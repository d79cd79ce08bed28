"""Reading tables of the lake on Spark, as of a snapshot or between two, and hints for small amounts of rows.

Row validation: classify each row of a source. It counts, repeats a delivery, or belongs in quarantine.

A classified row has five more columns, which `drop_classification` removes. All functions but `count_rows` are lazy.
The schema of the rows is an argument, because asking Spark for it takes a call each time.

Building a target's rows: its sources as of the plan's snapshots, its published rows, and its transform.

Rows by entity: those of the entities that changed, those of all others, and those that an index finds.

The prepared rows of a session, and their write as a snapshot that main does not refer to.

The write is one Iceberg commit under `spark.wap.id`. It only appends or overwrites by a filter: under a WAP id, DELETE
and TRUNCATE go straight to main, and a dynamic overwrite cannot empty an hour.

Rows of a session that belong in quarantine: not valid, and not quarantined before for the same target.

Whether Spark reads all rows of the sources of a session, by their metadata. Evaluated before anything is staged.

Audits cannot tell: they read a source by the same reader, and would count as many rows as it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lake_assets.base.columns import (
    BESIDE,
    CUT,
    DELIVERY,
    ENTITY,
    HASH,
    HOUR,
    KEY,
    LANDED,
    REASON,
    REMAINS,
    SIGN,
    TIED,
    TIME,
    VALID,
    column,
    columns,
    hash_sql,
    hour_of,
)
from lake_assets.base.conditions import union_by_name
from lake_assets.base.hours import FIRST_HOUR, LAST_HOUR, hour_key
from lake_assets.base.sql_text import is_true
from lake_assets.base.time_filters import before, hours_condition, moment, replaced_hours, within
from lake_assets.connections.row_checkpoint import aggregate
from lake_assets.incremental.declaration import LANDED as USUALLY_LANDED
from lake_assets.incremental.declaration import SessionContext, Source, Target
from lake_assets.incremental.engine import iceberg, readable
from lake_assets.incremental.engine.columns import with_present_columns
from lake_assets.incremental.engine.iceberg import QUARANTINE
from lake_assets.incremental.engine.key_index import KeyIndex, distinct_values, local_rows
from lake_assets.incremental.engine.model import RowCounts, SessionPlan, SourceRange
from lake_assets.incremental.engine.readable import LeastRows, check_files, has_foreign_files, live_paths
from lake_assets.incremental.engine.user_code import call_function

if TYPE_CHECKING:
    from pyspark.sql import WindowSpec

    from lake_assets.incremental.declaration import Source, Target


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
    reader = spark.read.option("versionAsOf", str(snapshot_id))
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


def hash_join_hint(rows: DataFrame, *, few: bool) -> DataFrame:
    """Return the right side of a join with a hint to hash it in place, if both sides are few rows in one partition.

    Without the hint Spark broadcasts a small side to all tasks of the other, which is a job of its own.
    """
    if few:
        return rows.hint("shuffle_hash")
    return rows


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


FoundRows = Sequence[DataFrame]
"""Rows of each source, in the order of the declaration; of each row, all deliveries."""

LimitRows = Callable[[DataFrame], DataFrame]
"""Limits the rows of a source to those of some entities."""


PERTURBATION = 1e-14
"""How much a perturbed rebuild changes each floating point number of its sources at most, as a part of it.

Two orders of addition give two sums. By how much they differ is not seen in the sums, but is of the size of the numbers
that were added, as is what the perturbation changes: about as much as the rounding of some hundred additions."""


@dataclass(frozen=True)
class TargetBuild:
    """Builds rows of one target on one Spark session.

    Attributes:
        catalog: Has the metadata of the tables.
        start: First hour of the pipeline; rows before it are not valid.
        main: The target's published snapshot to build on; None for an empty target.
        max_rows: About how many rows a session reads of any table, at most.
        index: Finds rows by a column's values; None to read tables whole.
        is_perturbed: Whether the floating point numbers that the transform gets are changed by a random part of
            `PERTURBATION`. Such rows are compared, and never published.
    """

    spark: SparkSession
    catalog: Catalog
    target: Target
    start: int
    main: int | None
    max_rows: float
    index: KeyIndex | None = None
    is_perturbed: bool = False

    def published(self) -> DataFrame:
        """Return the published rows of the target."""
        return self.read(self.target.table, self.main)

    def read(self, table: str, snapshot_id: int | None) -> DataFrame:
        """Return the rows of a table as of a snapshot; no rows for None."""
        return coalesce_if_few(read_at(self.spark, self.catalog, table, snapshot_id), self.max_rows)

    def sources(self, plan: SessionPlan) -> list[tuple[Source, SourceRange]]:
        """Return the sources, the driving one first, each with its range in a plan."""
        return list(zip(self.target.sources, plan.sources, strict=True))

    def build_hours(
        self,
        plan: SessionPlan,
        hours: Sequence[int],
        *,
        published: DataFrame | None,
        limit: LimitRows | None = None,
        found: FoundRows | None = None,
    ) -> DataFrame:
        """Build hours from all rows of the sources up to the last of them.

        Args:
            hours: Ascending.
            published: The target's rows before the session, for a sequential target.
            limit: Limits the rows of each source; None for all rows.
            found: The rows of each source that the hours depend on; None to read all rows.
        """
        inputs = []
        for place, (source, span) in enumerate(self.sources(plan)):
            rows = self.read(source.table, span.to_snapshot_id) if found is None else found[place]
            rows = self.counted_rows(source, rows, through=hours[-1])
            if limit is not None:
                rows = limit(rows)
            inputs.append(rows)
        return self.transform(plan.session_id, hours, inputs, published=published)

    def transform(
        self,
        session_id: str,
        hours: Sequence[int],
        inputs: Sequence[DataFrame],
        *,
        published: DataFrame | None = None,
    ) -> DataFrame:
        """Return the result of the target's transform, with the columns of the target in their order.

        Raises:
            FunctionFailed: The transform raised an error, or its result lacks a column.
        """
        if self.is_perturbed:
            inputs = [perturbed(rows) for rows in inputs]
            published = None if published is None else perturbed(published)
        context = SessionContext(session_id, tuple(hours), published, self.target.grain)
        return call_function(self.target, context, inputs)

    def counted_rows(self, source: Source, rows: DataFrame, *, through: int) -> DataFrame:
        """Return the valid rows of a source up to the end of an hour, each delivery once.

        If the source keeps all versions, those of later hours and deletions, too: a version is valid until the next.

        Args:
            rows: Rows of the source; of each row, all deliveries.
        """
        if not source.has_versions:
            rows = before(rows, source.time_column, through + 1)
        if source.trusted:
            return rows
        rows = classify(rows, source, schema=rows.schema, start=self.start)
        if source.keep == "all":
            counted = rows.where(is_version())
        else:
            # Only now: a later version may stand in a later hour.
            counted = before(rows.where(is_counted()), source.time_column, through + 1)
        return drop_classification(counted)


def perturbed(rows: DataFrame) -> DataFrame:
    """Return rows whose floating point numbers are changed at random by at most `PERTURBATION`, as doubles."""
    selected = []
    for place, field in enumerate(rows.schema.fields):
        value = column(field.name)
        if field.dataType.typeName() in ("double", "float"):
            value = value.cast("double") * (1 + PERTURBATION * (2 * F.rand(place) - 1))
        selected.append(value.alias(field.name))
    return rows.select(*selected)


@dataclass(frozen=True)
class ChangedEntities:
    """The entities whose source rows changed.

    Attributes:
        entity: The column that has an entity's id, in any DataFrame. Null is an id like any other.
        ids: The ids, one column: `ENTITY`.
    """

    entity: str
    ids: DataFrame

    def of(self, rows: DataFrame) -> DataFrame:
        """Return the rows of these entities."""
        return self._join_ids(rows, "left_semi")

    def others(self, rows: DataFrame) -> DataFrame:
        """Return the rows of all other entities."""
        return self._join_ids(rows, "left_anti")

    def _join_ids(self, rows: DataFrame, how: str) -> DataFrame:
        # The plan made sure that they are few. Broadcast, they filter rows where those are read, without a shuffle.
        same_entity = column(self.entity).eqNullSafe(F.col(ENTITY))
        return rows.join(F.broadcast(self.ids), same_entity, how)


def ids_of(rows: Iterable[DataFrame], entity: str) -> DataFrame:
    """Return the ids of all entities in these rows, each once, as column `ENTITY`."""
    return union_by_name(*[each.select(column(entity).alias(ENTITY)) for each in rows]).distinct()


def differing(before: DataFrame, after: DataFrame) -> DataFrame:
    """Return the rows that occur more often in one of two states of a table than in the other, each once.

    The columns are those that both states have.
    """
    names_before = before.columns
    common = columns(name for name in after.columns if name in names_before)
    removed = before.select(*common, F.lit(-1).alias(SIGN))
    added = after.select(*common, F.lit(1).alias(SIGN))
    by_row = removed.union(added).groupBy(*common)
    balance = by_row.agg(F.sum(SIGN).alias(SIGN))
    return balance.where(F.col(SIGN) != 0).drop(SIGN)


def rows_of_entities(build: TargetBuild, plan: SessionPlan, kept: DataFrame, entity: str) -> FoundRows | None:
    """Return the rows of each source that the entities of a session have, found by indexes.

    A source without an index has few files, or so many rows that Spark reads it faster: it is read whole.

    Args:
        kept: Rows of the driving source in the planned hours.
        entity: The column of the entity's id.

    Returns:
        None if no source has an index, or if the entities are too many or one has no id: all rows are to be read.
    """
    index = build.index
    sources = build.sources(plan)
    if index is None or not any(index.covers(source.table, span.to_snapshot_id, entity) for source, span in sources):
        return None
    entities = distinct_values(kept, entity)
    if entities is None or None in entities:
        return None
    found = []
    for source, span in sources:
        rows = _indexed_rows(index, source, span, entity, entities)
        if rows is None:
            found.append(build.read(source.table, span.to_snapshot_id))
        else:
            found.append(local_rows(build.spark, rows))
    return found


def _indexed_rows(
    index: KeyIndex, source: Source, span: SourceRange, entity: str, entities: set[object]
) -> pa.Table | None:
    """Return the rows of some entities in a source; of each row, all deliveries, whatever entity they name."""
    if source.has_versions:
        return None
    rows = index.rows(source.table, span.to_snapshot_id, entity, entities)
    if rows is None or source.trusted or source.key is None or source.key == entity:
        return rows
    keys = set(rows.column(source.key).drop_null().to_pylist())
    return index.rows(source.table, span.to_snapshot_id, source.key, keys)


WAP_ID = "spark.wap.id"


@dataclass(frozen=True)
class PreparedRows:
    """The rows of one session, not yet written.

    Attributes:
        plan: What was prepared: the session's plan, without the hours that its audits hold back.
        load: `append`, `overwrite`, or `none` (at most rows for the quarantine).
        hours: The hours that an overwrite replaces; for an append, the hours of its rows' source times.
        rows: Rows to write, with the columns of the target.
        kept: Rows of the driving source that should appear in the target, with the columns of the source.
        row_counts: What became of the rows of the driving source.
        quarantined: Rows that are new to the quarantine, as `row_validation.quarantine_rows` returns them; one
            DataFrame for each source that may have any.
        max_rows: About how many rows the session reads of any table, at most; infinite if that is not known.
        unchanged: Planned hours whose rows equal the published ones; `hours` and `rows` leave them out.
        rows_unchanged: Rows in `unchanged`.
    """

    plan: SessionPlan
    load: Literal["append", "overwrite", "none"]
    hours: tuple[int, ...]
    rows: DataFrame
    kept: DataFrame
    row_counts: RowCounts
    quarantined: list[DataFrame]
    max_rows: float = inf
    unchanged: tuple[int, ...] = ()
    rows_unchanged: int = 0

    @property
    def single_partition(self) -> bool:
        """Whether `rows` are one partition."""
        return is_few(self.max_rows)

    @property
    def has_rows(self) -> bool:
        """Whether there is something to write. An overwrite may empty hours; an append of no row writes nothing."""
        if self.load == "overwrite":
            return bool(self.hours)
        return self.load == "append" and self.row_counts.kept > 0

    def quarantined_rows(self, limit: int) -> list[dict[str, str]]:
        """Return at most `limit` rows for the quarantine. Starts a Spark job only if there may be any."""
        if not self.quarantined:
            return []
        rows = self._all_quarantined().limit(limit).collect()
        return [row.asDict() for row in rows]

    def count_quarantined(self) -> int:
        """Return the number of rows for the quarantine."""
        if not self.quarantined:
            return 0
        return self._all_quarantined().count()

    def _all_quarantined(self) -> DataFrame:
        return union_by_name(*self.quarantined)


def write(spark: SparkSession, target: Target, prepared: PreparedRows, wap_id: str, summary: Mapping[str, str]) -> None:
    """Write prepared rows as a snapshot with a WAP id and further fields of its summary. Main does not refer to it."""
    # Spark sorts the rows of a task by partition, and has one file open at a time. Otherwise each hour has one open at
    # once, which takes a megabyte.
    writer = prepared.rows.writeTo(f"{CATALOG}.{target.table}").option("fanout-enabled", "false")
    if prepared.single_partition:
        writer = writer.option("distribution-mode", "none")
    for key, value in summary.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    spark.conf.set(WAP_ID, wap_id)
    try:
        if prepared.load == "append":
            writer.append()
        else:
            writer.overwrite(replaced_hours(target.time_column, prepared.hours))
    finally:
        spark.conf.unset(WAP_ID)


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
        without_hour = has_no_hour(source, start=build.start)
        landed = _landed_with_session(plan, span, source, schema.names)
        in_scope = in_hours | (without_hour & landed)
        if not source.has_versions:
            rows = rows.where(_may_be_in(source, plan.hour_numbers) | landed)
    if source.has_versions:
        rows = _rows_of_same_keys(build, rows, rows.where(in_scope), source)
    else:
        rows = rows.where(in_scope)
    classified = classify(rows, source, schema=schema, start=build.start)
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
    rejected = quarantine_rows(rows, source, schema=schema)
    for stored_hash in ("row_hash", FORMER_HASH):
        rejected = rejected.join(known, F.col(stored_hash) == F.col(HASH), "left_anti")
    return rejected.drop(FORMER_HASH)


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
    if source.landed_column != USUALLY_LANDED or "landing_date" not in columns or "landing_hour" not in columns:
        return F.lit(True)
    landings = plan.landings(waited=False)
    if not landings or span.from_snapshot_id is None:
        return F.lit(True)
    first_date, first_hour = min(landings)
    day = F.lit(first_date).cast("date")
    on_later_day = F.col("landing_date") > day
    on_same_day = F.col("landing_date") == day
    in_later_hour = F.col("landing_hour") >= first_hour
    return on_later_day | (on_same_day & in_later_hour)


def check_sources(build: TargetBuild, catalog: Catalog, plan: SessionPlan) -> None:
    """Check that Spark reads the files of the sources rightly; and all rows of the sources that nobody else counts.

    The rows of the driving source are counted when they are classified. Those of another source are counted only if
    other programs have added files to it.

    Raises:
        FilesMisread: Spark does not read a file rightly.
        RowsUnread: Spark reads fewer rows than the metadata contain.
    """
    for place, (source, span) in enumerate(build.sources(plan)):
        table = iceberg.load(catalog, source.table)
        if not has_foreign_files(table):
            continue
        check_files(table, source.table, live_paths(table, span.to_snapshot_id))
        if place == 0:
            continue
        least = readable.in_hours(table, source.table, span.to_snapshot_id, source.time_column, plan.hour_numbers)
        if least.timed:
            rows = within(build.read(source.table, span.to_snapshot_id), source.time_column, plan.hour_numbers)
            counted = F.count_if(is_in_bounds(source.time_column, least)).alias("timed")
            timed = aggregate(rows, [counted])["timed"]
            least.check(read=timed, timed=timed)


def least_in_hours(catalog: Catalog, source: Source, plan: SessionPlan) -> LeastRows:
    """Return the least rows that the driving source has in the planned hours."""
    table = iceberg.load(catalog, source.table)
    up_to = plan.sources[0].to_snapshot_id
    return readable.in_hours(table, source.table, up_to, source.time_column, plan.hour_numbers)


def least_appended(catalog: Catalog, source: Source, plan: SessionPlan) -> LeastRows:
    """Return the least rows that an append reads of the driving source."""
    span = plan.sources[0]
    return readable.appended(
        iceberg.load(catalog, source.table),
        source.table,
        span.from_snapshot_id,
        span.to_snapshot_id,
        source.time_column,
        left_out=plan.left_out,
    )
