"""Staging: read the sources of a session, set rows aside, build the target's rows, write them where nobody reads them yet.

The write is one Iceberg commit under `spark.wap.id`; only append and overwrite-by-filter are used, for under a WAP id
DELETE and TRUNCATE go straight to main, and a dynamic overwrite cannot empty an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from lake_assets.incremental.declaration import SessionContext, Source, Stateless, Target
from lake_assets.incremental.hours import hour_key, hour_start, ranges
from lake_assets.incremental.session import SessionPlan, SourceRange

if TYPE_CHECKING:
    from datetime import datetime

CATALOG = "lake"
WAP_ID = "spark.wap.id"
_HASH, _REASON, _RANK, _HOUR = "_row_hash", "_reason", "_delivery", "_hour"
_OWN = (_HASH, _REASON, _RANK, _HOUR)


@dataclass(frozen=True)
class Fates:
    """What became of the driving source's rows: counts, the event hours of those kept, and how late they came.

    late: kept rows whose hour had been declared complete before. lateness: landed_at minus event time, minutes.
    """

    read: int = 0
    duplicates: int = 0
    quarantined: int = 0
    hours: tuple[int, ...] = ()
    late: int = 0
    lateness_p50: float | None = None
    lateness_p95: float | None = None

    @property
    def kept(self) -> int:
        return self.read - self.duplicates - self.quarantined


@dataclass(frozen=True)
class Staging:
    """One prepared session, not yet written.

    rows: the target's rows. load: `append` or `overwrite`; hours: what is overwritten, or the hours appended to.
    kept: rows of the driving source that should show in the target. quarantined: rows set aside, with reason and hash.
    """

    load: str
    hours: tuple[int, ...]
    rows: DataFrame
    kept: DataFrame
    quarantined: DataFrame | None
    fates: Fates
    cached: list[DataFrame] = field(default_factory=list)

    def release(self) -> None:
        for frame in self.cached:
            with suppress(Exception):  # the server may be gone; then so is its cache
                frame.unpersist()


def within(rows: DataFrame, time_column: str, hours: Sequence[int]) -> DataFrame:
    """The rows whose time lies in the hours, which may have gaps."""
    return rows.where(hours_condition(time_column, hours))


def before(rows: DataFrame, time_column: str, hour: int) -> DataFrame:
    """The rows whose time lies before an hour."""
    return rows.where(F.col(time_column) < _literal(hour))


def hours_condition(time_column: str, hours: Sequence[int]) -> Column:
    """Time in the hours, as ranges that end on hours: so Iceberg can tell whole partitions by it."""
    spans = [
        (F.col(time_column) >= _literal(first)) & (F.col(time_column) < _literal(last + 1)) for first, last in ranges(hours)
    ]
    return reduce(lambda a, b: a | b, spans, F.lit(False)) if spans else F.lit(False)


def read_at(spark: SparkSession, table: str, snapshot_id: int | None) -> DataFrame:
    """A table as of a snapshot; no rows when it had none."""
    if snapshot_id is None:
        return spark.table(f"{CATALOG}.{table}").where(F.lit(False))
    return spark.sql(f"SELECT * FROM {CATALOG}.{table} VERSION AS OF {int(snapshot_id)}")


def read_appended(spark: SparkSession, source: SourceRange) -> DataFrame:
    """The rows that the snapshots of a range appended. Only for ranges that the metadata shows to be appends."""
    if source.from_snapshot_id is None or source.from_snapshot_id == source.to_snapshot_id:
        at = read_at(spark, source.source, source.to_snapshot_id)
        return at if source.from_snapshot_id is None else at.where(F.lit(False))
    reader = spark.read.format("iceberg")
    reader = reader.option("start-snapshot-id", str(source.from_snapshot_id))
    return reader.option("end-snapshot-id", str(source.to_snapshot_id)).load(f"{CATALOG}.{source.source}")


class Stager:
    """Prepares and writes the sessions of one target on one Spark session."""

    def __init__(
        self, spark: SparkSession, target: Target, *, start: int, main: int | None, complete_through: int | None
    ) -> None:
        """main: the target's snapshot to build on. complete_through: the target's, before the session; tells late rows."""
        self.spark, self.target, self.start, self.main = spark, target, start, main
        self.complete_through = complete_through

    def prepare(self, plan: SessionPlan) -> Staging:
        """Read and transform what the plan names; may turn an append into an overwrite, when a delivery beats a stored row."""
        if plan.load == "append":
            staging = self._appended(plan)
            if staging is not None:
                return staging
        return self._overwritten(plan)

    def write(self, staging: Staging, wap_id: str) -> None:
        """Write the rows as one unreferenced snapshot that carries the WAP id."""
        writer = staging.rows.writeTo(f"{CATALOG}.{self.target.table}")
        self.spark.conf.set(WAP_ID, wap_id)
        try:
            if staging.load == "append":
                writer.append()
            else:
                writer.overwrite(hours_condition(self.target.time_column, staging.hours))
        finally:
            self.spark.conf.unset(WAP_ID)

    def _appended(self, plan: SessionPlan) -> Staging | None:
        """The new rows alone; None when one of them beats a row already stored, so that its hour must be rebuilt."""
        source = self.target.sources[0]
        rows = self._classified(read_appended(self.spark, plan.sources[0]), source).persist()
        fates = self._fates(rows, source)
        judged, contested, cached = rows, 0, [rows]
        if self._can_match(source) and self.main is not None and fates.hours:
            judged = self._against_stored(rows, source, fates.hours).persist()
            cached.append(judged)
            contested, repeated = self._stored_deliveries(judged)
            fates = _with_duplicates(fates, repeated)
        if contested:
            Staging("append", (), rows, rows, None, fates, cached).release()
            return None
        kept = judged.where(F.col(_REASON).isNull() & (F.col(_RANK) == 1))
        built = self._transform(plan.session_id, fates.hours, [_plain(kept)])
        return Staging("append", fates.hours, built, kept, self._quarantined(judged, fates), fates, cached)

    def _overwritten(self, plan: SessionPlan) -> Staging:
        """The planned hours, recomputed from all sources as of the plan's snapshots."""
        hours = plan.hour_numbers
        source, span = self.target.sources[0], plan.sources[0]
        everything = read_at(self.spark, span.source, span.to_snapshot_id)
        in_scope = self._classified(self._in_scope(everything, source, plan, hours), source)
        fates = self._fates(in_scope.persist(), source)
        kept = within(in_scope, source.time_column, hours).where(F.col(_REASON).isNull() & (F.col(_RANK) == 1))
        if isinstance(self.target.mode, Stateless):
            inputs = [_plain(kept)]
        else:
            inputs = [self._history(s, r, hours[-1]) for s, r in zip(self.target.sources, plan.sources, strict=True)]
        built = within(self._transform(plan.session_id, hours, inputs), self.target.time_column, hours)
        return Staging("overwrite", hours, built, kept, self._quarantined(in_scope, fates), fates, [in_scope])

    def _transform(self, session_id: str, hours: Sequence[int], inputs: list[DataFrame]) -> DataFrame:
        published = None if isinstance(self.target.mode, Stateless) else read_at(self.spark, self.target.table, self.main)
        context = SessionContext(session_id, tuple(hours), published)
        return self.target.transform(context, *inputs).select(*self.target.columns)

    def _history(self, source: Source, span: SourceRange, last_hour: int) -> DataFrame:
        """All clean rows of a source up to the end of an hour, each delivery once."""
        rows = before(read_at(self.spark, source.table, span.to_snapshot_id), source.time_column, last_hour + 1)
        if _trusted(source):
            return rows
        return _plain(self._classified(rows, source).where(F.col(_REASON).isNull() & (F.col(_RANK) == 1)))

    def _in_scope(self, rows: DataFrame, source: Source, plan: SessionPlan, hours: Sequence[int]) -> DataFrame:
        """The rows of the hours, and rows of no hour that arrived with this session: they belong to quarantine."""
        condition = hours_condition(source.time_column, hours)
        if not _trusted(source) and plan.kind == "session":
            time = F.col(source.time_column)
            nowhere = time.isNull() | (time < _literal(self.start))
            if "landed_at" in rows.columns:
                nowhere = (nowhere | (time > F.col("landed_at") + F.expr("INTERVAL 1 HOUR"))) & self._new(plan)
            condition = condition | nowhere
        return rows.where(condition)

    def _new(self, plan: SessionPlan) -> Column:
        """Landed with the partitions that this session processes; without partitions, everything may have."""
        landed = [(str(u["landing_date"]), u["landing_hour"]) for u in plan.processing_uris if "landing_hour" in u]
        if not landed:
            return F.lit(True)
        first_date, first_hour = min(landed)
        date, hour = F.col("landing_date"), F.col("landing_hour")
        return (date > F.lit(first_date).cast("date")) | ((date == F.lit(first_date).cast("date")) & (hour >= first_hour))

    def _classified(self, rows: DataFrame, source: Source) -> DataFrame:
        """Rows with hash, quarantine reason (null: none), delivery number (1: the one that counts) and event hour."""
        time = F.col(source.time_column)
        found = rows.withColumn(_HASH, F.sha2(F.to_json(F.struct(*rows.columns)), 256))
        found = found.withColumn(_REASON, self._reason(rows, source))
        found = found.withColumn(_HOUR, F.floor(F.unix_timestamp(time) / 3600))
        if source.key is None:
            return found.withColumn(_RANK, F.lit(1))
        # The time column is among the partition columns so that Spark pushes a filter on it below the window.
        order = [F.col(c) for c in ("landed_at", "batch_id") if c in rows.columns] + [F.col(_HASH)]
        window = Window.partitionBy(source.key, source.time_column, F.col(_REASON).isNull()).orderBy(*order)
        return found.withColumn(_RANK, F.row_number().over(window))

    def _reason(self, rows: DataFrame, source: Source) -> Column:
        if _trusted(source):
            return F.lit(None).cast("string")
        time = F.col(source.time_column)
        tests = [
            (F.col(source.key).isNull() if source.key else F.lit(False), f"{source.key} is null"),
            (time.isNull(), f"{source.time_column} is null"),
            (time < _literal(self.start), f"{source.time_column} is before the declared start, {hour_key(self.start)}"),
        ]
        if "landed_at" in rows.columns:
            late = time > F.col("landed_at") + F.expr("INTERVAL 1 HOUR")
            tests.append((late, f"{source.time_column} is over an hour after landed_at"))
        tests += [(F.expr(rule.where), rule.reason) for rule in source.rules]
        return F.coalesce(*[F.when(condition, F.lit(reason)) for condition, reason in tests])

    def _fates(self, rows: DataFrame, source: Source) -> Fates:
        """One pass over the classified rows."""
        fine = F.col(_REASON).isNull()
        kept = fine & (F.col(_RANK) == 1)
        measures = [
            F.count("*").alias("read"),
            F.count_if(fine & (F.col(_RANK) > 1)).alias("duplicates"),
            F.count_if(~fine).alias("quarantined"),
            F.sort_array(F.collect_set(F.when(fine, F.col(_HOUR)))).alias("hours"),
            F.count_if(kept & (F.col(_HOUR) <= F.lit(self._complete()))).alias("late"),
        ]
        if "landed_at" in rows.columns:
            minutes = (F.unix_micros("landed_at") - F.unix_micros(source.time_column)) / 60_000_000
            measures += [F.percentile_approx(F.when(kept, minutes), [0.5, 0.95]).alias("lateness")]
        row = rows.agg(*measures).first()
        assert row is not None  # an aggregate without groups always has one row
        lateness = (row["lateness"] if "lateness" in row else None) or [None, None]
        return Fates(
            row["read"], row["duplicates"], row["quarantined"], tuple(row["hours"]), row["late"], lateness[0], lateness[1]
        )

    def _complete(self) -> int:
        return -1 if self.complete_through is None else self.complete_through

    def _can_match(self, source: Source) -> bool:
        return source.key is not None and len(self.target.key) == 1

    def _against_stored(self, rows: DataFrame, source: Source, hours: Sequence[int]) -> DataFrame:
        """The new rows, numbered 2 where the target has the row already, and 0 where that one might have to yield."""
        stored = within(read_at(self.spark, self.target.table, self.main), self.target.time_column, hours)
        landed = F.col("landed_at") if "landed_at" in self.target.columns else F.lit(None).cast("timestamp")
        stored = stored.select(
            F.col(self.target.key[0]).alias("_key"), F.col(self.target.time_column).alias("_time"), landed.alias("_landed"),
            F.lit(True).alias("_stored"),
        )
        assert source.key is not None
        joined = rows.join(
            stored, (F.col(source.key) == F.col("_key")) & (F.col(source.time_column) == F.col("_time")), "left"
        )
        later = F.col("_landed") < F.col("landed_at") if "landed_at" in rows.columns else F.lit(False)
        first = F.col(_REASON).isNull() & (F.col(_RANK) == 1) & F.col("_stored").isNotNull()
        number = F.when(first & later, 2).when(first, 0).otherwise(F.col(_RANK))
        return joined.withColumn(_RANK, number).drop("_key", "_time", "_landed", "_stored")

    def _stored_deliveries(self, judged: DataFrame) -> tuple[int, int]:
        row = judged.agg(
            F.count_if(F.col(_REASON).isNull() & (F.col(_RANK) == 0)).alias("contested"),
            F.count_if(F.col(_REASON).isNull() & (F.col(_RANK) > 1)).alias("repeated"),
        ).first()
        assert row is not None
        return row["contested"], row["repeated"]

    def _quarantined(self, rows: DataFrame, fates: Fates) -> DataFrame | None:
        if not fates.quarantined:
            return None
        columns = [c for c in rows.columns if c not in _OWN]
        return rows.where(F.col(_REASON).isNotNull()).select(
            F.col(_HASH).alias("row_hash"), F.col(_REASON).alias("reason"), F.to_json(F.struct(*columns)).alias("row")
        )


@dataclass(frozen=True)
class Content:
    """What a set of rows holds: their number and a checksum that is independent of their order."""

    rows: int
    checksum: str


def content(rows: DataFrame) -> Content:
    """Count and checksum of the rows: the sum of their 64-bit hashes, exact, so that equal changes cannot cancel."""
    hashes = F.xxhash64(*rows.columns).cast("decimal(38,0)")
    row = rows.agg(F.count("*").alias("n"), F.sum(hashes).cast("string").alias("s")).first()
    assert row is not None
    return Content(row["n"], f"{row['n']}:{row['s'] or 0}")


def _trusted(source: Source) -> bool:
    """A source without key and rules is a target of this platform: its rows are unique and were judged before."""
    return source.key is None and not source.rules


def _with_duplicates(fates: Fates, duplicates: int) -> Fates:
    from dataclasses import replace

    return replace(fates, duplicates=duplicates)


def _plain(rows: DataFrame) -> DataFrame:
    return rows.drop(*_OWN)


def _literal(hour: int) -> Column:
    # Spelled with its zone: a literal that depends on no setting of the session, and that is pushed down.
    return F.expr(f"TIMESTAMP '{hour_start(hour):%Y-%m-%d %H:%M:%S}Z'")
