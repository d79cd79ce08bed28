"""Audits: plain functions from a staged snapshot and its source rows to a verdict.

An audit sees what would be published, before it is. A blocking one that fails keeps the hours that it fails in as they
were, or everything, if it cannot tell. To add one, write one function that returns an `Audit`. Its `run` gives a
`Verdict`, or `Offenders`, the rows that should not be; those of all audits are counted in one Spark job, hour by hour.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import fmean
from typing import TYPE_CHECKING

from lake_assets.base.hours import hour_key
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration.target import Audit, AuditScope, Offenders, Verdict
from lake_assets.incremental.planning.session import AuditResult

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lake_assets.base.grain import Grain

SAMPLE = 10
"""How many offending keys a verdict names at most."""

MOST_HOURS = 100
"""An audit that fails in more hours, or days, than this is not told by hour: something is wrong with all of them."""

KEY, HOUR = "k", "h"


def evaluate(audits: Sequence[Audit], scope: AuditScope) -> tuple[AuditResult, ...]:
    """The verdict of every audit, in order."""
    found = [audit.run(scope) for audit in audits]
    offences = _offences({i: f.rows for i, f in enumerate(found) if isinstance(f, Offenders)}, few=scope.few)
    verdicts = [f if isinstance(f, Verdict) else _judged(f, offences.get(i)) for i, f in enumerate(found)]
    return tuple(
        AuditResult(
            name=audit.name,
            passed=v.passed,
            blocking=audit.blocking,
            counts=dict(v.counts),
            sample=v.sample,
            description=audit.description,
            hours={} if v.passed else hours_told(v.hours, scope.hours, scope.target.grain),
        )
        for audit, v in zip(audits, verdicts, strict=True)
    )


def source_target_counts() -> Audit:
    """Every row read is published, a repeated delivery, or in quarantine."""

    def run(scope: AuditScope) -> Verdict:
        c = scope.counts
        return Verdict(c["read"] == c["written"] + c["duplicates"] + c["quarantined"], c)

    return Audit("source_target_counts", run, "rows read = published + repeated deliveries + quarantined")


def no_missing_events() -> Audit:
    """Every source row that should be published is in the staged rows, by key."""

    def run(scope: AuditScope) -> Offenders:
        key, source_key = scope.target.key, scope.target.sources[0].key
        if source_key is None or len(key) != 1:
            raise ConfigurationError(
                f"no_missing_events() of {scope.target.table} needs a single key, and a key of its first source.",
                remedy="Give the Source a key=, or drop the audit.",
            )
        from lake_assets.incremental.staging.stage import beside

        there = scope.staged.select(_text(key[0]).alias(KEY))
        wanted = scope.kept.select(_text(source_key).alias(KEY), _hour(scope.target.sources[0].time_column).alias(HOUR))
        return Offenders(wanted.join(beside(there, few=scope.few), KEY, "left_anti"), "missing")

    return Audit("no_missing_events", run, "no source key is missing in the target")


def not_null(*columns: str, blocking: bool = True) -> Audit:
    """None of the columns is null."""

    def run(scope: AuditScope) -> Offenders:
        from pyspark.sql import functions as F

        any_null = reduce(lambda a, b: a | b, [F.col(column).isNull() for column in columns])
        return Offenders(_keys(scope, scope.staged.where(any_null)), "nulls")

    return Audit(f"not_null_{'_'.join(columns)}", run, f"{', '.join(columns)} is never null", blocking)


def unique_key() -> Audit:
    """A row's identity, (key, time), occurs once."""

    def run(scope: AuditScope) -> Offenders:
        from pyspark.sql import functions as F

        identity = dict.fromkeys([*scope.target.key, scope.target.time_column])
        return Offenders(_keys(scope, scope.staged.groupBy(*identity).count().where(F.col("count") > 1)), "repeated")

    return Audit("unique_key", run, "no key occurs twice at the same time")


def accepted_values(column: str, values: Sequence[str], *, blocking: bool = True) -> Audit:
    """The column has only these values; null is not judged."""

    def run(scope: AuditScope) -> Offenders:
        from pyspark.sql import functions as F

        return Offenders(_keys(scope, scope.staged.where(~F.col(column).isin(*values))), "unexpected")

    return Audit(f"accepted_values_{column}", run, f"{column} is one of {', '.join(values)}", blocking)


def referential(column: str, *, to: str, ref_column: str, blocking: bool = False) -> Audit:
    """Each value of the column is found in another table, which may simply be late: a warning by default."""

    def run(scope: AuditScope) -> Offenders:
        from pyspark.sql import functions as F

        known = scope.table(to).select(F.col(ref_column).alias(column))
        if scope.few:  # the other table may be large: it is read through, and what is looked for moves alone
            known = F.broadcast(known.join(F.broadcast(scope.staged.select(column)), column, "left_semi").distinct())
        return Offenders(_keys(scope, scope.staged.join(known, column, "left_anti")), "unknown")

    return Audit(f"referential_{column}", run, f"{column} is in {to}.{ref_column}", blocking)


def row_count_like_earlier(*, days: int = 7, factor: float = 10.0, blocking: bool = False) -> Audit:
    """An hour's rows lie within a factor of the mean of the same hour of earlier days; without history, all is well."""

    def run(scope: AuditScope) -> Verdict:
        same_hours = {h - 24 * d for h in scope.hours for d in range(1, days + 1)}
        now, earlier = scope.staged_rows(scope.hours), scope.earlier_rows(same_hours)
        odd = odd_hours(now, earlier, scope.hours, days=days, factor=factor)
        sample = tuple(hour_key(h) for h in odd[:SAMPLE])
        return Verdict(not odd, {"odd hours": len(odd)}, sample, dict.fromkeys(odd, 1))

    return Audit("row_count_like_earlier", run, f"rows per hour within ×{factor:g} of the {days} days before", blocking)


def sql(name: str, query: str, *, blocking: bool = True) -> Audit:
    """Any SQL over `{staged}` that selects the offending rows; its first column names them.

    If it selects the target's time column, too, it can be told which hours they are of.
    """

    def run(scope: AuditScope) -> Offenders:
        from pyspark.sql import functions as F

        rows, time = scope.staged.sparkSession.sql(query, staged=scope.staged), scope.target.time_column
        columns = rows.columns
        hour = _hour(time) if time in columns else F.lit(None).cast("long")
        return Offenders(rows.select(_text(columns[0]).alias(KEY), hour.alias(HOUR)), "offending")

    return Audit(name, run, query, blocking)


def odd_hours(
    now: Mapping[int, int], earlier: Mapping[int, int], hours: Collection[int], *, days: int, factor: float
) -> list[int]:
    """The hours whose rows now are not within a factor of the mean of the same hour of so many earlier days; ascending.

    A day without rows in it counts for nothing; without any such day, an hour is as it should be.
    """
    found = []
    for hour in sorted(hours):
        if same := [earlier[h] for d in range(1, days + 1) if (h := hour - 24 * d) in earlier]:
            rows, usual = now.get(hour, 0), fmean(same)
            if not usual / factor <= rows <= usual * factor:
                found.append(hour)
    return found


@dataclass
class _Offences:
    """What one audit found. hours: event hour → rows. sample: their first keys, at most `SAMPLE`."""

    hours: dict[int | None, int] = field(default_factory=dict)
    sample: tuple[str, ...] = ()


def _offences(rows: Mapping[int, DataFrame], *, few: bool) -> dict[int, _Offences]:
    """What each audit found, by its number; those that found nothing are not there.

    The offending rows of all are computed once and kept: they are counted, and looked up for the audits that fail.
    """
    from pyspark.sql import functions as F

    from lake_assets.connections.row_checkpoint import checkpoint_rows

    numbered = [frame.select(F.lit(i).alias("i"), KEY, HOUR) for i, frame in rows.items()]
    if not numbered:
        return {}
    every = reduce(lambda a, b: a.unionByName(b), numbered)
    every = checkpoint_rows(every.coalesce(1) if few else every)
    found: dict[int, _Offences] = {}
    for row in every.groupBy("i", HOUR).count().collect():
        found.setdefault(row["i"], _Offences()).hours[row[HOUR]] = row["count"]
    for i, offences in found.items():
        # Sorted, so that the sample hangs on no order of rows; and only for an audit that fails.
        first = every.where(f"i = {i}").select(KEY).distinct().orderBy(KEY).limit(SAMPLE).collect()
        offences.sample = tuple(row[KEY] for row in first)
    return found


def hours_told(counts: Mapping[int | None, int], judged: Sequence[int], grain: Grain) -> dict[str, int]:
    """Key of an hour → offending rows in its partition, for all hours of those that failed; empty if not all rows can
    be told, or too many partitions failed. Of one partition that was judged alone, all can."""
    if len(grain.firsts(judged)) == 1:
        return {hour_key(hour): sum(counts.values()) for hour in judged}
    found: dict[int, int] = {}
    for hour, rows in counts.items():
        if hour is None:
            return {}
        found[grain.first(hour)] = found.get(grain.first(hour), 0) + rows
    return {hour_key(h): found[grain.first(h)] for h in sorted(grain.whole(found))} if len(found) <= MOST_HOURS else {}


def _judged(found: Offenders, offences: _Offences | None) -> Verdict:
    if offences is None:
        return Verdict(True, {found.counted: 0})
    return Verdict(False, {found.counted: sum(offences.hours.values())}, offences.sample, offences.hours)


def _text(column: str) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.col(column).cast("string"), F.lit("null"))


def _keys(scope: AuditScope, rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    key = F.concat_ws(" ", *[_text(k) for k in scope.target.key])
    return rows.select(key.alias(KEY), _hour(scope.target.time_column).alias(HOUR))


def _hour(time_column: str) -> Column:
    """The event hour of a row (long); null without a time."""
    from pyspark.sql import functions as F

    return F.floor(F.unix_timestamp(time_column) / 3600)


def rows_by_hour(rows: DataFrame, time_column: str) -> dict[int, int]:
    """Event hour → rows of it, counted by Spark; rows without a time are in none."""
    from pyspark.sql import functions as F

    timed = rows.where(F.col(time_column).isNotNull())
    return {row[HOUR]: row["count"] for row in timed.groupBy(_hour(time_column).alias(HOUR)).count().collect()}
