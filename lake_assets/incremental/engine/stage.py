"""Preparing a session: its sources are read, their rows classified, and the target's rows built and staged.

What is staged is a snapshot that main does not refer to. A source is read as of a snapshot or between two. A
classified row counts, repeats a delivery, or belongs in quarantine. It has five more columns, `CLASSIFICATION`. All
functions are lazy, but for `count_rows`, and for `classify` of many rows. The schema of the rows is an argument,
because asking Spark for it takes a call each time.

An append takes the new rows alone. An overwrite rebuilds the planned hours from all sources, of all entities or of
those that changed, and leaves out hours whose rows equal the published ones.

The write is one Iceberg commit under `spark.wap.id`. It only appends or overwrites by a filter: under a WAP id, DELETE
and TRUNCATE go straight to main, and a dynamic overwrite cannot empty an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from math import ceil, inf
from typing import TYPE_CHECKING, Any

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
    any_of,
    column,
    columns,
    hash_sql,
    hour_of,
    table_in_sql,
    union_by_name,
)
from lake_assets.base.hours import FIRST_HOUR, LAST_HOUR, hour_key
from lake_assets.base.sql_text import is_true
from lake_assets.base.time_filters import before, hours_condition, moment, replaced_hours, within
from lake_assets.connections.row_checkpoint import aggregate, checkpoint_and_aggregate, checkpoint_rows
from lake_assets.incremental.declaration import LANDED as USUALLY_LANDED
from lake_assets.incremental.declaration import Sequential, SessionContext, Source, Stateless, Target
from lake_assets.incremental.engine import iceberg, readable
from lake_assets.incremental.engine.columns import with_present_columns
from lake_assets.incremental.engine.compare import unchanged_partitions
from lake_assets.incremental.engine.key_index import KeyIndex, distinct_values, local_rows
from lake_assets.incremental.engine.model import Load, RowCounts, SessionPlan, SourceRange
from lake_assets.incremental.engine.readable import LeastRows
from lake_assets.incremental.engine.user_code import call_function

if TYPE_CHECKING:
    from pyspark.sql import WindowSpec

SINGLE_PARTITION_ROWS = 50_000
"""Most rows that are handled as one partition, so that nothing is shuffled: tasks are the main cost of few rows."""

FEW_PARTITIONS = 20
"""Most partitions of so many rows that others are merged into. Of more rows, a table's own partitions are as good.

Iceberg reads four small files in a task, so an hourly table gives a task for each hour or so.
"""


def read_at(spark: SparkSession, catalog: Catalog, table: str, snapshot_id: int | None) -> DataFrame:
    """Return the rows of a table as of a snapshot, with the columns that the table has now; no rows for None."""
    if snapshot_id is None:
        return spark.table(table_in_sql(table)).where(F.lit(False))
    reader = spark.read.option("versionAsOf", str(snapshot_id)).options(**iceberg.SMALL_FILES)
    return with_present_columns(reader.table(table_in_sql(table)), iceberg.load(catalog, table), snapshot_id)


def read_appended(spark: SparkSession, catalog: Catalog, source: SourceRange) -> DataFrame:
    """Return the rows that the snapshots of a range appended. Only for a range that metadata shows to be appends."""
    if source.from_snapshot_id is None:
        return read_at(spark, catalog, source.source, source.to_snapshot_id)
    if source.from_snapshot_id == source.to_snapshot_id:
        return read_at(spark, catalog, source.source, None)  # Iceberg refuses an empty range
    reader = spark.read.format("iceberg")
    reader = reader.option("start-snapshot-id", str(source.from_snapshot_id))
    reader = reader.option("end-snapshot-id", str(source.to_snapshot_id))
    return reader.load(table_in_sql(source.source))


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
        SourceError: Spark has read fewer rows than `least`.
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


WAP_ID = "spark.wap.id"

PERTURBATION = 1e-14
"""How much a perturbed rebuild changes each floating point number of its sources at most, as a part of it.

Two orders of addition give two sums. By how much they differ is not seen in the sums, but is of the size of the numbers
that were added, as is what the perturbation changes: about as much as the rounding of some hundred additions."""

FORMER_HASH = "former_hash"
"""Column of rows for the quarantine: the hash that rows had there before it told all values apart."""

JSON_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Of the rows in quarantine, for people."""


@dataclass(frozen=True)
class PreparedRows:
    """The rows of one session, not yet written.

    Attributes:
        stager: What prepared them.
        plan: What was prepared: the session's plan, without the hours that its audits hold back.
        load: `append`, `overwrite`, or `none` (at most rows for the quarantine).
        hours: The hours that an overwrite replaces; for an append, the hours of its rows' source times.
        rows: Rows to write, with the columns of the target.
        kept: Rows of the driving source that should appear in the target, with the columns of the source.
        row_counts: What became of the rows of the driving source.
        quarantined: Rows that are new to the quarantine (source, row_hash, reason, row; all strings), of each source
            that may have any.
        unchanged: Planned hours whose rows equal the published ones; `hours` and `rows` leave them out.
        rows_unchanged: Rows in `unchanged`.
    """

    stager: Stager
    plan: SessionPlan
    load: Load
    hours: tuple[int, ...]
    rows: DataFrame
    kept: DataFrame
    row_counts: RowCounts
    quarantined: Sequence[DataFrame]
    unchanged: tuple[int, ...] = ()
    rows_unchanged: int = 0

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
        return [row.asDict() for row in union_by_name(*self.quarantined).limit(limit).collect()]

    def count_quarantined(self) -> int:
        """Return the number of rows for the quarantine."""
        return union_by_name(*self.quarantined).count() if self.quarantined else 0


@dataclass(frozen=True)
class Stager:
    """Prepares the sessions of one target on one Spark session.

    Attributes:
        catalog: Has the metadata of the tables, by which it is checked that Spark reads all of their rows.
        start: First hour of the pipeline; rows before it are not valid.
        main: The target's snapshot to build on; None for an empty target.
        complete_through: The target's before the session; rows of hours up to it count as late.
        last_built: Last hour that may have been built before. Hours up to it whose rows equal the published ones are
            left out; None leaves none out.
        overdue: Hours to be built in any case, even if they have no rows.
        max_rows: About how many rows the session reads of any table, at most; infinite if that is not known.
        index: Finds rows by a column's values; None to read tables whole.
        is_perturbed: Whether the floating point numbers that the transform gets are changed by a random part of
            `PERTURBATION`. Such rows are compared, and never published.
    """

    spark: SparkSession
    target: Target
    _: KW_ONLY
    catalog: Catalog
    start: int
    main: int | None
    complete_through: int | None
    last_built: float | None = None
    overdue: Container[int] = ()
    max_rows: float = inf
    index: KeyIndex | None = None
    is_perturbed: bool = False

    def prepare(self, plan: SessionPlan) -> PreparedRows:
        """Read and transform what the plan names.

        An append becomes an overwrite if one of its deliveries may replace a row that the target has already.

        Raises:
            SourceError: Spark does not read a file rightly.
            LakeError: The transform raised an error, or its result lacks a column.
            SourceError: Spark reads fewer rows of a source than its metadata contain.
        """
        self._check_sources(plan)
        appended = self._append(plan) if plan.load == "append" else None
        return self._overwrite(plan) if appended is None else appended

    def prepare_published(self, plan: SessionPlan) -> PreparedRows:
        """Return the published rows of the planned hours, with what the driving source has for them.

        Raises:
            SourceError: Spark does not read a file rightly, or not all rows of a source.
        """
        self._check_sources(plan)
        kept, counts, quarantined = self._driving_rows(plan)
        rows = within(self._published(), self.target.time_column, plan.hour_numbers)
        return PreparedRows(self, plan, "none", plan.hour_numbers, rows, kept, counts, quarantined)

    # An append: the new rows alone

    def _append(self, plan: SessionPlan) -> PreparedRows | None:
        """Prepare the new rows, and those that have waited, without those of held and deferred hours.

        Returns:
            None if a new row may replace a stored one, or if nobody knows any more which rows the source had before.
        """
        target, source, span = self.target, self.target.sources[0], plan.sources[0]
        table = iceberg.load(self.catalog, source.table)
        # An append of versions is planned only if no new key has a row already.
        may_be_known = source.key is not None and not source.has_versions and self.main is not None and bool(plan.hours)
        starts = [span.from_snapshot_id, *(late.from_snapshot_id for late in plan.late_rows)]
        if may_be_known and any(each is not None and table.snapshot_by_id(each) is None for each in starts):
            return None  # what the source had before has expired
        parts = [read_appended(self.spark, self.catalog, span)]
        for late in plan.late_rows:
            earlier = replace(span, from_snapshot_id=late.from_snapshot_id, to_snapshot_id=late.to_snapshot_id)
            parts.append(within(read_appended(self.spark, self.catalog, earlier), source.time_column, late.hours))
        rows = coalesce_if_few(union_by_name(*parts), self.max_rows)
        schema = rows.schema
        # Rows are classified first: a version in an hour that is left out may supersede one of another hour.
        rows = classify(rows, source, schema=schema, start=self.start, number=self.max_rows)
        if plan.left_out:
            rows = rows.where(~F.coalesce(hours_condition(source.time_column, plan.left_out), F.lit(False)))
        if may_be_known:
            known = self._read_before(plan)
            if is_few(self.max_rows):
                known = known.hint("shuffle_hash")  # else Spark broadcasts it, which is a job of its own
            rows = classify_against_earlier(rows, known, source, start=self.start)
        least = readable.least_rows(
            table,
            source.table,
            source.time_column,
            after=span.from_snapshot_id,
            up_to=span.to_snapshot_id,
            left_out=plan.left_out,
        )
        rows, counts = count_rows(rows, source, complete_through=self.complete_through, hours=None, least=least)
        if counts.contested:
            return None
        kept = rows.where(is_counted())
        return PreparedRows(
            stager=self,
            plan=plan,
            load="append",
            hours=tuple(sorted(target.grain.whole(counts.hours))),
            rows=self._transform(plan, counts.hours, [kept.drop(*CLASSIFICATION)]),
            kept=kept,
            row_counts=counts,
            quarantined=[self._new_to_quarantine(rows, source, schema)] if counts.quarantined else [],
        )

    def _read_before(self, plan: SessionPlan) -> DataFrame:
        """Return the rows of an append's hours that earlier sessions have read of the driving source.

        Of hours whose rows have waited, these are the rows before them.
        """
        source, span = self.target.sources[0], plan.sources[0]
        snapshots = dict.fromkeys(plan.hour_numbers, span.from_snapshot_id)
        for late in reversed(plan.late_rows):
            snapshots |= dict.fromkeys(late.hours, late.from_snapshot_id)
        parts = []
        for snapshot in dict.fromkeys(snapshots.values()):
            hours = [hour for hour, each in snapshots.items() if each == snapshot]
            parts.append(within(self._read(span.source, snapshot), source.time_column, sorted(hours)))
        return union_by_name(*parts)

    # An overwrite: hours rebuilt from all sources

    def _overwrite(self, plan: SessionPlan) -> PreparedRows:
        """Prepare the planned hours. A plan without hours may have rows to quarantine."""
        kept, counts, quarantined = self._driving_rows(plan)
        for source, span in self._sources(plan)[1:]:
            if not source.trusted:
                rows, schema = self._classified(source, span, plan)
                quarantined.append(self._new_to_quarantine(rows, source, schema))
        rows, unchanged, rows_unchanged = kept, tuple[int, ...](), 0
        if plan.hours:
            build = self._rebuild_all_entities if plan.changed_through is None else self._rebuild_changed_entities
            rows, unchanged, rows_unchanged = build(plan, kept)
        changed = tuple(hour for hour in plan.hour_numbers if hour not in unchanged)
        return PreparedRows(
            stager=self,
            plan=plan,
            load="overwrite" if plan.hours else "none",
            hours=changed,
            rows=within(rows, self.target.time_column, changed) if unchanged else rows,
            kept=kept,
            row_counts=counts,
            quarantined=quarantined,
            unchanged=unchanged,
            rows_unchanged=rows_unchanged,
        )

    def _rebuild_all_entities(self, plan: SessionPlan, kept: DataFrame) -> tuple[DataFrame, tuple[int, ...], int]:
        """Build the planned hours. Return their rows, the hours that equal the published ones, and the rows in these.

        Args:
            kept: Rows of the driving source within the planned hours that should appear in the target, classified.
        """
        hours, mode = plan.hour_numbers, self.target.mode
        if isinstance(mode, Stateless):
            rows = self._transform(plan, hours, [kept.drop(*CLASSIFICATION)])
        elif isinstance(mode, Sequential):
            rows = self._build(plan, hours, published=self._published())
        else:
            rows = self._build(plan, hours, entities=self._indexed_entities(plan, kept, mode.entity))
        rows = within(rows, self.target.time_column, hours)
        last_built = -inf if self.main is None or self.last_built is None else self.last_built
        built_before = [hour for hour in hours if hour <= last_built]
        if not built_before:
            return rows, (), 0
        rows = checkpoint_rows(rows)
        same = unchanged_partitions(self.target, rows, self._published(), built_before, overdue=self.overdue)
        return rows, tuple(sorted(self.target.grain.whole(same))), sum(same.values())

    def _rebuild_changed_entities(self, plan: SessionPlan, kept: DataFrame) -> tuple[DataFrame, tuple[int, ...], int]:
        """Rebuild the changed entities alone in the hours up to `changed_through`, and all entities in those after it.

        Up to there, the rows of all other entities are as published. Returns as `_rebuild_all_entities` does.
        """
        mode, time_column, through = self.target.mode, self.target.time_column, plan.changed_through
        assert isinstance(mode, Sequential) and mode.entity is not None and through is not None  # noqa: PT018
        entity = mode.entity
        read_hours = [hour for hour in (*plan.hour_numbers, *plan.skipped) if hour <= through]
        parts = []
        for source, span in self._sources(plan):
            if span.appends_only:
                changed = read_appended(self.spark, self.catalog, span)
            else:
                earlier = self._read(span.source, span.from_snapshot_id)
                changed = differing(earlier, self._read(span.source, span.to_snapshot_id))
            parts.append(within(changed, source.time_column, read_hours).select(column(entity).alias(ENTITY)))
        ids = checkpoint_rows(coalesce_if_few(union_by_name(*parts).distinct(), self.max_rows))

        published = self._published().select(*self.target.columns)
        published_changed = of_entities(published, entity, ids)
        hours = [hour for hour in plan.hour_numbers if hour <= through]
        rebuilt = self._build(
            plan, hours, published=published_changed, limit=lambda rows: of_entities(rows, entity, ids)
        )
        rebuilt = checkpoint_rows(coalesce_if_few(within(rebuilt, time_column, hours), self.max_rows))
        same: dict[int, int] = {}
        if self.last_built is not None:
            same = unchanged_partitions(self.target, rebuilt, published_changed, hours, overdue=self.overdue)
        others = of_entities(within(published, time_column, hours), entity, ids, how="left_anti")
        rows = rebuilt.unionByName(others)

        new_hours = [hour for hour in plan.hour_numbers if hour > through]
        if new_hours:
            # They build on the state of the hours before as rebuilt here.
            state = before(published, time_column, hours[0]).unionByName(rows)
            rows = rows.unionByName(within(self._build(plan, new_hours, published=state), time_column, new_hours))
        unchanged = tuple(sorted(self.target.grain.whole(same)))
        rows_unchanged = within(published, time_column, unchanged).count() if unchanged else 0
        return coalesce_if_few(rows, self.max_rows), unchanged, rows_unchanged

    # The target's rows, by its transform

    def _build(
        self,
        plan: SessionPlan,
        hours: Sequence[int],
        *,
        published: DataFrame | None = None,
        limit: Callable[[DataFrame], DataFrame] | None = None,
        entities: set[object] | None = None,
    ) -> DataFrame:
        """Build hours from the valid rows of the sources up to the last of them, each delivery once.

        If a source keeps all versions, those of later hours and deletions, too: a version is valid until the next.

        Args:
            hours: Ascending.
            published: The target's rows before the session, for a sequential target.
            limit: Limits the rows of each source; None for all rows.
            entities: The entities that the hours depend on, to find their rows by indexes; None to read all rows.
        """
        inputs = []
        for source, span in self._sources(plan):
            found = None if entities is None else self._indexed_rows(source, span, entities)
            rows = self._read(source.table, span.to_snapshot_id) if found is None else local_rows(self.spark, found)
            if not source.has_versions:
                rows = before(rows, source.time_column, hours[-1] + 1)
            if not source.trusted:
                rows = classify(rows, source, schema=rows.schema, start=self.start)
                needed = (COUNTED, DELETION) if source.keep == "all" else (COUNTED,)
                rows = rows.where(is_valid() & F.col(DELIVERY).isin(*needed)).drop(*CLASSIFICATION)
                if source.keep != "all":
                    # Only now: a later version may stand in a later hour.
                    rows = before(rows, source.time_column, hours[-1] + 1)
            inputs.append(rows if limit is None else limit(rows))
        return self._transform(plan, hours, inputs, published)

    def _transform(
        self, plan: SessionPlan, hours: Sequence[int], inputs: Sequence[DataFrame], published: DataFrame | None = None
    ) -> DataFrame:
        if self.is_perturbed:
            inputs = [perturbed(rows) for rows in inputs]
            published = None if published is None else perturbed(published)
        context = SessionContext(plan.session_id, tuple(hours), published, self.target.grain)
        return call_function(self.target, context, inputs)

    def _indexed_entities(self, plan: SessionPlan, kept: DataFrame, entity: str | None) -> set[object] | None:
        """Return the ids of the entities in the planned hours, if an index of any source may find their rows.

        Returns:
            None if no source has an index, or if the entities are too many or one has no id: all rows are to be read.
        """
        if entity is None or self.index is None:
            return None
        if not any(self.index.covers(span.source, span.to_snapshot_id, entity) for span in plan.sources):
            return None
        entities = distinct_values(kept, entity)
        return None if entities is None or None in entities else entities

    def _indexed_rows(self, source: Source, span: SourceRange, entities: set[object]) -> pa.Table | None:
        """Return the rows of some entities in a source; of each row, all deliveries, whatever entity they name.

        Returns:
            None for a source without an index: it has few files, or so many rows that Spark reads it faster.
        """
        mode, index = self.target.mode, self.index
        assert not isinstance(mode, Stateless) and mode.entity is not None and index is not None  # noqa: PT018
        if source.has_versions:
            return None
        rows = index.rows(source.table, span.to_snapshot_id, mode.entity, entities)
        if rows is None or source.trusted or source.key is None or source.key == mode.entity:
            return rows
        keys = set(rows.column(source.key).drop_null().to_pylist())
        return index.rows(source.table, span.to_snapshot_id, source.key, keys)

    # Rows of the sources

    def _sources(self, plan: SessionPlan) -> list[tuple[Source, SourceRange]]:
        """Return the sources, the driving one first, each with its range in a plan."""
        return list(zip(self.target.sources, plan.sources, strict=True))

    def _read(self, table: str, snapshot_id: int | None) -> DataFrame:
        return coalesce_if_few(read_at(self.spark, self.catalog, table, snapshot_id), self.max_rows)

    def _published(self) -> DataFrame:
        return self._read(self.target.table, self.main)

    def _check_sources(self, plan: SessionPlan) -> None:
        """Check that Spark reads the files of the sources rightly; and all rows of the sources that nobody else counts.

        Audits cannot tell: they may read a source by the same reader. The rows of the driving source are counted when
        they are classified. Those of another source are counted only if other programs have added files to it.
        """
        for place, (source, span) in enumerate(self._sources(plan)):
            table = iceberg.load(self.catalog, source.table)
            if not readable.has_foreign_files(table):
                continue
            readable.check_files(table, source.table, span.to_snapshot_id)
            if place == 0:
                continue
            least = self._least_in_hours(source, span, plan)
            if least.timed:
                rows = within(self._read(source.table, span.to_snapshot_id), source.time_column, plan.hour_numbers)
                is_counted_row = is_in_bounds(source.time_column, least)
                timed = aggregate(rows, [F.count_if(is_counted_row).alias("timed")])["timed"]
                least.check(read=timed, timed=timed)

    def _least_in_hours(self, source: Source, span: SourceRange, plan: SessionPlan) -> readable.LeastRows:
        """Return the least rows that a source has in the planned hours, by metadata."""
        table = iceberg.load(self.catalog, source.table)
        up_to, hours = span.to_snapshot_id, plan.hour_numbers
        return readable.least_rows(table, source.table, source.time_column, up_to=up_to, hours=hours)

    def _driving_rows(self, plan: SessionPlan) -> tuple[DataFrame, RowCounts, list[DataFrame]]:
        """Return the rows of the driving source in the planned hours that count, classified.

        Returns:
            The rows, what became of all rows, and those that are new to the quarantine.
        """
        source, span = self.target.sources[0], plan.sources[0]
        rows, schema = self._classified(source, span, plan)
        rows, counts = count_rows(
            rows,
            source,
            complete_through=self.complete_through,
            hours=plan.hour_numbers,
            least=self._least_in_hours(source, span, plan),
        )
        quarantined = [self._new_to_quarantine(rows, source, schema)] if counts.quarantined else []
        return within(rows, source.time_column, plan.hour_numbers).where(is_counted()), counts, quarantined

    def _classified(self, source: Source, span: SourceRange, plan: SessionPlan) -> tuple[DataFrame, StructType]:
        """Return the classified rows of the planned hours, and those without an hour that landed with this session.

        Returns:
            The rows, and the columns of the source.
        """
        rows, hours = self._read(source.table, span.to_snapshot_id), plan.hour_numbers
        schema = rows.schema
        in_scope = hours_condition(source.time_column, hours)
        if not source.trusted and span.from_snapshot_id != span.to_snapshot_id:
            landed = _landed_with_session(plan, span, source, schema.names)
            has_no_hour = any_of(flaw for flaw, _ in _flaws_of_hour(source, self.start))
            in_scope = in_scope | (has_no_hour & landed)
            if not source.has_versions:
                # The scope compares columns, which Iceberg cannot evaluate: it leaves out files by this wider condition
                # on the time. If it contained the condition on the hours as it is in the scope, Spark would factor that
                # out, and hand Iceberg neither.
                time, may_be_in = column(source.time_column), F.lit(False)
                if hours:
                    may_be_in = (time >= moment(hours[0] - 1)) & (time < moment(hours[-1] + 2))
                rows = rows.where(may_be_in | landed)
        if not source.has_versions:
            rows = classify(rows.where(in_scope), source, schema=schema, start=self.start, number=self.max_rows)
            return rows, schema
        if not is_few(self.max_rows):  # to classify few rows of all keys is cheaper than to read the table twice
            key = column(str(source.key))
            keys = rows.where(in_scope).select(key.alias(KEY)).distinct()
            rows = rows.join(keys, key.eqNullSafe(F.col(KEY)), "left_semi")
        # Filtered only when classified: a version outside may supersede one of the scope.
        return classify(rows, source, schema=schema, start=self.start).where(in_scope), schema

    def _new_to_quarantine(self, rows: DataFrame, source: Source, schema: StructType) -> DataFrame:
        """Return the classified rows that are not valid, and not quarantined yet for this target.

        The version before stored another hash of a row: such a row is known by it.
        """
        row = F.struct(*columns(schema.names))
        rejected = rows.where(~is_valid()).select(
            F.lit(source.table).alias("source"),
            F.col(HASH).alias("row_hash"),
            F.col(REASON).alias("reason"),
            F.to_json(row, JSON_OPTIONS).alias("row"),
            F.sha2(F.to_json(row), 256).alias(FORMER_HASH),
        )
        quarantine = self.spark.table(table_in_sql(iceberg.QUARANTINE))
        is_known = (F.col("target") == self.target.table) & (F.col("source") == source.table)
        known = quarantine.where(is_known).select(F.col("row_hash").alias(HASH))
        for stored_hash in ("row_hash", FORMER_HASH):
            rejected = rejected.join(known, F.col(stored_hash) == F.col(HASH), "left_anti")
        return rejected.drop(FORMER_HASH)


def write(prepared: PreparedRows, wap_id: str, summary: Mapping[str, str]) -> None:
    """Write prepared rows as a snapshot with a WAP id and further fields of its summary. Main does not refer to it."""
    spark, target = prepared.stager.spark, prepared.stager.target
    # Spark sorts the rows of a task by partition, and has one file open at a time. Otherwise each hour has one open at
    # once, which takes a megabyte.
    writer = prepared.rows.writeTo(table_in_sql(target.table)).option("fanout-enabled", "false")
    if is_few(prepared.stager.max_rows):
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


def _landed_with_session(plan: SessionPlan, span: SourceRange, source: Source, names: Sequence[str]) -> Column:
    """Return the condition on rows that landed in the partitions of a session, or later.

    All rows may have, if the plan names no landing partition, or the source was not read before or has none.
    """
    landings = plan.landings(waited=False)
    has_partitions = source.landed_column == USUALLY_LANDED and {"landing_date", "landing_hour"}.issubset(names)
    if not has_partitions or not landings or span.from_snapshot_id is None:
        return F.lit(True)
    first_date, first_hour = min(landings)
    date, day = F.col("landing_date"), F.lit(first_date).cast("date")
    return (date > day) | ((date == day) & (F.col("landing_hour") >= first_hour))


def of_entities(rows: DataFrame, entity: str, ids: DataFrame, how: str = "left_semi") -> DataFrame:
    """Return the rows of some entities; by `left_anti`, those of all others.

    Args:
        entity: The column of an entity's id. Null is an id like any other.
        ids: The ids, as column `ENTITY`.
    """
    # The plan made sure that they are few. Broadcast, they filter rows where those are read, without a shuffle.
    return rows.join(F.broadcast(ids), column(entity).eqNullSafe(F.col(ENTITY)), how)


def differing(earlier: DataFrame, later: DataFrame) -> DataFrame:
    """Return the rows that occur more often in one of two states of a table than in the other, each once.

    The columns are those that both states have.
    """
    names = set(earlier.columns)
    common = columns(name for name in later.columns if name in names)
    removed = earlier.select(*common, F.lit(-1).alias(SIGN))
    added = later.select(*common, F.lit(1).alias(SIGN))
    balance = removed.union(added).groupBy(*common).agg(F.sum(SIGN).alias(SIGN))
    return balance.where(F.col(SIGN) != 0).drop(SIGN)


def perturbed(rows: DataFrame) -> DataFrame:
    """Return rows whose floating point numbers are changed at random by at most `PERTURBATION`, as doubles."""
    selected = []
    for place, field in enumerate(rows.schema.fields):
        value = column(field.name)
        if field.dataType.typeName() in ("double", "float"):
            value = value.cast("double") * (1 + PERTURBATION * (2 * F.rand(place) - 1))
        selected.append(value.alias(field.name))
    return rows.select(*selected)
