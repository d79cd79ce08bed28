"""What a MERGE need not read: partitions of other orgs, and files whose rows are of other dates.

Maintenance sorts the files of an org by date, and Delta's log has the dates of each file. So a date range excludes
files without opening them. A scope only prunes: it covers every row that the MERGE may change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from lake_assets.base.columns import any_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_SPANS = 16
"""Maximum number of spans in a scope. Each is a condition that Spark evaluates for every row."""


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
        spans: No two of them have an org in common. Without spans, no row is in scope.
    """

    spans: tuple[DateSpan, ...]

    @property
    def condition(self) -> Column:
        """Whether a row of `engagement` is in scope. It contains constants only, so Spark prunes before the MERGE."""
        from pyspark.sql import functions as F

        orgs = [org for span in self.spans for org in span.orgs]
        in_any_span = any_of(span.condition for span in self.spans)
        # Delta prunes partitions only by a condition on the partition column alone.
        return F.col("org_id").isin(sorted(orgs)) & in_any_span


def merge_scope(spans: Iterable[DateSpan]) -> MergeScope:
    """Return the scope of some spans. Spans of equal dates are joined; more than `MAX_SPANS` become one. Pure."""
    orgs_by_dates: defaultdict[tuple[date | None, date | None], set[str]] = defaultdict(set)
    for span in spans:
        orgs_by_dates[span.first, span.last].update(span.orgs)
    joined = []
    for (first, last), orgs in orgs_by_dates.items():
        joined.append(DateSpan(tuple(sorted(orgs)), first, last))
    if len(joined) > MAX_SPANS:
        joined = [_hull(joined)]
    return MergeScope(tuple(sorted(joined, key=lambda span: span.orgs)))


def _hull(spans: Sequence[DateSpan]) -> DateSpan:
    """Return the least span that covers all spans."""
    orgs: set[str] = set()
    firsts: list[date | None] = []
    lasts: list[date | None] = []
    for span in spans:
        orgs.update(span.orgs)
        firsts.append(span.first)
        lasts.append(span.last)
    return DateSpan(
        orgs=tuple(sorted(orgs)),
        first=None if None in firsts else min(day for day in firsts if day),
        last=None if None in lasts else max(day for day in lasts if day),
    )


def scope_of_dates(dates: DataFrame) -> MergeScope:
    """Return the scope of rows with these dates.

    Args:
        dates: org_id string, first_date date, last_date date; both dates null for an org without rows.
    """
    from pyspark.sql import functions as F

    by_org = dates.where("first_date is not null").groupBy("org_id")
    ranges = by_org.agg(F.min("first_date").alias("first"), F.max("last_date").alias("last"))
    rows = ranges.orderBy("org_id").collect()
    return merge_scope(DateSpan((row["org_id"],), row["first"], row["last"]) for row in rows)
