"""Audits: plain functions from a staged snapshot and its source rows to a verdict.

An audit sees what would be published, before it is. A blocking one that fails keeps everything as it was. To add one,
write one function that returns an `Audit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.hours import hour_key
from lake_assets.incremental.session import AuditResult

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lake_assets.incremental.declaration import Target

SAMPLE = 10
"""How many offending keys a verdict names at most."""


@dataclass(frozen=True)
class Verdict:
    """counts: what was counted, by name. sample: keys of offending rows, at most `SAMPLE`."""

    passed: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    sample: tuple[str, ...] = ()


@dataclass(frozen=True)
class AuditScope:
    """What an audit may look at.

    staged: the staged snapshot's rows within `hours` (columns of the target).
    kept: the driving (first) source's rows that should show in `staged`: no quarantined row, no repeated delivery
        (columns of the source).
    counts: rows of the driving source by fate: `read`, `duplicates`, `quarantined`, and `written`: rows this session staged.
    table: any other table by name, as this session reads it.
    """

    target: Target
    hours: tuple[int, ...]
    staged: DataFrame
    kept: DataFrame
    counts: Mapping[str, int]
    table: Callable[[str], DataFrame]


@dataclass(frozen=True)
class Audit:
    """A named check of a staged snapshot. blocking: if it fails, nothing is published."""

    name: str
    run: Callable[[AuditScope], Verdict]
    description: str
    blocking: bool = True

    def __call__(self, scope: AuditScope) -> AuditResult:
        verdict = self.run(scope)
        return AuditResult(
            name=self.name,
            passed=verdict.passed,
            blocking=self.blocking,
            counts=dict(verdict.counts),
            sample=verdict.sample,
            description=self.description,
        )


def source_target_counts() -> Audit:
    """Every row read is published, a repeated delivery, or in quarantine."""

    def run(scope: AuditScope) -> Verdict:
        c = scope.counts
        return Verdict(c["read"] == c["written"] + c["duplicates"] + c["quarantined"], c)

    return Audit("source_target_counts", run, "rows read = published + repeated deliveries + quarantined")


def no_missing_events() -> Audit:
    """Every source row that should be published is in the staged rows, by key."""

    def run(scope: AuditScope) -> Verdict:
        key, source_key = scope.target.key, scope.target.sources[0].key
        if source_key is None or len(key) != 1:
            raise ConfigurationError(
                f"no_missing_events() of {scope.target.table} needs a single key, and a key of its first source.",
                remedy="Give the Source a key=, or drop the audit.",
            )
        missing = scope.kept.select(_text(source_key).alias("k")).join(
            scope.staged.select(_text(key[0]).alias("k")), "k", "left_anti"
        )
        return _offenders(missing, "k", "missing")

    return Audit("no_missing_events", run, "no source key is missing in the target")


def not_null(*columns: str, blocking: bool = True) -> Audit:
    """None of the columns is null."""

    def run(scope: AuditScope) -> Verdict:
        from pyspark.sql import functions as F

        condition = F.lit(False)
        for column in columns:
            condition = condition | F.col(column).isNull()
        return _offenders(_keyed(scope, scope.staged.where(condition)), "k", "nulls")

    return Audit(f"not_null_{'_'.join(columns)}", run, f"{', '.join(columns)} is never null", blocking)


def unique_key() -> Audit:
    """A row's identity, (key, time), occurs once."""

    def run(scope: AuditScope) -> Verdict:
        from pyspark.sql import functions as F

        identity = [*scope.target.key, scope.target.time_column]
        repeated = scope.staged.groupBy(*dict.fromkeys(identity)).count().where(F.col("count") > 1)
        return _offenders(_keyed(scope, repeated), "k", "repeated")

    return Audit("unique_key", run, "no key occurs twice at the same time")


def accepted_values(column: str, values: Sequence[str], *, blocking: bool = True) -> Audit:
    """The column has only these values; null is not judged."""

    def run(scope: AuditScope) -> Verdict:
        from pyspark.sql import functions as F

        return _offenders(_keyed(scope, scope.staged.where(~F.col(column).isin(*values))), "k", "unexpected")

    return Audit(f"accepted_values_{column}", run, f"{column} is one of {', '.join(values)}", blocking)


def referential(column: str, *, to: str, ref_column: str, blocking: bool = False) -> Audit:
    """Each value of the column is found in another table, which may simply be late: a warning by default."""

    def run(scope: AuditScope) -> Verdict:
        from pyspark.sql import functions as F

        known = scope.table(to).select(F.col(ref_column).alias(column)).distinct()
        return _offenders(_keyed(scope, scope.staged.join(known, column, "left_anti")), "k", "unknown")

    return Audit(f"referential_{column}", run, f"{column} is in {to}.{ref_column}", blocking)


def row_count_like_earlier(*, days: int = 7, factor: float = 10.0, blocking: bool = False) -> Audit:
    """Each hour's rows lie within a factor of the mean of the same hour of earlier days; without history, all is well."""

    def run(scope: AuditScope) -> Verdict:
        from pyspark.sql import functions as F

        hours = [h - 24 * d for h in scope.hours for d in range(1, days + 1)]
        now = {r["h"]: r["n"] for r in _per_hour(scope, scope.staged).collect()}
        then_rows = _per_hour(scope, scope.table(scope.target.table)).where(F.col("h").isin(*set(hours)))
        then = {r["h"]: r["n"] for r in then_rows.collect()}
        odd = [h for h in scope.hours if _is_odd(now.get(h, 0), _mean_of_earlier(then, h, days), factor)]
        return Verdict(not odd, {"hours": len(scope.hours), "odd_hours": len(odd)}, tuple(map(hour_key, odd[:SAMPLE])))

    return Audit("row_count_like_earlier", run, f"rows per hour within ×{factor:g} of the {days} days before", blocking)


def sql(name: str, query: str, *, blocking: bool = True) -> Audit:
    """Any SQL over `{staged}` that selects the offending rows; its first column names them."""

    def run(scope: AuditScope) -> Verdict:
        rows = scope.staged.sparkSession.sql(query, staged=scope.staged)
        return _offenders(rows.select(_text(rows.columns[0]).alias("k")), "k", "offending")

    return Audit(name, run, query, blocking)


def _text(column: str) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.col(column).cast("string"), F.lit("null"))


def _keyed(scope: AuditScope, rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.select(F.concat_ws(" ", *[_text(k) for k in scope.target.key]).alias("k"))


def _offenders(rows: DataFrame, column: str, counted: str) -> Verdict:
    from pyspark.sql import functions as F

    # One pass: the count and the least keys, which are the same whatever the order of rows.
    found = rows.agg(F.count("*").alias("n"), F.slice(F.sort_array(F.collect_set(column)), 1, SAMPLE).alias("s")).first()
    assert found is not None  # an aggregate without groups always has one row
    return Verdict(found["n"] == 0, {counted: found["n"]}, tuple(found["s"]))


def _per_hour(scope: AuditScope, rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    hour = F.floor(F.unix_timestamp(scope.target.time_column) / 3600)
    return rows.groupBy(hour.alias("h")).agg(F.count("*").alias("n"))


def _mean_of_earlier(rows: Mapping[int, int], hour: int, days: int) -> float | None:
    earlier = [rows[hour - 24 * d] for d in range(1, days + 1) if hour - 24 * d in rows]
    return sum(earlier) / len(earlier) if earlier else None


def _is_odd(rows: int, usual: float | None, factor: float) -> bool:
    return usual is not None and not usual / factor <= rows <= usual * factor
