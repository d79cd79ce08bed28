"""What a MERGE need not read: partitions of other orgs, and files whose rows are of other dates.

Maintenance sorts the files of an org by date, and Delta's log has the dates of each file. So a date range excludes
files without opening them. A scope only prunes: it covers every row that the MERGE may change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

from lake_assets.base.columns import any_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_RANGES = 16
"""Maximum number of ranges. Each is a condition that Spark evaluates for every row."""

Range = tuple[date, date]
"""First and last day, both inclusive."""


def day_ranges(days: Iterable[date], margin: int = 1) -> list[Range]:
    """Return ranges that cover these days and the days around them, ascending.

    Args:
        margin: Number of days before and after each day that are covered, too.
    """
    around = timedelta(days=margin)
    return few_ranges((day - around, day + around) for day in set(days))


def few_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges that cover some others, ascending: at most `MAX_RANGES`, with the widest gaps between them.

    Ranges that touch are joined.
    """
    ordered = sorted(ranges)
    if not ordered:
        return []
    gaps: list[tuple[timedelta, date, date]] = []
    first, end = ordered[0]
    for start, last in ordered:
        if start - end > timedelta(days=1):
            gaps.append((start - end, end, start))
        end = max(end, last)
    found = []
    for _, before, after in sorted(sorted(gaps, reverse=True)[: MAX_RANGES - 1], key=lambda gap: gap[1]):
        found.append((first, before))
        first = after
    return [*found, (first, end)]


@dataclass(frozen=True)
class DateSpan:
    """Rows of some orgs in a date range.

    Attributes:
        first: Inclusive; None for no bound.
        last: Inclusive; None for no bound.
    """

    orgs: tuple[str, ...]
    first: date | None = None
    last: date | None = None

    @property
    def condition(self) -> Column:
        """Whether a row of `engagement` is in the span."""
        from pyspark.sql import functions as F

        found = F.col("org_id").isin(list(self.orgs))
        if self.first is not None:
            found &= F.col("engagement_date") >= F.lit(self.first)
        if self.last is not None:
            found &= F.col("engagement_date") <= F.lit(self.last)
        return found


@dataclass(frozen=True)
class MergeScope:
    """The orgs and dates of the rows that a MERGE may change.

    Attributes:
        spans: Without spans, no row is in scope.
    """

    spans: tuple[DateSpan, ...]

    @property
    def condition(self) -> Column:
        """Whether a row of `engagement` is in scope. It contains constants only, so Spark prunes before the MERGE."""
        from pyspark.sql import functions as F

        orgs = {org for span in self.spans for org in span.orgs}
        in_any_span = any_of(span.condition for span in self.spans)
        # Delta prunes partitions only by a condition on the partition column alone.
        return F.col("org_id").isin(sorted(orgs)) & in_any_span


def merge_scope(spans: Iterable[DateSpan]) -> MergeScope:
    """Return the scope of some spans. Spans of equal dates are joined; of more than `MAX_RANGES`, all orgs have those
    dates that one of them has, in as many ranges. Pure.
    """
    orgs_by_dates: defaultdict[tuple[date | None, date | None], set[str]] = defaultdict(set)
    for span in spans:
        orgs_by_dates[span.first, span.last].update(span.orgs)
    if len(orgs_by_dates) > MAX_RANGES:
        every = set().union(*orgs_by_dates.values())
        covered = few_ranges((first or date.min, last or date.max) for first, last in orgs_by_dates)
        bounds = [(None if first == date.min else first, None if last == date.max else last) for first, last in covered]
        orgs_by_dates = defaultdict(set, dict.fromkeys(bounds, every))
    joined = [DateSpan(tuple(sorted(orgs)), first, last) for (first, last), orgs in orgs_by_dates.items()]
    return MergeScope(tuple(sorted(joined, key=lambda span: (span.orgs, span.first or date.min))))


def spans_of_days(rows: DataFrame) -> list[DateSpan]:
    """Return the spans of some rows, of each org the ranges of its days. They are read.

    Args:
        rows: org_id string, engagement_date date.
    """
    from pyspark.sql import functions as F

    by_org = rows.groupBy("org_id").agg(F.collect_set("engagement_date").alias("days")).collect()
    ranges = [(row["org_id"], *dates) for row in by_org for dates in day_ranges(row["days"], margin=0)]
    return [DateSpan((org,), first, last) for org, first, last in sorted(ranges)]
