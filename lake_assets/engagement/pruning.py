"""What a MERGE may leave unread: partitions of other orgs, and files whose rows are of other dates.

Files of an org are sorted by date (`maintenance.py`), and Delta's log has the dates of each, so a range is found
without opening a file. A range only prunes: it covers every row that the MERGE concerns.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Reach:
    """The orgs and dates of the rows that are concerned. first, last: both included; None: no bound.

    empty: no row is concerned, of whatever date.
    """

    orgs: tuple[str, ...]
    first: date | None = None
    last: date | None = None
    empty: bool = False

    @property
    def condition(self) -> Column:
        """On the columns of `engagement`, constants alone: so it prunes before the MERGE reads."""
        from pyspark.sql import functions as F

        found = F.col("org_id").isin(list(self.orgs))
        if self.empty:
            return found & F.lit(False)
        if self.first is not None:
            found &= F.col("engagement_date") >= F.lit(self.first)
        if self.last is not None:
            found &= F.col("engagement_date") <= F.lit(self.last)
        return found


def dated(dates: DataFrame) -> Reach:
    """The reach of rows. dates: org_id string, first_date date, last_date date; of an org without rows both null."""
    from pyspark.sql import functions as F

    spans = F.min("first_date").alias("first"), F.max("last_date").alias("last")
    found = dates.groupBy("org_id").agg(*spans).orderBy("org_id").collect()
    first = min((row["first"] for row in found if row["first"]), default=None)
    last = max((row["last"] for row in found if row["last"]), default=None)
    return Reach(tuple(row["org_id"] for row in found), first, last, empty=first is None)
