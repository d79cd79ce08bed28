"""Evaluating audits: run them on a staged snapshot, and count what violates them, hour by hour, in one Spark job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lake_assets.base.conditions import union_by_name
from lake_assets.base.hours import hour_key
from lake_assets.incremental.declaration.target import Audit, AuditScope, Offenders, Verdict
from lake_assets.incremental.planning.session import AuditResult
from lake_assets.incremental.staging.audits import HOUR, KEY, SAMPLE
from lake_assets.incremental.user_code.call_audit import call_audit, check_queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lake_assets.base.grain import Grain

MAX_REPORTED_PARTITIONS = 100
"""Most hours, or days, that a failed audit reports one by one. If it fails in more, something is wrong with all."""

AUDIT = "i"
"""Column of offenders: the number of the audit."""
ROWS = "n"
"""Column of counts: the number of offenders."""
SAMPLED = "s"
"""Column of counts: keys of the sample."""


def evaluate(audits: Sequence[Audit], scope: AuditScope) -> tuple[AuditResult, ...]:
    """Evaluate audits on a staged snapshot.

    Returns:
        The result of each audit, in the order of `audits`.

    Raises:
        AuditBroken: An audit cannot be evaluated.
    """
    verdicts: dict[int, Verdict] = {}
    offenders: dict[int, Offenders] = {}
    for number, audit in enumerate(audits):
        found = call_audit(audit, scope)
        if isinstance(found, Verdict):
            verdicts[number] = found
        else:
            offenders[number] = found
    try:
        verdicts |= _verdicts_on_offenders(offenders, few=scope.few)
    except Exception:
        check_queries(audits, offenders, scope.target.table)
        raise
    results = []
    for number, audit in enumerate(audits):
        results.append(_result_of(audit, verdicts[number], scope))
    return tuple(results)


def reported_hours(
    counts: Mapping[int | None, int],
    evaluated: Sequence[int],
    grain: Grain,
) -> dict[str, int]:
    """Return the hours that a failed audit reports.

    Args:
        counts: Event hour → offending rows; None for rows whose hour is not known.
        evaluated: The hours that the audit evaluated.

    Returns:
        Key of each hour in a partition that failed → offending rows in the partition. Empty if the hour of a row is not
        known, unless only one partition was evaluated, or if too many partitions failed.
    """
    if len(grain.firsts(evaluated)) == 1:
        offending = sum(counts.values())
        return {hour_key(hour): offending for hour in evaluated}
    by_partition: dict[int, int] = {}
    for hour, rows in counts.items():
        if hour is None:
            return {}
        first = grain.first(hour)
        by_partition[first] = by_partition.get(first, 0) + rows
    if len(by_partition) > MAX_REPORTED_PARTITIONS:
        return {}
    reported = {}
    for hour in sorted(grain.whole(by_partition)):
        reported[hour_key(hour)] = by_partition[grain.first(hour)]
    return reported


def _verdicts_on_offenders(offenders: Mapping[int, Offenders], *, few: bool) -> dict[int, Verdict]:
    """Return number of the audit → verdict; an audit without offending rows has passed."""
    counted = _count_offenders(offenders, few=few)
    verdicts = {}
    for number, found in offenders.items():
        counts = counted.get(number, _Counted())
        verdicts[number] = Verdict(
            passed=not counts.hours,
            counts={found.counted: sum(counts.hours.values())},
            sample=counts.sample,
            hours=counts.hours,
        )
    return verdicts


@dataclass
class _Counted:
    """The offenders of one audit, counted.

    Attributes:
        hours: Event hour → rows; None for rows whose hour is not known.
        sample: The first keys, at most `SAMPLE`.
    """

    hours: dict[int | None, int] = field(default_factory=dict)
    sample: tuple[str, ...] = ()


def _count_offenders(
    offenders: Mapping[int, Offenders],
    *,
    few: bool,
) -> dict[int, _Counted]:
    """Count the offenders of all audits: number of the audit → counts; without audits that have no offenders.

    One job computes the rows of all audits, counts them, and takes the first keys of each audit.
    """
    numbered = []
    for number, found in offenders.items():
        numbered.append(_numbered(found.rows, number))
    if not numbered:
        return {}
    rows = union_by_name(*numbered)
    if few:
        rows = rows.coalesce(1)
    counted: dict[int, _Counted] = {}
    for row in _counts_and_first_keys(rows).collect():
        of_audit = counted.setdefault(row[AUDIT], _Counted())
        of_audit.hours[row[HOUR]] = row[ROWS]
        # Sorted, so that the sample does not depend on the order of the rows.
        known = {*of_audit.sample, *row[SAMPLED]}
        of_audit.sample = tuple(sorted(known)[:SAMPLE])
    return counted


def _numbered(rows: DataFrame, number: int) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.select(F.lit(number).alias(AUDIT), KEY, HOUR)


def _counts_and_first_keys(rows: DataFrame) -> DataFrame:
    """Return audit, hour, its offenders, and which of the first `SAMPLE` keys of the audit it has."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by_key = rows.groupBy(AUDIT, HOUR, KEY).agg(F.count("*").alias(ROWS))
    place = F.dense_rank().over(Window.partitionBy(AUDIT).orderBy(KEY))
    first_key = F.when(place <= SAMPLE, F.col(KEY)).alias(SAMPLED)
    ranked = by_key.select(AUDIT, HOUR, ROWS, first_key)
    counts = F.sum(ROWS).alias(ROWS)
    return ranked.groupBy(AUDIT, HOUR).agg(counts, F.collect_set(SAMPLED).alias(SAMPLED))


def _result_of(audit: Audit, verdict: Verdict, scope: AuditScope) -> AuditResult:
    hours = {}
    if not verdict.passed:
        hours = reported_hours(verdict.hours, scope.hours, scope.target.grain)
    return AuditResult(
        name=audit.name,
        passed=verdict.passed,
        blocking=audit.blocking,
        counts=dict(verdict.counts),
        sample=verdict.sample,
        description=audit.description,
        hours=hours,
    )
