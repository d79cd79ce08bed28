"""Audits: plain functions from a staged snapshot and its source rows to a verdict.

An audit evaluates what would be published, before it is. If a blocking audit fails, the hours that it fails in keep
their published rows; if it cannot tell the hours, all hours do. To add an audit, write a function that returns an
`Audit`. Its `run` returns a `Verdict`, or `Offenders`: the rows that violate it. `audit_run` counts those.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from lake_assets.base.columns import ROWS, TIME, quoted
from lake_assets.base.columns import column as column_of
from lake_assets.base.columns import columns as columns_of
from lake_assets.base.hours import hour_key, hour_sql
from lake_assets.base.sql_text import any_is_true, with_placeholders
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration.model import Audit, AuditScope, Offenders, Stateless, Target, Verdict
from lake_assets.incremental.declaration.pipeline import STAGED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


SAMPLE = 10
"""Most offending keys that a verdict names."""

KEY = "k"
"""Column of offenders: the key of a row, as text."""
HOUR = "h"
"""Column of offenders: the event hour of a row (long); null if it is not known."""


def source_target_counts() -> Audit:
    """Return an audit that every row in the source was read, and is published, a repeated delivery, or in quarantine.

    The rows in the source are counted by its metadata, or by a query of the audit's own. If the source has versions,
    such a query also counts those that stand: as many rows are published.
    """

    def run(scope: AuditScope) -> Verdict:
        counts = {"in source": scope.rows_in_source(), **scope.counts}
        accounted_for = counts["written"] + counts["duplicates"] + counts["quarantined"]
        passed = counts["in source"] == counts["read"] == accounted_for
        if scope.target.sources[0].has_versions:
            counts["standing"] = scope.valid.count()
            passed = passed and counts["standing"] == counts["written"]
        return Verdict(passed, counts)

    return Audit(
        name="source_target_counts",
        run=run,
        description="rows in the source = read = published + repeated deliveries + quarantined",
    )


def no_missing_events() -> Audit:
    """Return an audit that every source row that should be published is in the staged rows, by key.

    It reads the source by a query of its own, and applies the declared rules itself. If the source of a stateless
    target has versions, it looks for each key in the hour of the version that stands.
    """

    def check(target: Target) -> None:
        if target.sources[0].key is None or len(target.key) != 1:
            raise ConfigurationError(
                f"no_missing_events() of {target.table} needs a single key, and a key of its first source.",
                remedy="Give the Source a key=, or drop the audit.",
            )

    def run(scope: AuditScope) -> Offenders:
        target, source = scope.target, scope.target.sources[0]
        check(target)
        assert source.key is not None
        # Each version has an hour of its own: if another one stands than should, the key is there, but not in the hour.
        by_hour = source.has_versions and isinstance(target.mode, Stateless)
        same_row = [KEY, HOUR] if by_hour else [KEY]
        staged = _keys(scope.staged_everywhere, target.key, target.time_column).select(*same_row)
        if scope.few:
            staged = staged.hint("shuffle_hash")  # else Spark broadcasts it, which is a job of its own
        expected = _keys(scope.valid, [source.key], source.time_column)
        return Offenders(expected.join(staged, same_row, "left_anti"), "missing")

    return Audit(
        name="no_missing_events",
        run=run,
        description="no source key is missing in the target",
        check=check,
    )


def not_null(*columns: str, blocking: bool = True) -> Audit:
    """Return an audit that none of the columns is null. Raises `ConfigurationError` if there are none."""
    if not columns:
        raise ConfigurationError(
            "The audit not_null names no column.", remedy="Name one, such as not_null: [account_id]."
        )

    def run(scope: AuditScope) -> Offenders:
        any_null = any_is_true([f"{quoted(column)} is null" for column in columns])
        return _offenders(scope, scope.staged.where(any_null), "nulls")

    return Audit(
        name=f"not_null_{'_'.join(columns)}",
        run=run,
        description=f"{', '.join(columns)} is never null",
        blocking=blocking,
        columns=columns,
    )


def unique_key() -> Audit:
    """Return an audit that a row's identity occurs once.

    That is (key, time); or the key alone, if a stateless target keeps the last version of it.
    """

    def run(scope: AuditScope) -> Offenders:
        from pyspark.sql import functions as F

        time = scope.target.time_column
        by_identity = scope.staged.groupBy(*columns_of(dict.fromkeys(scope.target.identity)))
        counts = by_identity.agg(F.count("*").alias(ROWS), F.min(column_of(time)).alias(TIME))
        repeated = counts.where(F.col(ROWS) > 1).withColumn(time, F.col(TIME))
        return _offenders(scope, repeated, "repeated")

    return Audit(
        name="unique_key",
        run=run,
        description="no key occurs twice at the same time",
    )


def accepted_values(column: str, values: Sequence[str], *, blocking: bool = True) -> Audit:
    """Return an audit that the column has only these values. Null passes."""

    def run(scope: AuditScope) -> Offenders:
        return _offenders(scope, scope.staged.where(~column_of(column).isin(*values)), "unexpected")

    return Audit(
        name=f"accepted_values_{column}",
        run=run,
        description=f"{column} is one of {', '.join(values)}",
        blocking=blocking,
        columns=(column,),
    )


def referential(column: str, *, to: str, ref_column: str, blocking: bool = False) -> Audit:
    """Return an audit that each value of the column is in another table.

    By default its failure is a warning, because the other table may be late.
    """

    def run(scope: AuditScope) -> Offenders:
        reference = column_of(ref_column).alias(column)
        staged = scope.staged.select(column)
        indexed = scope.rows_with(to, ref_column, staged.select(column_of(column).alias(ref_column)))
        if indexed is not None:
            known = indexed.select(reference)
        else:
            known = scope.table(to).select(reference)
            if scope.few:
                # The other table may be large. It is filtered where it is read; only the values looked for are sent.
                found = known.join(staged.hint("broadcast"), column, "left_semi")
                known = found.distinct().hint("broadcast")
        return _offenders(scope, scope.staged.join(known, column, "left_anti"), "unknown")

    return Audit(
        name=f"referential_{column}",
        run=run,
        description=f"{column} is in {to}.{ref_column}",
        blocking=blocking,
        columns=(column,),
    )


def row_count_like_earlier(*, days: int = 7, factor: float = 10.0, blocking: bool = False) -> Audit:
    """Return an audit that an hour's rows lie within a factor of the mean of the same hour of earlier days.

    An hour without such history passes.
    """

    def run(scope: AuditScope) -> Verdict:
        earlier_hours = {same for hour in scope.hours for same in _same_hour_of_earlier_days(hour, days)}
        now, earlier = scope.staged_rows(scope.hours), scope.earlier_rows(earlier_hours)
        odd = odd_hours(now, earlier, scope.hours, days=days, factor=factor)
        sample = tuple(hour_key(hour) for hour in odd[:SAMPLE])
        return Verdict(not odd, {"odd hours": len(odd)}, sample, dict.fromkeys(odd, 1))

    return Audit(
        name="row_count_like_earlier",
        run=run,
        description=f"rows per hour within ×{factor:g} of the {days} days before",
        blocking=blocking,
    )


def odd_hours(
    now: Mapping[int, int],
    earlier: Mapping[int, int],
    hours: Collection[int],
    *,
    days: int,
    factor: float,
) -> list[int]:
    """Return the hours whose rows are not within a factor of the mean of the same hour of earlier days, ascending.

    A day on which that hour has no rows is left out of the mean. An hour without any such day passes.

    Args:
        now: Hour → its rows now.
        earlier: Hour of an earlier day → its rows.
    """
    odd = []
    for hour in sorted(hours):
        history = [earlier[same] for same in _same_hour_of_earlier_days(hour, days) if same in earlier]
        if not history:
            continue
        usual = fmean(history)
        if not usual / factor <= now.get(hour, 0) <= usual * factor:
            odd.append(hour)
    return odd


def _same_hour_of_earlier_days(hour: int, days: int) -> list[int]:
    return [hour - 24 * day for day in range(1, days + 1)]


def sql(name: str, query: str, *, blocking: bool = True) -> Audit:
    """Return an audit that a query selects no row.

    Args:
        query: Any SQL over `{staged}` that selects the offending rows. Its first column is their key. If it also
            selects the target's time column, the audit reports in which hours it fails. Other braces stay as they are.
    """

    def run(scope: AuditScope) -> Offenders:
        rows = offending_rows(query, scope.staged)
        time = scope.target.time_column
        names = rows.columns
        return Offenders(_keys(rows, names[:1], time if time in names else None), "offending")

    return Audit(
        name=name,
        run=run,
        description=query,
        blocking=blocking,
        query=query,
    )


def offending_rows(query: str, staged: DataFrame) -> DataFrame:
    """Return the rows that the query of an audit selects of the staged rows."""
    return staged.sparkSession.sql(with_placeholders(query, (STAGED,)), None, **{STAGED: staged})


def _offenders(scope: AuditScope, rows: DataFrame, counted: str) -> Offenders:
    return Offenders(_keys(rows, scope.target.key, scope.target.time_column), counted)


def _keys(rows: DataFrame, key: Sequence[str], time_column: str | None) -> DataFrame:
    """Return the keys of rows as text, bytes that are none in hexadecimal, and their hours; null without a time column.

    A Connect client could not decode such bytes.
    """
    texts = []
    for name in key:
        text = f"cast({quoted(name)} as string)"
        texts.append(f"coalesce(if(is_valid_utf8({text}), {text}, concat('0x', hex({text}))), 'null')")
    hour = "cast(null as long)" if time_column is None else hour_sql(quoted(time_column))
    return rows.selectExpr(f"concat_ws(' ', {', '.join(texts)}) as {KEY}", f"{hour} as {HOUR}")
