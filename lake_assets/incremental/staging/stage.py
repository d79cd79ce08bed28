"""Staging: read the sources of a session, set rows aside, build the target's rows, write them where nobody reads yet.

The write is one Iceberg commit under `spark.wap.id`; only append and overwrite-by-filter are used, for under a WAP id
DELETE and TRUNCATE go straight to main, and a dynamic overwrite cannot empty an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lake_assets.base.time_filters import before, hours_condition, within
from lake_assets.connections.row_checkpoint import checkpoint_rows
from lake_assets.incremental.declaration import Sequential, SessionContext, Source, Stateless, Target
from lake_assets.incremental.metadata.state_tables import QUARANTINE
from lake_assets.incremental.planning.session import RowCounts, SessionPlan, SourceRange
from lake_assets.incremental.staging import row_validation
from lake_assets.incremental.staging.entity_rows import ChangedEntities, differing, ids_of

CATALOG = "lake"
WAP_ID = "spark.wap.id"

FEW_ROWS = 50_000
"""Up to so many rows are handled as one partition, so nothing is shuffled: of a small session, tasks cost the most."""


@dataclass(frozen=True)
class Staging:
    """One prepared session, not yet written.

    load: `append`, `overwrite`, or `none` (rows to set aside at most). hours: what is overwritten; of an append, the
    hours of its rows' source times. rows: the target's. kept: rows of the driving source that should show in it.
    unchanged: planned hours that come out as they are published, and are left out of `hours` and `rows`.
    rows_unchanged: their rows.
    quarantined: rows to be set aside, as of `judge.set_aside`, that quarantine has not yet; one frame for each source
        that may have any.
    few: whether `rows` are one partition.
    """

    load: str
    hours: tuple[int, ...]
    rows: DataFrame
    kept: DataFrame
    fates: RowCounts
    quarantined: list[DataFrame]
    few: bool = False
    unchanged: tuple[int, ...] = ()
    rows_unchanged: int = 0

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to write: an overwrite may empty hours, an append of nothing is none."""
        return bool(self.hours) if self.load == "overwrite" else self.load == "append" and self.fates.kept > 0

    def set_aside(self, most: int) -> list[dict[str, str]]:
        """The rows for quarantine, `most` at most; a job only if there may be any."""
        if not self.quarantined:
            return []
        return [row.asDict() for row in self._aside().limit(most).collect()]

    def number_aside(self) -> int:
        """How many rows there are for quarantine."""
        return self._aside().count() if self.quarantined else 0

    def _aside(self) -> DataFrame:
        return reduce(DataFrame.unionByName, self.quarantined)


def hashes(columns: Sequence[str]) -> tuple[Column, Column]:
    """Two hashes of a row, of unlike input, 64 bits each.

    Spark's own passes over nulls, so it is told of them: else ('a', null) and (null, 'a') would be one row.
    """
    nulls = [F.col(c).isNull() for c in columns]
    return F.xxhash64(*columns, *nulls), F.xxhash64(*reversed(columns), *nulls, F.lit(1))


def read_at(spark: SparkSession, table: str, snapshot_id: int | None) -> DataFrame:
    """A table as of a snapshot; no rows when it had none."""
    if snapshot_id is None:
        return spark.table(f"{CATALOG}.{table}").where(F.lit(False))
    return spark.read.option("versionAsOf", str(snapshot_id)).table(f"{CATALOG}.{table}")


def read_appended(spark: SparkSession, source: SourceRange) -> DataFrame:
    """The rows that the snapshots of a range appended. Only for ranges that the metadata shows to be appends."""
    if source.from_snapshot_id is None:
        return read_at(spark, source.source, source.to_snapshot_id)
    if source.from_snapshot_id == source.to_snapshot_id:
        return read_at(spark, source.source, None)  # Iceberg refuses a range that is empty
    reader = spark.read.format("iceberg").option("start-snapshot-id", str(source.from_snapshot_id))
    return reader.option("end-snapshot-id", str(source.to_snapshot_id)).load(f"{CATALOG}.{source.source}")


def coalesce_if_few(rows: DataFrame, number: float) -> DataFrame:
    """The rows as one partition if their number is few."""
    return rows.coalesce(1) if number <= FEW_ROWS else rows


def beside(rows: DataFrame, *, few: bool) -> DataFrame:
    """The right side of a join, hashed where it is if both sides are few rows, `gathered`.

    Left to itself, Spark sends so small a side to all tasks of the other, which is a job of its own.
    """
    return rows.hint("shuffle_hash") if few else rows


def write(spark: SparkSession, target: Target, staging: Staging, wap_id: str) -> None:
    """Write prepared rows as one unreferenced snapshot that carries the WAP id."""
    writer = staging.rows.writeTo(f"{CATALOG}.{target.table}")
    if staging.few:
        writer = writer.option("distribution-mode", "none")
    spark.conf.set(WAP_ID, wap_id)
    try:
        if staging.load == "append":
            writer.append()
        else:
            writer.overwrite(hours_condition(target.time_column, staging.hours))
    finally:
        spark.conf.unset(WAP_ID)


@dataclass(frozen=True)
class Compared:
    """The rows of the planned hours; which of these come out as they are published, and how many rows they have."""

    rows: DataFrame
    unchanged: tuple[int, ...] = ()
    rows_unchanged: int = 0


class Stager:
    """Prepares the sessions of one target on one Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        target: Target,
        *,
        start: int,
        main: int | None,
        complete_through: int | None,
        known: float | None = None,
        owed: Container[int] = (),
        rows: float = inf,
    ) -> None:
        """main: the target's snapshot to build on. complete_through: the target's before; tells which rows are late.

        known: the last hour that may have been built before; those that come out the same are left out. None: none is.
        owed: hours that are to be built in any case, even if there are no rows to be seen.
        rows: how many a session reads of any table, about and at most.
        """
        self.spark, self.target, self.start, self.main = spark, target, start, main
        self.complete_through, self.known, self.owed, self.rows = complete_through, known, owed, rows

    def prepare(self, plan: SessionPlan) -> Staging:
        """Read and transform what the plan names. An append whose delivery beats a stored row becomes an overwrite."""
        appended = self._appended(plan) if plan.load == "append" else None
        return appended or self._overwritten(plan)

    def _appended(self, plan: SessionPlan) -> Staging | None:
        """The new rows alone, but those of held hours; None when one of them may beat a row already stored, so that its
        hour must be rebuilt."""
        source, new = self.target.sources[0], coalesce_if_few(read_appended(self.spark, plan.sources[0]), self.rows)
        columns = new.columns
        if plan.held:
            new = new.where(~F.coalesce(hours_condition(source.time_column, plan.held), F.lit(False)))
        rows = row_validation.judged(new, source, columns=columns, start=self.start)
        if source.key and len(self.target.key) == 1 and self.main is not None and plan.hours:
            stored = within(self._published(), self.target.time_column, plan.hour_numbers)
            stored = beside(stored, few=self.rows <= FEW_ROWS)
            rows = row_validation.against(stored, rows, source, self.target, columns=columns)
        rows = checkpoint_rows(rows)
        fates = row_validation.measured(rows, source, columns=columns, complete_through=self.complete_through)
        if fates.contested:
            return None
        kept = rows.where(row_validation.counting())
        built = self._transform(plan.session_id, fates.hours, [row_validation.plain(kept)])
        aside = [self._set_aside(rows, source, columns)] if fates.quarantined else []
        hours = tuple(sorted(self.target.grain.whole(fates.hours)))
        return Staging("append", hours, built, kept, fates, aside, self.rows <= FEW_ROWS)

    def _overwritten(self, plan: SessionPlan) -> Staging:
        """The planned hours, recomputed from all sources as of the plan's snapshots; without hours, for quarantine."""
        hours, source = plan.hour_numbers, self.target.sources[0]
        rows, columns = self._in_scope(source, plan.sources[0], plan)
        rows = rows if source.trusted else checkpoint_rows(rows)
        fates = row_validation.measured(rows, source, columns=columns, complete_through=self.complete_through)
        kept = within(rows, source.time_column, hours).where(row_validation.counting())
        compared = self._compared(plan, kept) if hours else Compared(kept)
        changed = tuple(hour for hour in hours if hour not in compared.unchanged)
        return Staging(
            load="overwrite" if hours else "none",
            hours=changed,
            rows=within(compared.rows, self.target.time_column, changed) if compared.unchanged else compared.rows,
            kept=kept,
            fates=fates,
            quarantined=[
                *([self._set_aside(rows, source, columns)] if fates.quarantined else []),
                *self._set_aside_of_others(plan),
            ],
            few=self.rows <= FEW_ROWS,
            unchanged=compared.unchanged,
            rows_unchanged=compared.rows_unchanged,
        )

    def _compared(self, plan: SessionPlan, kept: DataFrame) -> Compared:
        """The planned hours, built, and compared with what is published."""
        if plan.changed_through is not None:
            return self._of_changed(plan, plan.changed_through)
        hours = plan.hour_numbers
        built = within(self._built(plan, kept), self.target.time_column, hours)
        old = [h for h in hours if self.main is not None and self.known is not None and h <= self.known]
        if not old:
            return Compared(built)
        built = checkpoint_rows(built)
        same = self._unchanged(built, self._published(), old)
        return Compared(built, tuple(sorted(self.target.grain.whole(same))), sum(same.values()))

    def _of_changed(self, plan: SessionPlan, through: int) -> Compared:
        """As `_compared`. Up to an hour, of the entities alone that changed; the rows of others are as published."""
        time, published = self.target.time_column, self._published().select(*self.target.columns)
        old = [h for h in plan.hour_numbers if h <= through]
        changed = self._changed_entities(plan, through)
        theirs = self._in_sequence(plan, old, changed.of(published), changed.of)
        theirs = checkpoint_rows(coalesce_if_few(within(theirs, time, old), self.rows))
        same = self._unchanged(theirs, changed.of(published), old) if self.known is not None else {}
        unchanged = tuple(sorted(self.target.grain.whole(same)))
        built = theirs.unionByName(changed.others(within(published, time, old)))
        if new := [h for h in plan.hour_numbers if h > through]:
            # A new hour stands on the state before it as it is now.
            so_far = before(published, time, old[0]).unionByName(built)
            built = built.unionByName(within(self._in_sequence(plan, new, so_far), time, new))
        rows_unchanged = within(published, time, unchanged).count() if unchanged else 0
        return Compared(coalesce_if_few(built, self.rows), unchanged, rows_unchanged)

    def _changed_entities(self, plan: SessionPlan, through: int) -> ChangedEntities:
        """Whose source rows came, changed or went with this session, of hours up to one."""
        mode, hours = self.target.mode, [h for h in (*plan.hour_numbers, *plan.skipped) if h <= through]
        assert isinstance(mode, Sequential)
        assert mode.entity is not None
        spans = zip(self.target.sources, plan.sources, strict=True)
        rows = [within(self._moved(span), source.time_column, hours) for source, span in spans]
        return ChangedEntities(mode.entity, checkpoint_rows(coalesce_if_few(ids_of(rows, mode.entity), self.rows)))

    def _moved(self, span: SourceRange) -> DataFrame:
        """The rows of a source that came or went within a range of its snapshots."""
        if span.appends_only:
            return read_appended(self.spark, span)
        return differing(*(self._read(span.source, i) for i in (span.from_snapshot_id, span.to_snapshot_id)))

    def _unchanged(self, rows: DataFrame, published: DataFrame, hours: Sequence[int]) -> dict[int, int]:
        """The partitions of the hours whose rows are the published ones, whatever their order: first hour → rows."""
        time, columns, grain = self.target.time_column, list(self.target.columns), self.target.grain
        published = within(published, time, hours).select(*columns)
        mine = within(rows, time, hours).select(*columns, F.lit(1).alias("_side"))
        both = mine.unionByName(published.withColumn("_side", F.lit(0)))
        # 128 bits of an order-free checksum.
        sums = [F.sum(h.cast("decimal(20, 0)")).alias(f"_sum_{i}") for i, h in enumerate(hashes(columns))]
        number = F.floor(F.unix_timestamp(time) / (3600 * grain.hours)).alias("_number")
        found: dict[int, list[tuple[Any, ...]]] = {}
        for row in both.groupBy(number, "_side").agg(F.count("*").alias("_rows"), *sums).collect():
            first = grain.numbered(row["_number"])[0]
            found.setdefault(first, []).append((row["_rows"], row["_sum_0"], row["_sum_1"]))
        sides = {first: found.get(first, []) for first in grain.firsts(hours)}
        empty = {h: 0 for h, s in sides.items() if not s and h not in self.owed}
        return empty | {h: s[0][0] for h, s in sides.items() if len(s) == 2 and s[0] == s[1]}

    def _built(self, plan: SessionPlan, kept: DataFrame) -> DataFrame:
        hours = plan.hour_numbers
        if isinstance(self.target.mode, Stateless):
            return self._transform(plan.session_id, hours, [row_validation.plain(kept)])
        return self._in_sequence(plan, hours, self._published() if isinstance(self.target.mode, Sequential) else None)

    def _in_sequence(
        self,
        plan: SessionPlan,
        hours: Sequence[int],
        published: DataFrame | None,
        limited: Callable[[DataFrame], DataFrame] = lambda rows: rows,
    ) -> DataFrame:
        """Hours built from all that their sources hold up to the last of them. limited: to which rows of a source."""
        spans = zip(self.target.sources, plan.sources, strict=True)
        inputs = [limited(self._history(s, span, hours[-1])) for s, span in spans]
        return self._transform(plan.session_id, hours, inputs, published)

    def _transform(
        self, session_id: str, hours: Sequence[int], inputs: list[DataFrame], published: DataFrame | None = None
    ) -> DataFrame:
        context = SessionContext(session_id, tuple(hours), published)
        return self.target.transform(context, *inputs).select(*self.target.columns)

    def _published(self) -> DataFrame:
        return self._read(self.target.table, self.main)

    def _read(self, table: str, snapshot_id: int | None) -> DataFrame:
        return coalesce_if_few(read_at(self.spark, table, snapshot_id), self.rows)

    def _history(self, source: Source, span: SourceRange, last_hour: int) -> DataFrame:
        """All clean rows of a source up to the end of an hour, each delivery once."""
        rows = before(self._read(source.table, span.to_snapshot_id), source.time_column, last_hour + 1)
        if source.trusted:
            return rows
        return row_validation.plain(
            row_validation.judged(rows, source, columns=rows.columns, start=self.start).where(row_validation.counting())
        )

    def _set_aside_of_others(self, plan: SessionPlan) -> Iterator[DataFrame]:
        """What quarantine gets of the sources behind the first."""
        for source, span in zip(self.target.sources[1:], plan.sources[1:], strict=True):
            if not source.trusted:
                rows, columns = self._in_scope(source, span, plan)
                yield self._set_aside(rows, source, columns)

    def _set_aside(self, rows: DataFrame, source: Source, columns: Sequence[str]) -> DataFrame:
        """The bad ones of judged rows, but those that quarantine has already, of this target."""
        known = self.spark.table(f"{CATALOG}.{QUARANTINE}").where(F.col("target") == self.target.table)
        new = row_validation.set_aside(rows, source, columns=columns)
        return new.join(known.select("source", "row_hash"), ["source", "row_hash"], "left_anti")

    def _in_scope(self, source: Source, span: SourceRange, plan: SessionPlan) -> tuple[DataFrame, list[str]]:
        """Judged rows of the planned hours, and rows of no hour that came with this session; and their columns."""
        rows = self._read(source.table, span.to_snapshot_id)
        columns = rows.columns
        condition = hours_condition(source.time_column, plan.hour_numbers)
        if not source.trusted and span.from_snapshot_id != span.to_snapshot_id:
            condition = condition | (row_validation.in_no_hour(source, columns, start=self.start) & _new(plan, span))
        return row_validation.judged(rows.where(condition), source, columns=columns, start=self.start), columns


def _new(plan: SessionPlan, span: SourceRange) -> Column:
    """Landed with the partitions that this session processes; without partitions, everything may have."""
    landed = [
        (str(u["landing_date"]), int(str(u["landing_hour"]))) for u in plan.processing_uris if "landing_hour" in u
    ]
    if not landed or span.from_snapshot_id is None:
        return F.lit(True)
    first_date, first_hour = min(landed)
    date, hour, first = F.col("landing_date"), F.col("landing_hour"), F.lit(first_date).cast("date")
    return (date > first) | ((date == first) & (hour >= first_hour))
