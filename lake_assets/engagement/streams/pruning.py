"""What a MERGE may leave unread: partitions of other orgs, and files whose rows are of other dates.

Files of an org are sorted by date (`maintenance.py`), and Delta's log has the dates of each, so a range is found
without opening a file. A range only prunes: it covers every row that the MERGE concerns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MOST_SPANS = 16
"""So many ranges are told apart: each is a condition on every row."""


@dataclass(frozen=True)
class Span:
    """Rows of some orgs and dates. first, last: both included; None: no bound."""

    orgs: tuple[str, ...]
    first: date | None = None
    last: date | None = None


@dataclass(frozen=True)
class Reach:
    """The orgs and dates of the rows that are concerned; without spans none is. No two spans have an org in common."""

    spans: tuple[Span, ...]

    @property
    def condition(self) -> Column:
        """On the columns of `engagement`, constants alone: so it prunes before the MERGE reads."""
        from pyspark.sql import functions as F

        orgs = sorted(org for span in self.spans for org in span.orgs)
        dates = F.lit(False)
        for span in self.spans:
            dates |= _of(span)
        return F.col("org_id").isin(orgs) & dates  # partitions are pruned by a condition on them alone


def _of(span: Span) -> Column:
    from pyspark.sql import functions as F

    found = F.col("org_id").isin(list(span.orgs))
    if span.first is not None:
        found &= F.col("engagement_date") >= F.lit(span.first)
    if span.last is not None:
        found &= F.col("engagement_date") <= F.lit(span.last)
    return found


def reach(spans: Iterable[Span]) -> Reach:
    """The reach of rows: spans of equal dates as one, and all as one if they are more than `MOST_SPANS`. Pure."""
    orgs_of: defaultdict[tuple[date | None, date | None], set[str]] = defaultdict(set)
    for span in spans:
        orgs_of[span.first, span.last].update(span.orgs)
    found = [Span(tuple(sorted(orgs)), *dates) for dates, orgs in orgs_of.items()]
    if len(found) > MOST_SPANS:
        found = [_hull(found)]
    return Reach(tuple(sorted(found, key=lambda span: span.orgs)))


def _hull(spans: Iterable[Span]) -> Span:
    every = list(spans)
    firsts, lasts = [span.first for span in every], [span.last for span in every]
    first = None if None in firsts else min(day for day in firsts if day)
    last = None if None in lasts else max(day for day in lasts if day)
    return Span(tuple(sorted(org for span in every for org in span.orgs)), first, last)


def dated(dates: DataFrame) -> Reach:
    """The reach of rows. dates: org_id string, first_date date, last_date date; of an org without rows both null."""
    from pyspark.sql import functions as F

    spans = F.min("first_date").alias("first"), F.max("last_date").alias("last")
    found = dates.where("first_date is not null").groupBy("org_id").agg(*spans).orderBy("org_id").collect()
    return reach(Span((row["org_id"],), row["first"], row["last"]) for row in found)
